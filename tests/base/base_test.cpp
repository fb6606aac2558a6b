#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/shape.h"
#include "base/suggest.h"

namespace convoy {
namespace {

TEST(DType, HalfRoundTripsEveryBitPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(value))));
    } else {
      EXPECT_EQ(to_f16(value).bits, half.bits) << bits;
    }
    const BF16 brain{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(brain);
    if (!std::isnan(wide)) {
      EXPECT_EQ(to_bf16(wide).bits, brain.bits);
    }
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  EXPECT_EQ(to_f16(1.0f + 0x1p-11f).bits, to_f16(1.0f).bits);
  EXPECT_EQ(to_f16(1.0f + 3 * 0x1p-11f).bits, to_f16(1.0f + 0x1p-9f).bits);
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7bffu);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00u);
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0u);
  EXPECT_EQ(to_f16(0x1.8p-25f).bits, 1u);
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, to_bf16(1.0f).bits);
  EXPECT_EQ(to_bf16(1.0f + 3 * 0x1p-8f).bits, to_bf16(1.0f + 0x1p-6f).bits);
}

TEST(Random, PhiloxMatchesThePublishedVectors) {
  // Random123's known-answer test for philox4x32-10.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
            (PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Random, PermutationIsOneAndDependsOnSeedAndStream) {
  const auto a = permutation(1000, 1, 0);
  EXPECT_EQ(std::set<std::uint64_t>(a.begin(), a.end()).size(), 1000u);
  EXPECT_EQ(a, permutation(1000, 1, 0));
  EXPECT_NE(a, permutation(1000, 1, 1));
  EXPECT_NE(a, permutation(1000, 2, 0));
}

TEST(Random, NormalHasUnitVariance) {
  RandomStream stream(7, 3);
  double sum = 0, squares = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = stream.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.015);
}

TEST(Error, SaysWhatWhereAndHow) {
  Error error = data_error("no field 'text'");
  error.at("a.jsonl:3").mend("name the field with --text-field");
  EXPECT_STREQ(error.what(), "no field 'text' [a.jsonl:3]; name the field with --text-field");
  EXPECT_EQ(error.status(), Status::kData);
}

TEST(Json, ParseErrorNamesLineAndColumn) {
  try {
    parse_json("{\n  \"a\": 1,\n  \"b\" 2\n}", "x.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.where().find("x.json:3:"), std::string::npos) << error.what();
  }
}

TEST(Json, ANumberBeyondTheRangeOfADoubleIsAnErrorOfTheFile) {
  try {
    parse_json("{\"a\": 1e999}", "x.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage);
    EXPECT_NE(std::string(error.what()).find("x.json"), std::string::npos) << error.what();
  }
}

TEST(Json, KeepsKeyOrder) {
  EXPECT_EQ(dump_json(parse_json(R"({"z":1,"a":[]})", "x")), "{\n  \"z\": 1,\n  \"a\": []\n}\n");
}

TEST(Files, AtomicWriteReplacesAndMapsBack) {
  const auto path = std::filesystem::temp_directory_path() / "convoy_base_test.txt";
  write_file_atomic(path, "one");
  write_file_atomic(path, "two!");
  EXPECT_EQ(read_file(path), "two!");
  EXPECT_EQ(MappedFile(path).text(), "two!");
  std::filesystem::remove(path);
  EXPECT_THROW(MappedFile{path}, Error);
  EXPECT_THROW(read_file(path), Error);
}

TEST(Hash, RunningEqualsWhole) {
  Hasher hasher;
  hasher.add("ab");
  hasher.add("c");
  EXPECT_EQ(hasher.value(), hash64(std::string_view("abc")));
}

TEST(Suggest, FindsTheSlipOfThePen) {
  const std::vector<std::string> known = {"learning_rate", "max_steps", "seed"};
  EXPECT_EQ(nearest_name("learning_rat", known), "learning_rate");
  EXPECT_EQ(nearest_name("zzzzzz", known), std::nullopt);
  EXPECT_EQ(nearest_name("num_procs", std::vector<std::string>{"num_nodes", "num_processes"}), "num_processes");
}

TEST(Parallel, RunsEachOnceAndRethrowsTheFirst) {
  std::atomic<int> sum = 0;
  parallel_for(100, [&](std::int64_t i) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 4950);
  try {
    parallel_for(100, [](std::int64_t i) {
      if (i % 10 == 7) throw data_error(std::to_string(i));
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "7");
  }
}

}  // namespace
}  // namespace convoy
