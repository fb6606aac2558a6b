#include "plan/ceilings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace convoy {
namespace {

constexpr const char* kWhole = R"({
  "version": 1, "card": "NVIDIA H200", "date": "2026-12-02", "dtype": "bf16", "matrix_product_tflops": 760.5,
  "copy_gb_per_second": 4300, "power_watts": 698.5,
  "matrix_products": [{"name": "qkv forward", "m": 8192, "n": 4608, "k": 3584, "tflops": 741.25},
                      {"m": 8192, "n": 3584, "k": 3584, "tflops": 720}],
  "attention": [{"seq": 4096, "heads": 28, "kv_heads": 4, "head_dim": 128, "forward_tflops": 560, "backward_tflops": 480}],
  "link": {"to_device_gb_per_second": 55.5, "to_host_gb_per_second": 54, "both_gb_per_second": 90}
})";

// The error for the whole file with `change` merged in (RFC 7386: null removes).
std::string error_of(const std::string& change) {
  Json object = Json::parse(kWhole);
  object.merge_patch(Json::parse(change));
  try {
    parse_ceilings(object.dump(), "h200.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage);
    EXPECT_EQ(error.where(), "h200.json");
    EXPECT_NE(error.remedy().find("docs/benchmarks.md"), std::string::npos);
    return error.message();
  }
  ADD_FAILURE() << "no error for " << change;
  return "";
}

TEST(Ceilings, ReadsAndWritesAWholeFile) {
  const Ceilings ceilings = parse_ceilings(kWhole, "h200.json");
  EXPECT_EQ(ceilings.card, "NVIDIA H200");
  EXPECT_EQ(ceilings.date, "2026-12-02");
  EXPECT_EQ(ceilings.dtype, "bf16");
  EXPECT_EQ(ceilings.matrix_product, 760.5);
  EXPECT_EQ(ceilings.copy, 4300.0);
  EXPECT_EQ(ceilings.power, 698.5);
  ASSERT_EQ(ceilings.matrix_products.size(), 2u);
  EXPECT_EQ(ceilings.matrix_products[0].name, "qkv forward");
  EXPECT_EQ(ceilings.matrix_products[0].n, 4608);
  EXPECT_EQ(ceilings.matrix_products[0].tflops, 741.25);
  EXPECT_EQ(ceilings.matrix_products[1].name, "");
  ASSERT_EQ(ceilings.attention.size(), 1u);
  EXPECT_EQ(ceilings.attention[0].kv_heads, 4);
  EXPECT_EQ(ceilings.attention[0].backward_tflops, 480);
  ASSERT_TRUE(ceilings.link.has_value());
  EXPECT_EQ(ceilings.link->to_device, 55.5);
  EXPECT_EQ(ceilings.link->both, 90.0);
  EXPECT_EQ(Json::parse(ceilings_text(ceilings)), Json::parse(kWhole));
}

TEST(Ceilings, ProductsOfSeveralTypesAndLinksBetweenCards) {
  Json object = Json::parse(kWhole);
  object["matrix_products"].push_back({{"m", 1}, {"n", 2}, {"k", 3}, {"tflops", 50.5}, {"dtype", "f32"}});
  object["matrix_products"].push_back({{"m", 1}, {"n", 2}, {"k", 3}, {"tflops", 380}, {"dtype", "tf32"}});
  object["matrix_products"].push_back({{"m", 1}, {"n", 2}, {"k", 3}, {"tflops", 800}, {"dtype", "bf16"}});
  object["peer_links"] = {{{"from", 0}, {"to", 1}, {"gb_per_second", 370.5}, {"both_gb_per_second", 700}},
                          {{"from", 1}, {"to", 0}, {"gb_per_second", 25}}};
  const Ceilings ceilings = parse_ceilings(object.dump(), "f");
  EXPECT_EQ(ceilings.matrix_products[0].dtype, "");
  EXPECT_EQ(ceilings.best_product("f32"), 50.5);
  EXPECT_EQ(ceilings.best_product("tf32"), 380);
  EXPECT_EQ(ceilings.best_product("bf16"), 800);   // more than the file's own ceiling
  EXPECT_EQ(ceilings.best_product("f16"), 760.5);  // not measured
  ASSERT_EQ(ceilings.peer_links.size(), 2u);
  EXPECT_EQ(ceilings.peer_links[0].to, 1);
  EXPECT_EQ(ceilings.peer_links[0].both, 700.0);
  EXPECT_FALSE(ceilings.peer_links[1].both.has_value());
  EXPECT_EQ(Json::parse(ceilings_text(ceilings)), object);
  EXPECT_EQ(error_of(R"({"peer_links": [{"from": -1, "to": 1, "gb_per_second": 1}]})"),
            "`peer_links[0].from` must be the number of a card, it is -1");
}

TEST(Ceilings, EachCardHasItsPlace) {
  ::setenv("CONVOY_CACHE_DIR", "/some/where", 1);
  EXPECT_EQ(ceilings_path("NVIDIA H200"), "/some/where/ceilings-NVIDIA_H200.json");
  ::unsetenv("CONVOY_CACHE_DIR");
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(ceilings_path("a/b, 2 threads"), "/cache/convoy/ceilings-a_b__2_threads.json");
  ::unsetenv("XDG_CACHE_HOME");
}

TEST(Ceilings, OnlyTheProductIsNeeded) {
  const std::string least =
      R"({"version":1,"card":"x","date":"2026-01-31","dtype":"bf16","matrix_product_tflops":1,"link":null})";
  const Ceilings ceilings = parse_ceilings(least, "f");
  EXPECT_FALSE(ceilings.copy.has_value());
  EXPECT_FALSE(ceilings.link.has_value());
  EXPECT_TRUE(ceilings.matrix_products.empty());
  EXPECT_EQ(parse_ceilings(ceilings_text(ceilings), "f").matrix_product, 1);
}

TEST(Ceilings, ErrorsNameTheKey) {
  EXPECT_EQ(error_of(R"({"version": 2})"), "`version` must be 1, it is 2");
  EXPECT_EQ(error_of(R"({"version": null})"), "`version` is missing");
  EXPECT_EQ(error_of(R"({"card": ""})"), "`card` must be a text, it is \"\"");
  EXPECT_EQ(error_of(R"({"date": "yesterday"})"), "`date` must be YYYY-MM-DD, it is \"yesterday\"");
  EXPECT_EQ(error_of(R"({"matrix_product_tflops": null})"), "`matrix_product_tflops` is missing");
  EXPECT_EQ(error_of(R"({"matrix_product_tflops": 0})"), "`matrix_product_tflops` must be a number above 0, it is 0");
  EXPECT_EQ(error_of(R"({"copy_gb_per_second": "4300"})"),
            "`copy_gb_per_second` must be a number above 0, it is \"4300\"");
  EXPECT_EQ(error_of(R"({"matrix_product_tflop": 3})"),
            "`matrix_product_tflop` is not known here, did you mean 'matrix_product_tflops'?");
  EXPECT_EQ(error_of(R"({"attention": {}})"), "`attention` must be a list, it is {}");
  EXPECT_EQ(error_of(R"({"attention": [3]})"), "`attention[0]` must be a JSON object");
  EXPECT_EQ(error_of(R"({"matrix_products": [{"m": 1, "n": 1, "k": 1.5, "tflops": 1}]})"),
            "`matrix_products[0].k` must be a whole number above 0, it is 1.5");
  EXPECT_EQ(error_of(R"({"link": {"to_host_gb_per_second": null}})"), "`link.to_host_gb_per_second` is missing");
  EXPECT_EQ(error_of(R"({"link": {"speed": 1}})"), "`link.speed` is not known here");
}

TEST(Ceilings, FilesThatAreNone) {
  EXPECT_THROW(parse_ceilings("[]", "f"), Error);
  EXPECT_THROW(parse_ceilings("", "f"), Error);
  EXPECT_THROW(parse_ceilings(R"({"version": 1e999})", "f"), Error);
  EXPECT_THROW(read_ceilings("/no/such/ceilings.json"), Error);
  const auto file = std::filesystem::path(testing::TempDir()) / ("ceilings_" + std::to_string(::getpid()) + ".json");
  write_file_atomic(file, kWhole);
  EXPECT_EQ(read_ceilings(file).card, "NVIDIA H200");
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace convoy
