#include "checkpoint/optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/dtype.h"
#include "base/random.h"
#include "test_files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> ramp(std::size_t n, float from) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), from);
  return values;
}

// Writes the slices of an f32 tensor of the shape [6, 5] with the values 0, 1, 2, …
void write_slices(const fs::path& path, const std::vector<FlatSlice>& slices, const std::string& name = "exp_avg.w") {
  check(slices.size() == 1, "one slice of a tensor a file");
  OptimizerStateWriter writer(path, {{name, {DType::kF32, {6, 5}}, slices[0]}});
  writer.write(name, bytes_of(ramp(slices[0].length, static_cast<float>(slices[0].offset))));
  writer.close();
}

TEST(OptimizerState, WholeTensorsKeepTheirGlobalShape) {
  const TemporaryFolder folder;
  const std::vector<OptimizerTensor> tensors = {{master_name("model.norm.weight"), {DType::kF32, {4}}, {}},
                                                {exp_avg_name("model.norm.weight"), {DType::kF32, {2, 2}}, {}},
                                                {exp_avg_sq_name("model.norm.weight"), {DType::kBF16, {4}}, {}}};
  OptimizerStateWriter writer(folder / kOptimizerFile, tensors);
  const std::vector<float> master = {0.1f, -2, 3e-30f, 4};
  writer.write("master.model.norm.weight", bytes_of(master));
  writer.write("exp_avg.model.norm.weight", bytes_of(ramp(4, 10)));
  const std::vector<BF16> squares = {to_bf16(1), to_bf16(0.5f), to_bf16(-3), to_bf16(256)};
  writer.write("exp_avg_sq.model.norm.weight", bytes_of(squares));
  EXPECT_EQ(writer.close().size, OptimizerStateWriter::file_size(tensors));

  ASSERT_THAT(optimizer_files(folder.path()), ElementsAre(folder / "optimizer.safetensors"));
  const OptimizerStateReader reader(optimizer_files(folder.path()));
  EXPECT_THAT(reader.names(),
              ElementsAre("exp_avg.model.norm.weight", "exp_avg_sq.model.norm.weight", "master.model.norm.weight"));
  EXPECT_EQ(reader.spec("exp_avg.model.norm.weight"), (TensorSpec{DType::kF32, {2, 2}}));
  std::vector<float> out(4);
  reader.read("master.model.norm.weight", 0, out);
  EXPECT_EQ(out, master);
  reader.read("exp_avg_sq.model.norm.weight", 0, out);
  EXPECT_THAT(out, ElementsAre(1, 0.5f, -3, 256));
  std::vector<float> middle(2);
  reader.read("exp_avg.model.norm.weight", 1, middle);
  EXPECT_THAT(middle, ElementsAre(11, 12));
  EXPECT_FALSE(reader.contains("master.x"));
  EXPECT_THAT(error_of([&] { reader.read("master.model.norm.weigh", 0, out); }),
              HasSubstr("no tensor 'master.model.norm.weigh', did you mean 'master.model.norm.weight'?"));
  EXPECT_THAT(error_of([&] { reader.read("master.model.norm.weight", 1, out); }), HasSubstr("lie outside"));
}

// Any cut of a tensor into slices over files, read back by any other cut, gives the same values.
TEST(OptimizerState, AnyCutReadsAsAnyOther) {
  RandomStream random(9, 0);
  for (int round = 0; round < 40; ++round) {
    const TemporaryFolder folder;
    const std::uint64_t numel = 30;
    std::uint64_t offset = 0;
    for (int file = 0; offset < numel || file == 0; ++file) {
      const std::uint64_t length = random.below(numel - offset + 1);
      write_slices(folder / ("optimizer-" + std::to_string(100 + file) + ".safetensors"), {{offset, length}});
      offset += length;
    }
    const OptimizerStateReader reader(optimizer_files(folder.path()));
    EXPECT_EQ(reader.spec("exp_avg.w"), (TensorSpec{DType::kF32, {6, 5}}));
    for (int range = 0; range < 20; ++range) {
      const std::uint64_t first = random.below(numel + 1);
      std::vector<float> out(random.below(numel - first + 1));
      reader.read("exp_avg.w", first, out);
      EXPECT_EQ(out, ramp(out.size(), static_cast<float>(first)));
      std::vector<float> raw(out.size());
      reader.read_bytes("exp_avg.w", first, std::as_writable_bytes(std::span(raw)));
      EXPECT_EQ(raw, out);
    }
  }
}

TEST(OptimizerState, SlicesMustCoverTheTensorOnce) {
  const TemporaryFolder folder;
  const auto read = [&] { return error_of([&] { OptimizerStateReader{optimizer_files(folder.path())}; }); };
  write_slices(folder / "optimizer-1.safetensors", {{0, 10}});
  EXPECT_THAT(read(),
              HasSubstr("elements 10 to 30 of the optimizer tensor 'exp_avg.w' (f32[6, 5]) are in none of 1 files"));
  write_slices(folder / "optimizer-2.safetensors", {{12, 18}});
  EXPECT_THAT(read(), HasSubstr("elements 10 to 12 of the optimizer tensor"));
  write_slices(folder / "optimizer-2.safetensors", {{8, 22}});
  EXPECT_THAT(read(), HasSubstr("elements 8 to 10 of the optimizer tensor 'exp_avg.w' are in two places: "
                                "optimizer-1.safetensors and optimizer-2.safetensors"));
  OptimizerStateWriter other(folder / "optimizer-2.safetensors",
                             {{"exp_avg.w", {DType::kF32, {5, 6}}, FlatSlice{10, 20}}});
  other.write("exp_avg.w", bytes_of(ramp(20, 10)));
  other.close();
  EXPECT_THAT(read(), HasSubstr("the parts of this tensor disagree: f32[5, 6] here, f32[6, 5] in"));
}

TEST(OptimizerState, RefusesForeignAndNewerFiles) {
  const TemporaryFolder folder;
  const auto with = [&](const SafetensorsMetadata& metadata) {
    SafetensorsWriter writer(folder / kOptimizerFile, {{"a", {DType::kF32, {2}}}}, metadata);
    writer.write("a", bytes_of(ramp(2, 0)));
    writer.close();
    return error_of([&] { OptimizerStateReader{optimizer_files(folder.path())}; });
  };
  const auto slice = [&](const std::string& text) {
    return with({{"convoy_optimizer_version", "1"}, {"slice.a", text}});
  };
  EXPECT_THAT(with({{"format", "pt"}}), HasSubstr("not an optimizer state that Convoy wrote"));
  EXPECT_THAT(with({{"convoy_optimizer_version", "2"}}), HasSubstr("has format 2, and this version of Convoy reads"));
  EXPECT_THAT(slice("{"), HasSubstr("not described rightly"));
  EXPECT_THAT(slice("[]"), HasSubstr("not described rightly"));
  EXPECT_THAT(slice(R"({"shape":[4],"offset":3,"length":2})"), HasSubstr("[3, +2] lies outside 4 elements"));
  EXPECT_THAT(slice(R"({"shape":[4],"offset":0,"length":3})"), HasSubstr("length 3, but 2 elements are stored"));
  EXPECT_THAT(slice(R"({"shape":[-4],"offset":0,"length":2})"), HasSubstr("not a whole number"));
  EXPECT_THAT(slice(R"({"shape":[4],"offset":-1,"length":2})"), HasSubstr("not a whole number"));
  EXPECT_THAT(slice(R"({"shape":[4,1,1,1,1,1,1],"offset":0,"length":2})"), HasSubstr("too many dimensions"));
  EXPECT_THAT(slice(R"({"shape":[9223372036854775807,8],"offset":0,"length":2})"), HasSubstr("too large"));
  EXPECT_THAT(slice(R"({"shape":[18446744073709551615],"offset":0,"length":2})"), HasSubstr("too large"));
}

}  // namespace
}  // namespace convoy
