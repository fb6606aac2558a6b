// Templates against renderings by Python's jinja2 (tools/make_chat_template_cases.py), errors and limits.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja/template.h"

namespace convoy::jinja {
namespace {

std::string render(const std::string& source, const std::string& variables = "{}", const Limits& limits = {}) {
  return Template(source, "t.jinja").render(*from_json(parse_json(variables, "variables")).dict(), 0, limits).text;
}

std::string failure(const std::string& source, const Limits& limits = {}) {
  try {
    render(source, "{}", limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Jinja, RendersAsPythonDoes) {
  const Json data = read_json(std::string(CONVOY_TEXT_DATA) + "/jinja_cases.json");
  const Json& cases = data["cases"];
  ASSERT_GT(cases.size(), 50u);
  for (const Json& each : cases) {
    const std::string source = each["template"];
    const auto variables = from_json(each.contains("variables") ? each["variables"] : data["variables"]);
    std::string got;
    Rendered made;
    try {
      made = Template(source, "t.jinja").render(*variables.dict(), 0);
      got = made.text;
    } catch (const Error& error) {
      got = std::string("error: ") + error.what();
      if (each["expected"].is_null()) continue;
    }
    if (each["expected"].is_null()) {
      ADD_FAILURE() << "no error for " << source << "\nbut " << got;
      continue;
    }
    EXPECT_EQ(got, each["expected"].get<std::string>()) << source;
    if (!each.contains("generated")) continue;
    std::vector<std::string> parts;
    for (const auto& [begin, end] : made.generated) parts.push_back(made.text.substr(begin, end - begin));
    EXPECT_EQ(parts, each["generated"].get<std::vector<std::string>>()) << source;
  }
}

TEST(Jinja, ErrorsNameLineAndRemedy) {
  EXPECT_NE(failure("a\n{% if x %}\nb").find("'endif'"), std::string::npos);
  EXPECT_NE(failure("a\n\n{{ x | tojsn }}").find("there is no filter 'tojsn'"), std::string::npos);
  EXPECT_NE(failure("a\n\n{{ x | tojsn }}").find("tojson"), std::string::npos);
  EXPECT_NE(failure("a\n\n{{ x | tojsn }}").find("t.jinja:3"), std::string::npos);
  EXPECT_NE(failure("{% include 'x' %}").find("'include' is not supported"), std::string::npos);
  EXPECT_NE(failure("{{ 'abc }}").find("closing quote"), std::string::npos);
  EXPECT_NE(failure("\n{{ nothing.at_all }}").find("'nothing' is undefined and has no 'at_all' [t.jinja:2]"),
            std::string::npos)
      << failure("\n{{ nothing.at_all }}");
  EXPECT_NE(failure("\n\n{{ raise_exception('roles must alternate') }}").find("roles must alternate"),
            std::string::npos);
  EXPECT_NE(failure("{{ [].append(1) }}").find("would change a list"), std::string::npos);
}

TEST(Jinja, NeverEndsInACrash) {
  Limits small;
  small.steps = 100000;
  small.text = 1u << 16;
  small.items = 1u << 12;
  EXPECT_NE(failure("{% for i in range(4000) %}{% for j in range(4000) %}{% endfor %}{% endfor %}", small)
                .find("does not end"),
            std::string::npos);
  EXPECT_NE(failure("{{ range(100000000) }}", small).find("more than"), std::string::npos);
  EXPECT_NE(failure("{{ 'abc' * 1000000000000 }}", small).find("bytes"), std::string::npos);
  EXPECT_NE(failure("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}").find("too deeply"), std::string::npos);
  EXPECT_NE(failure("{% set ns = namespace(x=[]) %}{% for i in range(4000) %}{% set ns.x = [ns.x] %}{% endfor %}")
                .find("nested more than"),
            std::string::npos);
  EXPECT_NE(failure("{% set ns = namespace() %}{% set ns.x = ns %}").find("a namespace inside"), std::string::npos);
  EXPECT_NE(
      failure("{% set ns = namespace(x='ab') %}{% for i in range(4000) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
              small)
          .find("bytes"),
      std::string::npos);
  EXPECT_NE(failure("{{ " + std::string(3000, '(') + "1" + std::string(3000, ')') + " }}").find("too deeply"),
            std::string::npos);
  std::string sum = "1";
  for (int i = 0; i < 3000; ++i) sum += " + 1";
  EXPECT_NE(failure("{{ " + sum + " }}").find("too many parts"), std::string::npos);
  std::string ifs;
  for (int i = 0; i < 3000; ++i) ifs += "{% if 1 %}";
  EXPECT_NE(failure(ifs).find("too deeply"), std::string::npos);
  EXPECT_NE(failure("{{ 9223372036854775807 + 1 }}").find("64 bits"), std::string::npos);
  EXPECT_NE(failure("{{ (-9223372036854775807 - 1) // -1 }}").find("64 bits"), std::string::npos);
  EXPECT_NE(failure("{{ 1 % 0 }}").find("division by zero"), std::string::npos);
}

}  // namespace
}  // namespace convoy::jinja
