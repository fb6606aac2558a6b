#include "checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/json.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

Json content_of(const CheckpointManifest& manifest) {
  Json content;
  content["format_version"] = CheckpointManifest::kFormatVersion;
  content["step"] = manifest.step;
  content["saved_at"] = manifest.saved_at;
  content["files"] = Json::array();
  for (const FileDigest& file : manifest.files) {
    content["files"].push_back(Json{{"name", file.name}, {"size", file.size}, {"xxh3", hex64(file.xxh3)}});
  }
  return content;
}

// Throws nlohmann's exceptions on a field that is missing or of the wrong type.
CheckpointManifest read_content(const Json& content, const std::string& where) {
  CheckpointManifest manifest;
  manifest.step = content.at("step").get<std::int64_t>();
  manifest.saved_at = content.at("saved_at").get<std::int64_t>();
  std::set<std::string> names;
  for (const Json& entry : content.at("files")) {
    FileDigest file{entry.at("name").get<std::string>(), entry.at("size").get<std::uint64_t>(), 0};
    require_inner_name(file.name, where);
    if (!names.insert(file.name).second)
      throw data_error(fmt::format("the file '{}' stands twice", file.name)).at(where);
    const std::string sum = entry.at("xxh3").get<std::string>();
    if (sum.size() != 16 || sum.find_first_not_of("0123456789abcdef") != std::string::npos) {
      throw data_error(fmt::format("'{}' is not a checksum", sum)).at(where);
    }
    file.xxh3 = std::stoull(sum, nullptr, 16);
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

// What is wrong with one file of the manifest, if anything.
std::optional<std::string> file_problem(const fs::path& folder, const FileDigest& expected, bool checksums) {
  const fs::path path = folder / expected.name;
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (status.type() == fs::file_type::not_found) return fmt::format("{}: missing", expected.name);
  if (status.type() != fs::file_type::regular) return fmt::format("{}: not a readable file", expected.name);
  const std::uint64_t size = fs::file_size(path, failure);
  if (failure) return fmt::format("{}: {}", expected.name, failure.message());
  if (size != expected.size) {
    return fmt::format("{}: wrong size: {} bytes instead of {}", expected.name, size, expected.size);
  }
  if (!checksums) return std::nullopt;
  try {
    const FileDigest found = digest_file(path);
    if (found.size == expected.size && found.xxh3 == expected.xxh3) return std::nullopt;
    return fmt::format("{}: wrong checksum: {} instead of {}", expected.name, hex64(found.xxh3), hex64(expected.xxh3));
  } catch (const Error& error) {
    return fmt::format("{}: {}", expected.name, error.what());
  }
}

}  // namespace

std::string CheckpointManifest::to_text() const {
  Json content = content_of(*this);
  content["checksum"] = hex64(hash64(dump_json(content)));
  return dump_json(content);
}

CheckpointManifest CheckpointManifest::parse(const std::string& text, const std::string& file) {
  try {
    Json content = Json::parse(text);
    const auto version = content.at("format_version").get<std::int64_t>();
    if (version > kFormatVersion) {
      throw data_error(fmt::format("the checkpoint has format {}, and this version of Convoy reads formats up to {}",
                                   version, kFormatVersion))
          .at(file)
          .mend("resume with the newer version of Convoy that wrote it");
    }
    const std::string checksum = content.at("checksum").get<std::string>();
    content.erase("checksum");
    if (checksum != hex64(hash64(dump_json(content)))) {
      throw data_error("the manifest's own checksum does not match its content").at(file);
    }
    return read_content(content, file);
  } catch (const Json::exception& failure) {
    std::string reason = failure.what();
    if (const std::size_t cut = reason.find("] "); cut != std::string::npos) reason = reason.substr(cut + 2);
    throw data_error(fmt::format("the manifest is malformed: {}", reason)).at(file);
  }
}

std::vector<std::string> checkpoint_problems(const fs::path& folder, bool checksums) {
  const fs::path path = folder / CheckpointManifest::kFileName;
  std::error_code failure;
  if (!fs::exists(path, failure)) {
    return {fmt::format("no {}: an interrupted save, or not written by Convoy", CheckpointManifest::kFileName)};
  }
  CheckpointManifest manifest;
  try {
    manifest = CheckpointManifest::parse(read_file(path), CheckpointManifest::kFileName);
  } catch (const Error& error) {
    return {error.what()};
  }
  std::vector<std::string> problems;
  if (const std::string name = folder.filename().string();
      name.starts_with("checkpoint-") && name != fmt::format("checkpoint-{}", manifest.step)) {
    problems.push_back(fmt::format("{}: written for step {}", CheckpointManifest::kFileName, manifest.step));
  }

  // Plain threads: this waits on the disk more than it computes, and may run while the compute pool is busy.
  std::vector<std::optional<std::string>> found(manifest.files.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < found.size(); i = next++) {
      found[i] = file_problem(folder, manifest.files[i], checksums);
    }
  };
  {
    const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
    const std::size_t extra = checksums ? std::min({found.size(), cores, std::size_t{8}}) : 0;
    std::vector<std::jthread> threads;
    for (std::size_t t = 1; t < extra; ++t) threads.emplace_back(work);
    work();
  }
  for (std::optional<std::string>& problem : found) {
    if (problem) problems.push_back(std::move(*problem));
  }
  return problems;
}

}  // namespace convoy
