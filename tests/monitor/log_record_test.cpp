#include "monitor/log_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "monitor_support.h"

namespace convoy {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LogRecord, Texts) {
  const LogRecord record = {
      {"loss", 1.25}, {"grad_norm", kNan},   {"learning_rate", 5e-5},      {"step", std::int64_t{7}},
      {"best", true}, {"worst", -kInfinity}, {"name", std::string("a\"b")}};
  EXPECT_EQ(
      record_text(record, NotFinite::kStrict),
      R"({"loss":1.25,"grad_norm":"NaN","learning_rate":5e-05,"step":7,"best":true,"worst":"-Infinity","name":"a\"b"})");
  EXPECT_EQ(
      record_text(record, NotFinite::kPython),
      R"({"loss":1.25,"grad_norm":NaN,"learning_rate":5e-05,"step":7,"best":true,"worst":-Infinity,"name":"a\"b"})");
  EXPECT_EQ(python_dict(record),
            "{'loss': 1.25, 'grad_norm': nan, 'learning_rate': 5e-05, 'step': 7, 'best': True, 'worst': -inf, 'name': "
            "'a\"b'}");
  EXPECT_EQ(python_dict({{"x", kInfinity}, {"y", false}}), "{'x': inf, 'y': False}");
}

TEST(LogRecord, NumberIn) {
  const LogRecord record = {{"loss", 1.5}, {"step", std::int64_t{3}}, {"name", std::string("x")}};
  EXPECT_EQ(number_in(record, "loss"), 1.5);
  EXPECT_EQ(number_in(record, "step"), 3.0);
  EXPECT_EQ(number_in(record, "name"), std::nullopt);
  EXPECT_EQ(number_in(record, "other"), std::nullopt);
}

TEST(LogRecord, PythonJsonIsReadAndWritten) {
  const Json value =
      parse_python_json(R"({"a": NaN, "b": [Infinity, -Infinity, 1], "c": "NaN \" Infinity", "d": "\\"})", "f");
  EXPECT_TRUE(std::isnan(*number_of(value["a"])));
  EXPECT_EQ(number_of(value["b"][0]), kInfinity);
  EXPECT_EQ(number_of(value["b"][1]), -kInfinity);
  EXPECT_EQ(number_of(value["b"][2]), 1.0);
  EXPECT_EQ(value["c"], "NaN \" Infinity");
  EXPECT_EQ(number_of(value["c"]), std::nullopt);
  EXPECT_TRUE(std::isnan(*number_of(Json(nullptr))));
  EXPECT_EQ(dump_python_json(value),
            "{\n  \"a\": NaN,\n  \"b\": [\n    Infinity,\n    -Infinity,\n    1\n  ],\n"
            "  \"c\": \"NaN \\\" Infinity\",\n  \"d\": \"\\\\\"\n}\n");
}

TEST(LogRecord, RecordOfJson) {
  const Json object = parse_python_json(
      R"({"loss": 1.5, "step": 3, "big": 18446744073709551615, "nan": NaN, "none": null, "t": true, "s": "x", "l": [1, {"a": 2}]})",
      "f");
  const LogRecord record = record_of(object);
  ASSERT_EQ(record.size(), 8u);
  EXPECT_EQ(record[0].second, LogValue(1.5));
  EXPECT_EQ(record[1].second, LogValue(std::int64_t{3}));
  EXPECT_EQ(record[2].second, LogValue(18446744073709551615.0));
  EXPECT_TRUE(std::isnan(std::get<double>(record[3].second)));
  EXPECT_TRUE(std::isnan(std::get<double>(record[4].second)));
  EXPECT_EQ(record[5].second, LogValue(true));
  EXPECT_EQ(record[6].second, LogValue(std::string("x")));
  EXPECT_EQ(record[7].second, LogValue(std::string("[1,{\"a\":2}]")));
  EXPECT_EQ(message_of(Status::kData, [] { record_of(Json(3)); }), "a log entry must be a JSON object");
}

}  // namespace
}  // namespace convoy
