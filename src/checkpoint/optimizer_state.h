// The optimizer's tensors in a checkpoint: safetensors files that say nothing about ranks, so that any layout can read
// what any other wrote.
//
// Names are `master.<name>`, `exp_avg.<name>`, `exp_avg_sq.<name>` (other optimizers add their own kinds), where <name>
// is the weight's Hugging Face name. A tensor is stored whole under its global shape, or as flat slices in one or
// several files: a slice's entry has the shape [length], and the file's metadata holds
// `slice.<entry>` = {"shape": global shape, "offset": first element, "length": elements}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace convoy {

inline constexpr const char* kOptimizerFile = "optimizer.safetensors";

// A contiguous part of a tensor in row-major order, in elements.
struct FlatSlice {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  friend bool operator==(const FlatSlice&, const FlatSlice&) = default;
};

// A tensor of the optimizer as one file holds it.
struct OptimizerTensor {
  std::string name;  // "exp_avg.model.norm.weight"
  TensorSpec global;
  std::optional<FlatSlice> slice;  // absent: the whole tensor
};

std::string master_name(const std::string& weight);      // "master.<weight>"
std::string exp_avg_name(const std::string& weight);     // "exp_avg.<weight>"
std::string exp_avg_sq_name(const std::string& weight);  // "exp_avg_sq.<weight>"

// Writes one optimizer file in a stream, tensor by tensor in the declared order.
class OptimizerStateWriter {
 public:
  OptimizerStateWriter(const std::filesystem::path& path, const std::vector<OptimizerTensor>& tensors);
  // The next bytes of tensor `name` (of its slice), in the element type that was declared.
  void write(const std::string& name, std::span<const std::byte> piece) { out_.write(name, piece); }
  FileDigest close() { return out_.close(); }

  static std::uint64_t file_size(const std::vector<OptimizerTensor>& tensors);

 private:
  SafetensorsWriter out_;
};

// Reads any flat range of any tensor, wherever its parts lie. Construction checks that the parts of each tensor cover
// it once, without hole or overlap, and agree about its shape and element type; else it throws a data error that names
// the tensor and the files.
class OptimizerStateReader {
 public:
  explicit OptimizerStateReader(const std::vector<std::filesystem::path>& files);

  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  // With the global shape.
  TensorSpec spec(const std::string& name) const;
  // Elements [first, first + out.size()) in row-major order, converted to f32 (from f32, bf16 or f16).
  void read(const std::string& name, std::uint64_t first, std::span<float> out) const;
  // The same range in the stored element type; out.size() is a multiple of its size.
  void read_bytes(const std::string& name, std::uint64_t first, std::span<std::byte> out) const;

 private:
  struct Part {
    FlatSlice range;
    std::span<const std::byte> bytes;
    std::size_t file = 0;
  };
  struct Tensor {
    TensorSpec spec;
    std::vector<Part> parts;  // by offset
  };
  const Tensor& lookup(const std::string& name) const;
  void add_file(std::size_t number);
  void check_cover(const std::string& name, Tensor& tensor) const;
  template <typename Visit>
  void visit_range(const std::string& name, std::uint64_t first, std::uint64_t count, const Visit& visit) const;

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor> tensors_;
};

// The optimizer files of a checkpoint folder: optimizer.safetensors, or optimizer-*.safetensors sorted; empty if none.
std::vector<std::filesystem::path> optimizer_files(const std::filesystem::path& checkpoint);

}  // namespace convoy
