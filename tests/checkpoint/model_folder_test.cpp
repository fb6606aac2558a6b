#include "checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/random.h"
#include "test_files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<fs::path> golden_models() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(CONVOY_TEST_DATA)) {
    if (fs::exists(entry.path() / "model" / "config.json")) folders.push_back(entry.path() / "model");
  }
  return folders;
}

void expect_same_model(const ModelFolder& a, const ModelFolder& b) {
  ASSERT_EQ(a.names().size(), b.names().size());
  EXPECT_EQ(a.config(), b.config());
  EXPECT_EQ(a.total_bytes(), b.total_bytes());
  for (const std::string& name : a.names()) {
    const ModelFolder::Tensor x = a.tensor(name);
    const ModelFolder::Tensor y = b.tensor(name);
    EXPECT_EQ(x.info->spec, y.info->spec) << name;
    ASSERT_EQ(x.bytes.size(), y.bytes.size()) << name;
    EXPECT_EQ(std::memcmp(x.bytes.data(), y.bytes.data(), x.bytes.size()), 0) << name;
  }
}

void write_tensors(const fs::path& path, const std::vector<std::string>& names) {
  std::vector<SafetensorsTensor> tensors;
  for (const std::string& name : names) tensors.push_back({name, {DType::kU8, {3}}});
  fs::create_directories(path.parent_path());
  SafetensorsWriter writer(path, tensors);
  for (const std::string& name : names) writer.write(name, to_bytes("abc"));
  writer.close();
}

TEST(ModelFolder, WritesAGoldenModelAsItWas) {
  const auto folders = golden_models();
  EXPECT_GE(folders.size(), 7u);
  for (const fs::path& source : folders) {
    const TemporaryFolder out;
    const ModelFolder model(source);
    const auto written = write_model_folder(out.path(), model.config(), sources_of(model));
    expect_same_model(model, ModelFolder(out.path()));
    EXPECT_EQ(written.size(), 2u);
    EXPECT_TRUE(read_file(out / "model.safetensors") == read_file(source / "model.safetensors")) << source;
    for (const FileDigest& file : written) EXPECT_EQ(digest_file(out.path() / file.name), file);
  }
}

TEST(ModelFolder, ShardsAGoldenModelAtAnySize) {
  const ModelFolder model(fs::path(CONVOY_TEST_DATA) / "llama" / "model");
  for (const std::uint64_t size : {1u, 5000u, 13000u, 40000u}) {
    const TemporaryFolder out;
    write_model_folder(out.path(), model.config(), sources_of(model), {size, {}});
    EXPECT_FALSE(fs::exists(out / "model.safetensors"));
    expect_same_model(model, ModelFolder(out.path()));
    const Json index = read_json(out / "model.safetensors.index.json");
    EXPECT_EQ(index["metadata"]["total_size"], model.total_bytes());
    EXPECT_EQ(index["weight_map"].size(), model.names().size());
    EXPECT_EQ(index.begin().key(), "metadata");
  }
}

TEST(ModelFolder, DealsTensorsToShardsGreedily) {
  using Shards = std::vector<std::vector<std::size_t>>;
  const auto plan = [](std::vector<std::uint64_t> sizes, std::uint64_t limit) { return plan_shards(sizes, limit); };
  EXPECT_EQ(plan({4, 4, 4}, 12), (Shards{{0, 1, 2}}));
  EXPECT_EQ(plan({4, 4, 4}, 11), (Shards{{0, 1}, {2}}));
  // One that is too large has its own file, which comes before the one still open.
  EXPECT_EQ(plan({4, 20, 4, 4}, 10), (Shards{{1}, {0, 2}, {3}}));
  EXPECT_EQ(plan({20}, 10), (Shards{{0}}));
  EXPECT_EQ(plan({}, 10), (Shards{{}}));
  RandomStream random(5, 0);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> sizes(random.below(30));
    for (std::uint64_t& size : sizes) size = random.below(50);
    const std::uint64_t limit = 1 + random.below(80);
    std::vector<std::size_t> seen;
    for (const auto& shard : plan(sizes, limit)) {
      std::uint64_t total = 0;
      for (const std::size_t i : shard) total += sizes[i];
      EXPECT_TRUE(total <= limit || shard.size() == 1);
      seen.insert(seen.end(), shard.begin(), shard.end());
    }
    std::sort(seen.begin(), seen.end());
    std::vector<std::size_t> all(sizes.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    EXPECT_EQ(seen, all);
  }
}

TEST(ModelFolder, CarriesTheTokenizerAlong) {
  const TemporaryFolder source, out;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt",
        "special_tokens_map.json", "added_tokens.json", "generation_config.json", "chat_template.jinja",
        "preprocessor_config.json", "modeling_x.py", "LICENSE", "additional_chat_templates/tool.jinja"}) {
    write_plain(source / name, std::string("content of ") + name);
  }
  for (const char* name :
       {"model.safetensors", "pytorch_model.bin", "trainer_state.json", "README.md", "config.json"}) {
    write_plain(source / name, "stays");
  }
  const auto carried = files_to_carry(source.path());
  EXPECT_EQ(carried.size(), 13u);
  fs::create_symlink(source / "LICENSE", source / "NOTICE");  // the hub's cache is made of links
  write_model_folder(out.path(), Json{{"model_type", "x"}}, {}, {1000, source.path()});
  for (const fs::path& name : carried) EXPECT_EQ(read_file(out.path() / name), "content of " + name.string());
  EXPECT_FALSE(fs::is_symlink(out / "NOTICE"));
  EXPECT_EQ(read_file(out / "NOTICE"), "content of LICENSE");
  EXPECT_FALSE(fs::exists(out / "pytorch_model.bin"));
  EXPECT_EQ(read_file(out / "config.json"), "{\n  \"model_type\": \"x\"\n}\n");
}

TEST(ModelFolder, ReplacesOlderWeightsEvenThoseItReads) {
  const TemporaryFolder out;
  const ModelFolder golden(fs::path(CONVOY_TEST_DATA) / "qwen2" / "model");
  write_plain(out / "model-00001-of-00099.safetensors.partial", "of a save that was killed");
  write_model_folder(out.path(), golden.config(), sources_of(golden), {20000, {}});
  EXPECT_FALSE(fs::exists(out / "model-00001-of-00099.safetensors.partial"));
  {
    const ModelFolder again(out.path());
    write_model_folder(out.path(), again.config(), sources_of(again), {1'000'000, out.path()});
  }
  EXPECT_FALSE(fs::exists(out / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(out / "model-00001-of-00007.safetensors"));
  expect_same_model(golden, ModelFolder(out.path()));
}

TEST(ModelFolder, AFailedProducerLeavesTheFolderAsItWas) {
  const TemporaryFolder out;
  const ModelFolder golden(fs::path(CONVOY_TEST_DATA) / "qwen2" / "model");
  write_model_folder(out.path(), golden.config(), sources_of(golden));
  auto sources = sources_of(golden);
  sources.back().produce = [](const ByteSink&) { throw numerics_error("not finite"); };
  EXPECT_EQ(error_of([&] { write_model_folder(out.path(), Json::object(), sources, {20000, {}}); }), "not finite");
  expect_same_model(golden, ModelFolder(out.path()));
  for (const auto& entry : fs::directory_iterator(out.path())) EXPECT_NE(entry.path().extension(), ".partial");
  sources = sources_of(golden);
  sources.push_back(sources.front());
  EXPECT_THAT(error_of([&] { write_model_folder(out.path(), Json::object(), sources); }), HasSubstr("written twice"));
}

TEST(ModelFolder, WideElementsComeFirstSoThatAllAreAligned) {
  const TemporaryFolder out;
  const auto fill = [](std::size_t n) {
    return [n](const ByteSink& sink) { sink(std::vector<std::byte>(n, std::byte{7})); };
  };
  write_model_folder(out.path(), Json::object(),
                     {{"mask", {DType::kU8, {3}}, fill(3), true},
                      {"half", {DType::kBF16, {5}}, fill(10)},
                      {"wide", {DType::kF32, {2}}, fill(8)},
                      {"half2", {DType::kBF16, {1}}, fill(2)}});
  const ModelFolder model(out.path());
  EXPECT_THAT(model.names(), ElementsAre("wide", "half", "half2", "mask"));
  EXPECT_TRUE(model.tensor("mask").info->boolean);
  for (const std::string& name : model.names()) {
    EXPECT_EQ(model.tensor(name).info->begin % size_of(model.tensor(name).info->spec.dtype), 0u);
  }
}

TEST(ModelFolder, OpensOneFileWithoutAConfig) {
  const TemporaryFolder folder;
  write_tensors(folder / "adapter_model.safetensors", {"a"});
  const ModelFolder model(folder / "adapter_model.safetensors");
  EXPECT_THAT(model.names(), ElementsAre("a"));
  EXPECT_FALSE(model.has_config());
  EXPECT_THAT(error_of([&] { model.config(); }), HasSubstr("there is no config.json"));
  EXPECT_THAT(error_of([&] { model.tensor("b"); }), HasSubstr("the model has no tensor 'b'"));
}

TEST(ModelFolder, SaysWhyThereAreNoWeights) {
  const TemporaryFolder folder;
  const auto open = [&](Status expected) {
    Status status = Status::kDone;
    const std::string text = error_of([&] { ModelFolder{folder.path()}; }, &status);
    EXPECT_EQ(status, expected);
    return text;
  };
  EXPECT_THAT(error_of([&] { ModelFolder(folder / "none"); }), HasSubstr("no such model folder or file"));
  EXPECT_THAT(open(Status::kStorage), HasSubstr("there are no weights: neither model.safetensors nor"));
  write_plain(folder / "training_args.bin", "x");
  EXPECT_THAT(open(Status::kStorage), HasSubstr("there are no weights"));
  write_plain(folder / "pytorch_model-00001-of-00002.bin", "x");
  EXPECT_THAT(open(Status::kStorage),
              testing::AllOf(HasSubstr("pickles (pytorch_model-00001-of-00002.bin)"), HasSubstr("save_pretrained")));
  write_tensors(folder / "weights.safetensors", {"a"});
  EXPECT_THAT(open(Status::kStorage), HasSubstr("but weights.safetensors"));
  write_plain(folder / "adapter_config.json", "{}");
  EXPECT_THAT(open(Status::kStorage), HasSubstr("LoRA adapter"));
  write_tensors(folder / "model.safetensors", {"a"});
  EXPECT_THAT(open(Status::kStorage), HasSubstr("there is no config.json"));
  write_plain(folder / "config.json", "{,}");
  EXPECT_THAT(open(Status::kUsage), HasSubstr("config.json:1:2"));
  write_plain(folder / "config.json", "[]");
  EXPECT_THAT(open(Status::kUsage), HasSubstr("not a JSON object"));
}

TEST(ModelFolder, IndexAndShardsMustAgree) {
  const TemporaryFolder folder;
  write_plain(folder / "config.json", "{}");
  const auto index = [&](const std::string& text) { write_plain(folder / "model.safetensors.index.json", text); };
  Status status = Status::kDone;
  const auto open = [&] { return error_of([&] { ModelFolder{folder.path()}; }, &status); };

  index("{");
  EXPECT_THAT(open(), HasSubstr("the index is not valid JSON"));
  index("{}");
  EXPECT_THAT(open(), HasSubstr("no 'weight_map'"));
  index(R"({"weight_map":{}})");
  EXPECT_THAT(open(), HasSubstr("names no tensors"));
  index(R"({"weight_map":{"a":1}})");
  EXPECT_THAT(open(), HasSubstr("the file of tensor 'a' is not a string"));
  index(R"({"weight_map":{"a":"../x.safetensors"}})");
  EXPECT_THAT(open(), HasSubstr("'../x.safetensors' is not the name of a file inside"));
  index(R"({"weight_map":{"a":"/x.safetensors"}})");
  EXPECT_THAT(open(), HasSubstr("'/x.safetensors' is not the name of a file inside"));
  EXPECT_EQ(status, Status::kData);

  index(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"three.safetensors"}})");
  write_tensors(folder / "one.safetensors", {"a"});
  EXPECT_THAT(open(), HasSubstr("2 of 3 weights files are missing: three.safetensors, two.safetensors"));
  EXPECT_EQ(status, Status::kStorage);
  write_tensors(folder / "two.safetensors", {"c"});
  write_tensors(folder / "three.safetensors", {"d"});
  EXPECT_THAT(
      open(),
      HasSubstr("not in their files: 'b' (should be in two.safetensors), 'c' (should be in three.safetensors)"));
  EXPECT_EQ(status, Status::kData);
  write_tensors(folder / "two.safetensors", {"b"});
  write_tensors(folder / "three.safetensors", {"c", "d"});
  EXPECT_THAT(open(), HasSubstr("tensors that the index does not name: 'd' (in three.safetensors)"));
  write_tensors(folder / "three.safetensors", {"c", "a"});
  EXPECT_THAT(open(), HasSubstr("the tensor 'a' is in two files"));
  write_tensors(folder / "three.safetensors", {"c"});
  EXPECT_EQ(ModelFolder(folder.path()).names().size(), 3u);
}

TEST(ModelFolder, RefusesADiskThatIsTooSmall) {
  const TemporaryFolder out;
  const TensorSource huge{"w", {DType::kF32, {std::int64_t{1} << 50}}, [](const ByteSink&) { FAIL(); }};
  Status status = Status::kDone;
  EXPECT_THAT(error_of([&] { write_model_folder(out.path(), Json::object(), {huge}); }, &status),
              HasSubstr("not enough space on the disk: 4503599627370496 bytes"));
  EXPECT_EQ(status, Status::kStorage);
}

}  // namespace
}  // namespace convoy
