#include "config/config_node.h"

#include <nlohmann/json.hpp>
#include <random>

#include "config/value.h"
#include "config_support.h"

namespace convoy {
namespace {

TEST(ConfigNode, EscapesOutsideUtf8AreRefused) {
  for (const char* text : {R"(a: "x\_y")", R"(a: "x\Ny")", R"({"b\_": 1})"}) {
    EXPECT_THROW(parse_yaml(text, "run.yaml"), Error) << text;
  }
}

std::string yaml_error(const std::string& text) {
  return usage_message([&] { parse_yaml(text, "run.yaml"); });
}
std::string json_error(const std::string& text) {
  return usage_message([&] { parse_json_tree(text, "run.json"); });
}

TEST(ConfigNode, LinesAndKinds) {
  const ConfigNode root =
      parse_yaml("# head\na: 1\nb:\n  - x\n  - 'y'\nc: {d: null, e: [1, 2]}\nf: ~\ng:\n", "run.yaml");
  ASSERT_EQ(root.entries.size(), 5u);
  EXPECT_EQ(root.entries[0].value.line, 2);
  EXPECT_EQ(root.entries[1].value.line, 3);
  EXPECT_EQ(root.entries[1].value.items[1].line, 5);
  EXPECT_TRUE(root.entries[1].value.items[1].quoted);
  EXPECT_EQ(root.entries[2].value.line, 6);
  EXPECT_EQ(root.entries[3].value.kind, ConfigNode::Kind::kNull);
  EXPECT_EQ(root.entries[4].value.kind, ConfigNode::Kind::kNull);
  EXPECT_EQ(root.entries[4].value.line, 8);
  EXPECT_EQ(to_json(root).dump(), R"({"a":1,"b":["x","y"],"c":{"d":null,"e":[1,2]},"f":null,"g":null})");
}

TEST(ConfigNode, PlainScalarsAreTyped) {
  const Json value =
      to_json(parse_yaml("{a: 1e-5, b: 5e-05, c: .5, d: yes, e: true, f: '1', g: -3, h: 1.0, i: .nan, j: 0x1f}", "f"));
  EXPECT_EQ(value.dump(),
            R"({"a":1e-05,"b":5e-05,"c":0.5,"d":"yes","e":true,"f":"1","g":-3,"h":1.0,"i":".nan","j":"0x1f"})");
}

TEST(ConfigNode, AliasesAreCopied) {
  const ConfigNode root = parse_yaml("a: &x [1, {k: v}]\nb: *x\n", "f");
  EXPECT_EQ(to_json(root).dump(), R"({"a":[1,{"k":"v"}],"b":[1,{"k":"v"}]})");
}

TEST(ConfigNode, EmptyFiles) {
  EXPECT_TRUE(parse_yaml("", "f").entries.empty());
  EXPECT_TRUE(parse_yaml("# nothing\n---\n", "f").entries.empty());
  EXPECT_TRUE(parse_json_tree("{}", "f").entries.empty());
}

TEST(ConfigNode, YamlErrors) {
  EXPECT_EQ(yaml_error("a: 1\nb: 2\na: 3"), "the key `a` is given twice (first on line 1) [run.yaml:3]");
  EXPECT_EQ(
      yaml_error("x: &d {a: 1}\ny:\n  <<: *d\n"),
      "YAML merge keys (`<<`) are not supported [run.yaml:3]; write the keys out, or use an alias for a whole value");
  EXPECT_EQ(yaml_error("a: 1\n---\nb: 2\n"), "a second YAML document; a run file is one [run.yaml:3]");
  EXPECT_EQ(yaml_error("- a\n"), "a run file is a map of keys [run.yaml:1]; write `key: value` lines");
  EXPECT_EQ(yaml_error("word"), "a run file is a map of keys [run.yaml:1]; write `key: value` lines");
  EXPECT_EQ(yaml_error("a: !secret x"), "the YAML tag !secret is not supported [run.yaml:1]");
  EXPECT_EQ(yaml_error("? [a]\n: 1"), "a key must be plain text [run.yaml:1]");
  EXPECT_EQ(yaml_error("~: 1"), "a key is missing [run.yaml:1]");
  EXPECT_EQ(yaml_error("a: \xff"), "not UTF-8 text [run.yaml]; save the file as UTF-8");
  EXPECT_NE(yaml_error("a: [1, 2\nb: 3").find("not valid YAML: "), std::string::npos);
  EXPECT_NE(yaml_error("a: [1, 2\nb: 3").find("[run.yaml:"), std::string::npos);
  EXPECT_NE(yaml_error("a: *nothing").find("not valid YAML: "), std::string::npos);
  EXPECT_EQ(yaml_error("a: &x [*x]"), "an alias refers to a value that contains it or does not exist [run.yaml:1]");
}

TEST(ConfigNode, DepthAndSizeAreBounded) {
  EXPECT_EQ(yaml_error("a: " + std::string(100, '[') + std::string(100, ']')),
            "nested deeper than 64 levels [run.yaml:1]");
  EXPECT_EQ(json_error("{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}"),
            "nested deeper than 64 levels [run.json:1]");
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k == 0 ? "*a" : ", *a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(yaml_error(bomb), "too many values for a run file [run.yaml:3]");
}

TEST(ConfigNode, JsonErrors) {
  EXPECT_EQ(json_error("{\"a\": 1,\n \"a\": 2}"), "the key `a` is given twice (first on line 1) [run.json:2]");
  EXPECT_NE(json_error("{\"a\": 1,}").find("not valid JSON: "), std::string::npos);
  EXPECT_NE(json_error("{\"a\": NaN}").find("[run.json:1:"), std::string::npos);
  EXPECT_NE(json_error("").find("not valid JSON"), std::string::npos);
  EXPECT_EQ(json_error("[1]"), "a run file is a map of keys [run.json:1]; write `key: value` lines");
  EXPECT_EQ(json_error("{\"a\": \"\\u0000\"}"), "text holds a NUL character [run.json:1]");
}

TEST(ConfigNode, JsonLinesAreThoseOfTheKeys) {
  const ConfigNode root = parse_json_tree("{\n\"a\":\n1\n,\n\"b\": {\n\"c\": [\n1, 2]}}", "f");
  EXPECT_EQ(root.entries[0].value.line, 2);
  EXPECT_EQ(root.entries[1].value.line, 5);
  EXPECT_EQ(root.entries[1].value.entries[0].value.line, 6);
}

TEST(ConfigNode, Utf8) {
  EXPECT_TRUE(is_clean_utf8("aé日😀"));
  for (const char* bad : {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\x97", "\xff"})
    EXPECT_FALSE(is_clean_utf8(bad)) << bad;
  EXPECT_FALSE(is_clean_utf8(std::string_view("a\0b", 3)));
}

TEST(SettingValue, Integers) {
  EXPECT_EQ(parse_integer("12"), 12);
  EXPECT_EQ(parse_integer("+3"), 3);
  EXPECT_EQ(parse_integer("-7"), -7);
  EXPECT_EQ(parse_integer("2e8"), 200'000'000);
  EXPECT_EQ(parse_integer("8.0"), 8);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  for (const char* bad : {"", "1.5", "x", "1e300", "9223372036854775808", "1 2", "0x10"})
    EXPECT_EQ(parse_integer(bad), std::nullopt) << bad;
}

TEST(SettingValue, Reals) {
  EXPECT_EQ(parse_real("1e-4"), 1e-4);
  EXPECT_EQ(parse_real("+.5"), 0.5);
  for (const char* bad : {"", "nan", "inf", "1e999", "x", "1,5", "-"}) EXPECT_EQ(parse_real(bad), std::nullopt) << bad;
}

TEST(SettingValue, Bytes) {
  EXPECT_EQ(parse_bytes("12GiB"), 12LL << 30);
  EXPECT_EQ(parse_bytes("1.5 kb"), 1500);
  EXPECT_EQ(parse_bytes("7"), 7);
  EXPECT_EQ(parse_bytes("7B"), 7);
  EXPECT_EQ(parse_bytes("2TB"), 2'000'000'000'000);
  for (const char* bad : {"", "GiB", "12G", "x MB", "1e30TiB", "1.5B"})
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  EXPECT_EQ(bytes_text(12LL << 30), "12GiB");
  EXPECT_EQ(bytes_text(1500), "1500");
  EXPECT_EQ(bytes_text(0), "0");
}

TEST(SettingValue, YamlTextReadsBack) {
  std::mt19937 random(3);
  const std::string alphabet = "ab1 :#-'\"\\\n\t[]{},&*!|>%@`~?=.<é日e+_/\x7f";
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (std::size_t i = random() % 9; i > 0; --i) {
      std::size_t at = random() % alphabet.size();
      if ((static_cast<unsigned char>(alphabet[at]) & 0x80u) != 0) at = 0;
      text += alphabet[at];
    }
    const Json value = {{text, Json::array({text, 1, 2.5, true, nullptr})}};
    EXPECT_EQ(to_json(parse_yaml("k: " + yaml_text(value), "f"))["k"], value) << yaml_text(value);
  }
}

}  // namespace
}  // namespace convoy
