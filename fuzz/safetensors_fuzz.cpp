// The safetensors header: any bytes are refused with an Error or describe tensors that tile the file, and what was
// read is written again to the same header.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  convoy::SafetensorsHeader header;
  try {
    header = convoy::parse_safetensors_header(bytes, "input");
  } catch (const convoy::Error&) {
    return 0;
  }
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const convoy::SafetensorsTensor& tensor = header.tensors[i];
    if (i > 0 && tensor.begin != end) std::abort();
    end = tensor.begin + tensor.spec.bytes();
    if (end > size || header.index.at(tensor.name) != i) std::abort();
  }
  if (!header.tensors.empty() && end != size) std::abort();

  std::string again = convoy::safetensors_header(header.tensors, header.metadata);
  const std::uint64_t header_size = again.size();
  for (const convoy::SafetensorsTensor& tensor : header.tensors) again.append(tensor.spec.bytes(), '\0');
  const convoy::SafetensorsHeader copy =
      convoy::parse_safetensors_header(std::as_bytes(std::span(again.data(), again.size())), "copy");
  if (copy.metadata != header.metadata || copy.tensors.size() != header.tensors.size()) std::abort();
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const convoy::SafetensorsTensor& a = header.tensors[i];
    const convoy::SafetensorsTensor& b = copy.tensors[i];
    if (a.name != b.name || a.spec != b.spec || a.boolean != b.boolean) std::abort();
    if (b.begin - header_size != a.begin - header.tensors.front().begin) std::abort();
  }
  return 0;
}
