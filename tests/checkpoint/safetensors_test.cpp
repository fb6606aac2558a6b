#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "test_files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A file's bytes: the header text with its length before it, and `data_bytes` bytes of data.
std::string file_text(const std::string& header, std::size_t data_bytes) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, 'x');
}

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors_header(to_bytes(bytes), "x.safetensors");
}

TEST(SafetensorsHeader, ReadsEveryElementType) {
  const SafetensorsHeader header = parse(file_text(
      R"({"__metadata__":{"format":"pt","a":"b"},"f":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]},"h":{"dtype":"F16","shape":[],"data_offsets":[12,14]},)"
      R"("d":{"dtype":"F64","shape":[1],"data_offsets":[14,22]},"l":{"dtype":"I64","shape":[1],"data_offsets":[22,30]},)"
      R"("i":{"dtype":"I32","shape":[1],"data_offsets":[30,34]},"u":{"dtype":"U8","shape":[3],"data_offsets":[34,37]},)"
      R"("m":{"data_offsets":[37,39],"shape":[2],"dtype":"BOOL"},"e":{"dtype":"F32","shape":[0,5],"data_offsets":[39,39]}})",
      39));
  std::vector<std::string> specs;
  for (const SafetensorsTensor& tensor : header.tensors) specs.push_back(tensor.name + " " + tensor.spec.str());
  EXPECT_EQ(specs, (std::vector<std::string>{"f f32[2]", "b bf16[1, 2]", "h f16[]", "d f64[1]", "l i64[1]", "i i32[1]",
                                             "u u8[3]", "m u8[2]", "e f32[0, 5]"}));
  EXPECT_TRUE(header.tensors[7].boolean);
  EXPECT_FALSE(header.tensors[6].boolean);
  EXPECT_EQ(header.metadata, (SafetensorsMetadata{{"a", "b"}, {"format", "pt"}}));
  EXPECT_EQ(header.tensors[1].begin - header.tensors[0].begin, 8u);
}

TEST(SafetensorsHeader, OrdersTensorsByTheirBytes) {
  const SafetensorsHeader header = parse(file_text(
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}  )",
      3));
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.index.at("b"), 1u);
}

struct Bad {
  std::string bytes;
  std::string message;
  Status status = Status::kData;
};

Bad bad_header(const std::string& header, std::size_t data, const std::string& message) {
  return {file_text(header, data), message};
}

TEST(SafetensorsHeader, RefusesEachViolation) {
  const std::string ok = R"("dtype":"U8","shape":[2],"data_offsets":[0,2])";
  const std::vector<Bad> cases = {
      {"", "0 bytes: too short", Status::kStorage},
      {"abc", "3 bytes: too short", Status::kStorage},
      {file_text("{}", 0).substr(0, 9), "cut short: its header has 2 bytes, but only 1 follow", Status::kStorage},
      {std::string(8, '\xff') + "{}", "over the limit of 100000000"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "the header length 100000001 is over the limit"},
      {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer", Status::kStorage},
      {"PK\x03\x04zzzzzzzz", "PyTorch pickle"},
      {"GGUFzzzzzzzz", "GGUF"},
      bad_header("[]", 0, "does not begin with '{'"),
      bad_header(" {}", 0, "does not begin with '{'"),
      bad_header("{} x", 0, "not valid JSON"),
      bad_header("{", 0, "not valid JSON"),
      bad_header("{\"a\xff\":1}", 0, "not valid JSON"),
      bad_header(R"({"a":null})", 0, "'a' holds null"),
      bad_header(R"({"a":[]})", 0, "'a' holds a list"),
      bad_header(R"({"a":{)" + ok + R"(},"a":{)" + ok + "}}", 2, "the tensor 'a' stands twice"),
      bad_header(R"({"a":{"dtype":"U8","dtype":"U8"}})", 2, "the field 'dtype' stands twice"),
      bad_header(R"({"a":{"dtype":"U8","shape":[2]}})", 2, "the field 'data_offsets' is missing"),
      bad_header(R"({"a":{"shape":[2],"data_offsets":[0,2]}})", 2, "the field 'dtype' is missing"),
      bad_header(R"({"a":{"dtype":"U8","data_offsets":[0,2]}})", 2, "the field 'shape' is missing"),
      bad_header(R"({"a":{)" + ok + R"(,"strides":[1]}})", 2, "unknown field 'strides'"),
      bad_header(R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", 2,
                 "F8_E4M3 is one that Convoy does not read"),
      bad_header(R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})", 2, "I8 is one that Convoy does not read"),
      bad_header(R"({"a":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}})", 8, "unknown dtype 'f32'"),
      bad_header(R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})", 8, "'dtype' holds 3"),
      bad_header(R"({"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}})", 2, "negative number -2"),
      bad_header(R"({"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}})", 2, "'shape' holds 2.0"),
      bad_header(R"({"a":{"dtype":"U8","shape":["2"],"data_offsets":[0,2]}})", 2, "'shape' holds \"2\""),
      bad_header(R"({"a":{"dtype":"U8","shape":[[2]],"data_offsets":[0,2]}})", 2, "'shape' holds a list"),
      bad_header(R"({"a":{"dtype":"U8","shape":{},"data_offsets":[0,2]}})", 2, "'shape' holds an object"),
      bad_header(R"({"a":{"dtype":"U8","shape":2,"data_offsets":[0,2]}})", 2, "'shape' holds 2"),
      bad_header(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,2]}})", 2, "too large"),
      bad_header(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,2]}})", 2,
                 "overflows 64 bits"),
      bad_header(R"({"a":{"dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, "overflows 64 bits"),
      bad_header(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1, "more than 6 dimensions"),
      bad_header(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2, "[2, 0] run backwards"),
      bad_header(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,4]}})", 2, "more than two numbers"),
      bad_header(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0]}})", 2, "needs two numbers"),
      bad_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}})", 2, "f32[2] takes 8 bytes"),
      bad_header(R"({"a":{)" + ok + R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3,
                 "its data overlaps that of 'a'"),
      bad_header(R"({"a":{)" + ok + R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})", 5,
                 "1 bytes before its data belong to no tensor"),
      bad_header(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, "1 bytes before its data"),
      bad_header(R"({"a":{)" + ok + "}}", 5, "3 bytes at the end belong to no tensor"),
      {file_text(R"({"a":{)" + ok + "}}", 1), "cut short: the data ends at byte 2", Status::kStorage},
      bad_header(R"({"__metadata__":{"a":1}})", 0, "'a' holds 1"),
      bad_header(R"({"__metadata__":"x"})", 0, "'__metadata__' holds \"x\""),
      bad_header(R"({"__metadata__":{"a":"x","a":"y"}})", 0, "the key 'a' stands twice"),
      bad_header(R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' stands twice"),
  };
  for (const Bad& bad : cases) {
    Status status = Status::kDone;
    const std::string text = error_of([&] { parse(bad.bytes); }, &status);
    EXPECT_THAT(text, HasSubstr(bad.message)) << bad.bytes;
    EXPECT_THAT(text, HasSubstr("x.safetensors"));
    EXPECT_EQ(status, bad.status) << text;
  }
}

TEST(SafetensorsHeader, NamesFileAndTensor) {
  EXPECT_EQ(error_of([] { parse(file_text(R"({"w":{"dtype":"U8","shape":[3],"data_offsets":[0,2]}})", 2)); }),
            "u8[3] takes 3 bytes, but 'data_offsets' [0, 2] span 2 [x.safetensors, tensor 'w']");
}

// Whatever a damaged file holds, reading it either works or gives an Error, and what works stays within the file.
TEST(SafetensorsHeader, SurvivesDamage) {
  const std::string good = file_text(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[4],"data_offsets":[24,28]}})",
      28);
  RandomStream random(11, 0);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (std::uint64_t i = 0, n = 1 + random.below(3); i < n; ++i) {
      bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
    }
    if (random.below(4) == 0) bytes.resize(random.below(bytes.size()));
    try {
      for (const SafetensorsTensor& tensor : parse(bytes).tensors) {
        ASSERT_LE(tensor.begin + tensor.spec.bytes(), bytes.size());
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
}

TEST(SafetensorsFile, FindsTensorsAndSuggestsNames) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  SafetensorsWriter writer(folder / "m.safetensors", {{"layers.0.weight", {DType::kF32, {2, 3}}}});
  writer.write("layers.0.weight", bytes_of(values));
  writer.close();
  const SafetensorsFile file(folder / "m.safetensors");
  const SafetensorsFile::Found found = file.find("layers.0.weight");
  EXPECT_EQ(found.spec, (TensorSpec{DType::kF32, {2, 3}}));
  EXPECT_EQ(std::memcmp(found.bytes.data(), values.data(), 24), 0);
  EXPECT_TRUE(file.contains("layers.0.weight"));
  EXPECT_THAT(error_of([&] { file.find("layer.0.weight"); }),
              HasSubstr("there is no tensor 'layer.0.weight', did you mean 'layers.0.weight'? ["));
  EXPECT_THAT(error_of([&] { SafetensorsFile(folder / "none.safetensors"); }), HasSubstr("cannot open"));
}

TEST(SafetensorsWriter, StreamsInPiecesAndDigestsTheFile) {
  const TemporaryFolder folder;
  RandomStream random(3, 1);
  std::vector<SafetensorsTensor> tensors = {
      {"a", {DType::kF64, {7}}},     {"empty", {DType::kF32, {0, 3}}},  {"b \"q\" é", {DType::kBF16, {3, 5}}},
      {"scalar", {DType::kF16, {}}}, {"mask", {DType::kU8, {9}}, true}, {"last", {DType::kU8, {0}}}};
  std::string data;
  SafetensorsWriter writer(folder / "m.safetensors", tensors, {{"format", "pt"}, {"note", "x"}});
  for (const SafetensorsTensor& tensor : tensors) {
    std::string bytes(tensor.spec.bytes(), '\0');
    for (char& c : bytes) c = static_cast<char>(random.bits());
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t n = 1 + random.below(bytes.size() - at);
      writer.write(tensor.name, to_bytes(bytes.substr(at, n)));
      at += n;
    }
    data += bytes;
  }
  const FileDigest digest = writer.close();
  EXPECT_EQ(digest, digest_file(folder / "m.safetensors"));
  EXPECT_EQ(digest.size, SafetensorsWriter::file_size(tensors, {{"format", "pt"}, {"note", "x"}}));

  const std::string text = read_file(folder / "m.safetensors");
  EXPECT_EQ(hash64(text), digest.xxh3);
  EXPECT_TRUE(text.ends_with(data));
  EXPECT_EQ((text.size() - data.size()) % 8, 0u);
  const SafetensorsFile file(folder / "m.safetensors");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(file.tensors()[i].name, tensors[i].name);
    EXPECT_EQ(file.tensors()[i].spec, tensors[i].spec);
    EXPECT_EQ(file.tensors()[i].boolean, tensors[i].boolean);
  }
  EXPECT_EQ(file.metadata().at("note"), "x");
}

TEST(SafetensorsWriter, RefusesMisuse) {
  const TemporaryFolder folder;
  const std::vector<SafetensorsTensor> two = {{"a", {DType::kU8, {2}}}, {"b", {DType::kU8, {2}}}};
  const auto piece = to_bytes("xyz");
  const std::span<const std::byte> bytes(piece);
  SafetensorsWriter writer(folder / "m", two);
  EXPECT_THAT(error_of([&] { writer.write("b", bytes.first(2)); }), HasSubstr("out of order: 'a' comes next"));
  EXPECT_THAT(error_of([&] { writer.write("a", bytes); }), HasSubstr("more than its 2 bytes"));
  writer.write("a", bytes.first(2));
  writer.write("b", bytes.first(1));
  EXPECT_THAT(error_of([&] { writer.close(); }), HasSubstr("'b' is incomplete: 1 of 2 bytes"));
  writer.write("b", bytes.first(1));
  EXPECT_THAT(error_of([&] { writer.write("b", bytes.first(1)); }), HasSubstr("all tensors are complete"));
  writer.close();
  EXPECT_THAT(error_of([&] { SafetensorsWriter(folder / "n", {two[0], two[0]}); }), HasSubstr("declared twice"));
}

// The golden files were written by the reference implementation: the same tensors give the same bytes.
TEST(SafetensorsWriter, WritesTheReferenceImplementationsBytes) {
  const TemporaryFolder folder;
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(CONVOY_TEST_DATA)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    SafetensorsWriter writer(folder / "copy", {file.tensors().begin(), file.tensors().end()}, file.metadata());
    for (const SafetensorsTensor& tensor : file.tensors()) writer.write(tensor.name, file.bytes(tensor));
    writer.close();
    EXPECT_TRUE(read_file(folder / "copy") == read_file(entry.path())) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 14);
}

}  // namespace
}  // namespace convoy
