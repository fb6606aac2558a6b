#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
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

// The value of a code by the definition of its format: exponent and mantissa bits as numbers.
double value_of_code(int code, int mantissa_bits, int bias) {
  const int magnitude = code & 0x7f, exponent = magnitude >> mantissa_bits;
  const double fraction = static_cast<double>(magnitude & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits);
  const double size = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return code < 128 ? size : -size;
}

struct Fp8Format {
  const char* name;
  int mantissa_bits, bias, largest;  // the largest finite code
  float (*widen)(int code);
  int (*narrow)(float value);
};
const Fp8Format kFp8Formats[] = {
    {"E4M3", 3, 7, 0x7e, [](int code) { return to_float(F8E4M3{static_cast<std::uint8_t>(code)}); },
     [](float value) { return static_cast<int>(to_f8e4m3(value).bits); }},
    {"E5M2", 2, 15, 0x7b, [](int code) { return to_float(F8E5M2{static_cast<std::uint8_t>(code)}); },
     [](float value) { return static_cast<int>(to_f8e5m2(value).bits); }},
};

// The nearest finite code by search, the even one of two that are as near: no bit of a float is looked at.
int nearest_code(const Fp8Format& format, double value) {
  int best = 0;
  double least = 1e300;
  for (int code = 0; code <= format.largest; ++code) {
    const double distance = std::fabs(std::fabs(value) - value_of_code(code, format.mantissa_bits, format.bias));
    if (distance > least || (distance == least && code % 2 != 0)) continue;
    least = distance;
    best = code;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

TEST(DType, EightBitsHoldWhatTheirFormatSays) {
  for (const Fp8Format& format : kFp8Formats) {
    for (int code = 0; code < 256; ++code) {
      SCOPED_TRACE(fmt::format("{} {:#x}", format.name, code));
      const float value = format.widen(code);
      if ((code & 0x7f) > format.largest) {  // E5M2's infinities are no result of rounding, but can be read
        EXPECT_FALSE(std::isfinite(value));
        continue;
      }
      EXPECT_EQ(static_cast<double>(value), value_of_code(code, format.mantissa_bits, format.bias));
      EXPECT_EQ(format.narrow(value), code);
    }
  }
  EXPECT_EQ(to_float(F8E4M3{0x7e}), 448.0F);
  EXPECT_EQ(to_float(F8E5M2{0x7b}), 57344.0F);
}

TEST(DType, EightBitsRoundToTheNearestAndSaturate) {
  for (const Fp8Format& format : kFp8Formats) {
    SCOPED_TRACE(format.name);
    RandomStream random(8, 1);
    for (int i = 0; i < 20000; ++i) {
      // Any exponent around the format's, and values at and beside the middle of two codes.
      float value = std::ldexp(2 * static_cast<float>(random.uniform()) - 1, static_cast<int>(random.below(44)) - 24);
      if (i % 2 == 0) {
        const auto code = static_cast<int>(random.below(static_cast<std::uint64_t>(format.largest)));
        value = (format.widen(code) + format.widen(code + 1)) / 2;
        if (i % 4 == 0) value = std::nextafter(value, i % 8 == 0 ? 0.0F : 1e9F);
      }
      ASSERT_EQ(format.narrow(value), nearest_code(format, static_cast<double>(value))) << value;
    }
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float large : {infinity, std::numeric_limits<float>::max(), 1e6F}) {
      EXPECT_EQ(format.narrow(large), format.largest);
      EXPECT_EQ(format.narrow(-large), format.largest | 0x80);
    }
    EXPECT_TRUE(std::isnan(format.widen(format.narrow(std::numeric_limits<float>::quiet_NaN()))));
    EXPECT_EQ(format.narrow(-0.0F), 0x80);
  }
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
