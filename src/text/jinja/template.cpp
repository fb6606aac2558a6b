#include "text/jinja/template.h"

#include <functional>

#include "text/jinja/interpreter.h"

namespace convoy::jinja {
namespace {

bool generates(const Block& block) {
  for (const auto& statement : block) {
    if (statement->kind == StatementKind::kGeneration || generates(statement->body) || generates(statement->otherwise))
      return true;
    for (const auto& [condition, body] : statement->branches) {
      if (generates(body)) return true;
    }
  }
  return false;
}

}  // namespace

Template::Template(std::string_view source, std::string name)
    : name_(std::move(name)), body_(parse_template(source, name_)), has_generation_(generates(body_)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Rendered Template::render(const Dict& variables, std::time_t now, const Limits& limits) const {
  Interpreter interpreter(name_, limits, now);
  return interpreter.run(body_, variables);
}

}  // namespace convoy::jinja
