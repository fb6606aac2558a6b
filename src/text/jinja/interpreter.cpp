#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/jinja/lexer.h"

namespace convoy::jinja {
namespace {

constexpr int kDeepestCall = 600;

// Adds the line to an error that has none yet.
template <typename Run>
auto located(const std::string& name, int line, Run run) {
  try {
    return run();
  } catch (Error& error) {
    if (error.where().empty()) error.at(place(name, line));
    throw;
  }
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  const std::int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    if (const auto found = scope->names.find(name); found != scope->names.end()) return &found->second;
  }
  return nullptr;
}

Rendered Interpreter::run(const Block& body, const Dict& variables) {
  auto globals = std::make_shared<Scope>();
  add_globals(*globals);
  for (const auto& [key, value] : variables.entries) globals->names[key.string()] = value;
  auto scope = std::make_shared<Scope>();
  scope->parent = globals;
  run_block(body, scope);
  return {std::move(out_), std::move(generated_)};
}

void Interpreter::count(std::int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps)
    throw data_error(fmt::format("the template does not end: more than {} steps", limits_.steps));
}

void Interpreter::check_size(std::size_t bytes) const {
  if (bytes > limits_.text)
    throw data_error(fmt::format("the template makes a text of more than {} bytes", limits_.text));
}

Value Interpreter::text(std::string made) {
  check_size(made.size());
  count(static_cast<std::int64_t>(made.size() / 64));
  return made;
}

Value Interpreter::list(std::vector<Value> made) {
  if (made.size() > limits_.items) throw data_error(fmt::format("a list of more than {} items", limits_.items));
  count(static_cast<std::int64_t>(made.size()));
  return Value::list(std::move(made));
}

void Interpreter::write(std::string_view text) {
  check_size(out_.size() + text.size());
  count(static_cast<std::int64_t>(text.size() / 64));
  out_ += text;
}

Interpreter::Flow Interpreter::run_block(const Block& block, const ScopePtr& scope) {
  for (const auto& statement : block) {
    const Flow flow = located(name_, statement->line, [&] { return run_statement(*statement, scope); });
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_statement(const Statement& s, const ScopePtr& scope) {
  count(1);
  switch (s.kind) {
    case StatementKind::kText:
      write(s.text);
      break;
    case StatementKind::kOutput:
      write(to_text(evaluate(*s.expression, scope)));
      break;
    case StatementKind::kIf:
      return run_branches(s, scope);
    case StatementKind::kFor:
      run_loop(s, scope);
      break;
    case StatementKind::kSet:
      run_set(s, scope);
      break;
    case StatementKind::kMacro:
      define_macro(s, scope);
      break;
    case StatementKind::kFilter: {
      const Value body = text(capture(s.body, scope));
      write(to_text(filtered(*s.expression, &body, scope)));
      break;
    }
    case StatementKind::kGeneration: {
      if (captures_ > 0) throw data_error("a generation tag inside of a macro or a captured block cannot be located");
      auto inner = std::make_shared<Scope>();
      inner->parent = scope;
      const std::size_t begin = out_.size();
      run_block(s.body, inner);
      generated_.emplace_back(begin, out_.size());
      break;
    }
    case StatementKind::kWith: {
      auto inner = std::make_shared<Scope>();
      inner->parent = scope;
      for (const auto& [name, value] : s.parameters) inner->names[name] = evaluate(*value, scope);
      return run_block(s.body, inner);
    }
    case StatementKind::kDo:
      evaluate(*s.expression, scope);
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_branches(const Statement& s, const ScopePtr& scope) {
  for (const auto& [condition, body] : s.branches) {
    if (!condition || evaluate(*condition, scope).truth()) return run_block(body, scope);
  }
  return Flow::kNext;
}

void Interpreter::run_loop(const Statement& s, const ScopePtr& scope) {
  std::vector<Value> all = items(evaluate(*s.expression, scope));
  if (s.condition) {
    std::erase_if(all, [&](const Value& each) {
      auto inner = std::make_shared<Scope>();
      inner->parent = scope;
      assign(s.targets, each, inner);
      return !evaluate(*s.condition, inner).truth();
    });
  }
  if (all.empty()) {
    run_block(s.otherwise, scope);
    return;
  }
  const std::size_t n = all.size();
  const auto previous_change = std::make_shared<std::optional<Value>>();
  for (std::size_t i = 0; i < n; ++i) {
    auto inner = std::make_shared<Scope>();
    inner->parent = scope;
    Dict loop;
    const auto put = [&](const char* key, Value value) { loop.entries.emplace_back(key, std::move(value)); };
    put("index", i + 1);
    put("index0", i);
    put("revindex", n - i);
    put("revindex0", n - i - 1);
    put("first", i == 0);
    put("last", i + 1 == n);
    put("length", n);
    put("previtem", i > 0 ? all[i - 1] : Value(Undefined{"loop.previtem"}));
    put("nextitem", i + 1 < n ? all[i + 1] : Value(Undefined{"loop.nextitem"}));
    put("cycle", Callable{"cycle",
                          [i](Interpreter&, Arguments& a) {
                            if (a.positional.empty()) throw data_error("loop.cycle needs something to choose from");
                            return a.positional[i % a.positional.size()];
                          },
                          nullptr});
    put("changed", Callable{"changed",
                            [previous_change](Interpreter&, Arguments& a) {
                              const Value now = Value::list(a.positional);
                              if (now.nesting().has_namespace || now.nesting().depth > 2 ||
                                  std::any_of(a.positional.begin(), a.positional.end(),
                                              [](const Value& each) { return each.callable() != nullptr; }))
                                throw data_error("loop.changed compares simple values only");
                              const bool changed = !*previous_change || !equal(now, **previous_change);
                              *previous_change = now;
                              return Value(changed);
                            },
                            nullptr});
    inner->names["loop"] = std::move(loop);
    assign(s.targets, all[i], inner);
    if (run_block(s.body, inner) == Flow::kBreak) break;
  }
}

void Interpreter::run_set(const Statement& s, const ScopePtr& scope) {
  if (s.expression) return assign(s.targets, evaluate(*s.expression, scope), scope);
  Value body = text(capture(s.body, scope));
  if (s.condition) body = filtered(*s.condition, &body, scope);
  assign(s.targets, body, scope);
}

std::string Interpreter::capture(const Block& block, const ScopePtr& scope) {
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  std::string outer = std::exchange(out_, {});
  ++captures_;
  run_block(block, inner);
  --captures_;
  return std::exchange(out_, std::move(outer));
}

void Interpreter::assign(const std::vector<ExpressionPtr>& targets, const Value& value, const ScopePtr& scope) {
  if (targets.size() == 1) return assign(*targets.front(), value, scope);
  const std::vector<Value> parts = items(value);
  if (parts.size() != targets.size())
    throw data_error(fmt::format("{} values for {} names", parts.size(), targets.size()));
  for (std::size_t i = 0; i < parts.size(); ++i) assign(*targets[i], parts[i], scope);
}

void Interpreter::assign(const Expression& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == ExpressionKind::kName) {
    scope->names[target.text] = value;
    return;
  }
  const Value object = evaluate(*target.operands[0], scope);
  Dict* dict = object.dict();
  if (dict == nullptr || !dict->is_namespace)
    throw data_error(fmt::format("only attributes of a namespace can be set, '{}' is {}", target.operands[0]->text,
                                 object.type_name()));
  if (value.nesting().has_namespace) throw data_error("a namespace inside of a namespace");
  dict->set(target.text, value);
}

void Interpreter::define_macro(const Statement& s, const ScopePtr& scope) {
  const std::weak_ptr<Scope> weak = scope;
  scope->names[s.text] = Callable{s.text,
                                  [&s, weak](Interpreter& in, Arguments& a) {
                                    const ScopePtr outer = weak.lock();
                                    if (!outer) throw data_error(fmt::format("macro '{}' outlives its scope", s.text));
                                    return in.run_macro(s, outer, a);
                                  },
                                  nullptr};
}

Value Interpreter::run_macro(const Statement& s, const ScopePtr& scope, Arguments& a) {
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  if (a.positional.size() > s.parameters.size())
    throw data_error(
        fmt::format("macro '{}' takes {} arguments, not {}", s.text, s.parameters.size(), a.positional.size()));
  for (const auto& [key, value] : a.named) {
    if (std::none_of(s.parameters.begin(), s.parameters.end(), [&](const auto& p) { return p.first == key; }))
      throw data_error(fmt::format("macro '{}' has no argument '{}'", s.text, key));
  }
  for (std::size_t i = 0; i < s.parameters.size(); ++i) {
    const auto& [key, fallback] = s.parameters[i];
    const Value* given = argument(a, i, key);
    inner->names[key] = given != nullptr ? *given : fallback ? evaluate(*fallback, inner) : Value(Undefined{key});
  }
  return text(capture(s.body, inner));
}

Value Interpreter::call(const Value& callee, Arguments& a) {
  const Callable* callable = callee.callable();
  if (callable == nullptr) {
    if (callee.is_undefined())
      throw data_error(fmt::format("'{}' is undefined and cannot be called", callee.undefined().what));
    throw data_error(fmt::format("{} cannot be called", callee.type_name()));
  }
  return callable->call(*this, a);
}

std::vector<Value> Interpreter::items(const Value& value) {
  std::vector<Value> all;
  if (const Sequence* s = value.sequence()) {
    all = s->items;
  } else if (const Dict* d = value.dict(); d != nullptr && !d->is_namespace) {
    for (const auto& [key, item] : d->entries) all.push_back(key);
  } else if (value.is_string()) {
    for (const std::string_view each : characters(value.string())) all.emplace_back(each);
  } else if (!value.is_undefined()) {
    throw data_error(fmt::format("{} has no items to go through", value.type_name()));
  }
  count(static_cast<std::int64_t>(all.size()));
  return all;
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined())
    throw data_error(fmt::format("'{}' is undefined and has no '{}'", object.undefined().what, name));
  if (const Dict* d = object.dict()) {
    if (!d->is_namespace) {
      if (Value bound = method(object, name); !bound.is_undefined()) return bound;
    }
    const Value* found = d->find(std::string_view(name));
    return found != nullptr ? *found : Value(Undefined{name});
  }
  if (Value bound = method(object, name); !bound.is_undefined()) return bound;
  return Undefined{name};
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined())
    throw data_error(fmt::format("'{}' is undefined and has no items", object.undefined().what));
  if (const Dict* d = object.dict()) {
    if (const Value* found = d->find(key)) return *found;
    if (key.is_string() && !d->is_namespace) {
      if (Value bound = method(object, key.string()); !bound.is_undefined()) return bound;
    }
    return Undefined{to_text(key)};
  }
  if (key.is_integer()) {
    const auto pick = [&](std::size_t size) -> std::optional<std::size_t> {
      const std::int64_t at = key.integer() < 0 ? key.integer() + static_cast<std::int64_t>(size) : key.integer();
      if (at < 0 || at >= static_cast<std::int64_t>(size)) return std::nullopt;
      return static_cast<std::size_t>(at);
    };
    if (const Sequence* s = object.sequence()) {
      const auto at = pick(s->items.size());
      return at ? s->items[*at] : Value(Undefined{to_text(key)});
    }
    if (object.is_string()) {
      const auto all = characters(object.string());
      count(static_cast<std::int64_t>(all.size()));
      const auto at = pick(all.size());
      return at ? Value(all[*at]) : Value(Undefined{to_text(key)});
    }
  }
  if (key.is_string()) return attribute(object, key.string());
  return Undefined{to_text(key)};
}

Value Interpreter::evaluate(const Expression& e, const ScopePtr& scope) {
  count(1);
  if (++depth_ > kDeepestCall) {
    depth_ = 0;
    throw data_error("macros or expressions call each other too deeply").at(place(name_, e.line));
  }
  Value value = located(name_, e.line, [&] { return evaluate_node(e, scope); });
  --depth_;
  return value;
}

Value Interpreter::evaluate_node(const Expression& e, const ScopePtr& scope) {
  const auto operand = [&](std::size_t i) { return evaluate(*e.operands[i], scope); };
  switch (e.kind) {
    case ExpressionKind::kLiteral:
      return e.value;
    case ExpressionKind::kName: {
      const Value* found = scope->find(e.text);
      return found != nullptr ? *found : Value(Undefined{e.text});
    }
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: {
      Sequence made;
      made.tuple = e.kind == ExpressionKind::kTuple;
      for (std::size_t i = 0; i < e.operands.size(); ++i) made.items.push_back(operand(i));
      return made;
    }
    case ExpressionKind::kDict: {
      Dict made;
      for (std::size_t i = 0; i + 1 < e.operands.size(); i += 2) made.set(operand(i), operand(i + 1));
      return made;
    }
    case ExpressionKind::kAttribute:
      return attribute(operand(0), e.text);
    case ExpressionKind::kItem:
      return item(operand(0), operand(1));
    case ExpressionKind::kSlice:
      return slice(e, scope);
    case ExpressionKind::kCall: {
      const Value callee = operand(0);
      Arguments a = arguments(e, scope);
      return call(callee, a);
    }
    case ExpressionKind::kFilter:
      return filtered(e, nullptr, scope);
    case ExpressionKind::kTest: {
      const Value input = operand(0);
      Arguments a = arguments(e, scope);
      return apply_test(*this, e.text, input, a);
    }
    case ExpressionKind::kNot:
      return !operand(0).truth();
    case ExpressionKind::kNegative:
    case ExpressionKind::kPositive: {
      const Value value = operand(0);
      if (!value.is_number()) throw data_error(fmt::format("{} has no sign", value.type_name()));
      const bool negative = e.kind == ExpressionKind::kNegative;
      if (value.is_float()) return negative ? -value.number() : value.number();
      return negative ? static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(value.integer())) : value.integer();
    }
    case ExpressionKind::kAnd: {
      Value left = operand(0);
      return left.truth() ? operand(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = operand(0);
      return left.truth() ? left : operand(1);
    }
    case ExpressionKind::kArithmetic: {
      const Value left = operand(0);
      return arithmetic(e, left, operand(1));
    }
    case ExpressionKind::kCompare: {
      Value left = operand(0);
      for (std::size_t i = 0; i < e.texts.size(); ++i) {
        Value right = operand(i + 1);
        if (!compare(e.texts[i], left, right)) return false;
        left = std::move(right);
      }
      return true;
    }
    case ExpressionKind::kConditional:
      if (operand(1).truth()) return operand(0);
      return e.operands[2] ? operand(2) : Value(Undefined{"an if without else"});
  }
  return {};
}

Arguments Interpreter::arguments(const Expression& e, const ScopePtr& scope) {
  Arguments made;
  for (std::size_t i = 1; i < e.operands.size(); ++i) made.positional.push_back(evaluate(*e.operands[i], scope));
  for (const auto& [key, value] : e.named) made.named.emplace_back(key, evaluate(*value, scope));
  return made;
}

// `input` where the chain of filters begins with none: a filter block.
Value Interpreter::filtered(const Expression& e, const Value* input, const ScopePtr& scope) {
  if (e.kind != ExpressionKind::kFilter) throw data_error("only filters can follow '|'");
  Value value;
  if (e.operands[0] == nullptr) {
    value = *input;
  } else {
    value = input != nullptr ? filtered(*e.operands[0], input, scope) : evaluate(*e.operands[0], scope);
  }
  Arguments a = arguments(e, scope);
  return apply_filter(*this, e.text, value, a);
}

Value Interpreter::concatenate(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    check_size(a.string().size() + b.string().size());
    return text(a.string() + b.string());
  }
  const Sequence *s = a.sequence(), *t = b.sequence();
  if (s != nullptr && t != nullptr && s->tuple == t->tuple) {
    std::vector<Value> all = s->items;
    all.insert(all.end(), t->items.begin(), t->items.end());
    const bool tuple = s->tuple;
    Value made = list(std::move(all));
    return tuple ? Value::tuple(made.sequence()->items) : made;
  }
  for (const Value* each : {&a, &b}) {
    if (each->is_undefined())
      throw data_error(fmt::format("'{}' is undefined and cannot be added", each->undefined().what));
  }
  throw data_error(fmt::format("{} and {} cannot be added", a.type_name(), b.type_name()));
}

Value Interpreter::multiply(const Value& a, const Value& b) {
  if (b.is_integer() && (a.is_string() || a.sequence() != nullptr)) {
    const auto times = static_cast<std::size_t>(std::max<std::int64_t>(b.integer(), 0));
    if (a.is_string()) {
      if (!a.string().empty() && times > limits_.text / a.string().size()) check_size(limits_.text + 1);
      std::string made;
      for (std::size_t i = 0; i < times && !a.string().empty(); ++i) made += a.string();
      return text(std::move(made));
    }
    const std::vector<Value>& items = a.sequence()->items;
    std::vector<Value> made;
    for (std::size_t i = 0; i < times && !items.empty() && made.size() <= limits_.items; ++i)
      made.insert(made.end(), items.begin(), items.end());
    return list(std::move(made));
  }
  if (a.is_integer() && (b.is_string() || b.sequence() != nullptr)) return multiply(b, a);
  throw data_error(fmt::format("{} and {} cannot be multiplied", a.type_name(), b.type_name()));
}

Value Interpreter::arithmetic(const Expression& e, const Value& a, const Value& b) {
  const std::string& how = e.text;
  if (how == "~") return concatenate(text(to_text(a)), text(to_text(b)));
  if (how == "%" && a.is_string()) throw data_error("formatting with '%' is not supported").mend("use '~'");
  if (!a.is_number() || !b.is_number()) {
    if (how == "+") return concatenate(a, b);
    if (how == "*") return multiply(a, b);
    throw data_error(fmt::format("{} {} {} cannot be computed", a.type_name(), how, b.type_name()));
  }
  if ((how == "/" || how == "//" || how == "%") && b.number() == 0) throw data_error("division by zero");
  if (how == "/") return a.number() / b.number();
  if (a.is_integer() && b.is_integer()) {
    const std::int64_t x = a.integer(), y = b.integer();
    std::int64_t made = 0;
    bool overflow = false;
    if (how == "+") overflow = __builtin_add_overflow(x, y, &made);
    if (how == "-") overflow = __builtin_sub_overflow(x, y, &made);
    if (how == "*") overflow = __builtin_mul_overflow(x, y, &made);
    if (how == "//" || how == "%") {
      if (y == -1) {  // the most negative number has no opposite
        overflow = how == "//" && __builtin_sub_overflow(std::int64_t{0}, x, &made);
      } else {
        made = how == "//" ? floor_div(x, y) : x - floor_div(x, y) * y;
      }
    }
    if (how == "**") {
      if (y < 0) return std::pow(a.number(), b.number());
      made = 1;
      if (x != 0 && x != 1 && x != -1 && y > 63) overflow = true;
      if (x == 0) made = y == 0 ? 1 : 0;
      if (x == -1) made = y % 2 == 0 ? 1 : -1;
      if (x != 0 && x != 1 && x != -1)
        for (std::int64_t i = 0; i < y && !overflow; ++i) overflow = __builtin_mul_overflow(made, x, &made);
    }
    if (overflow) throw data_error("a number beyond 64 bits");
    return made;
  }
  const double x = a.number(), y = b.number();
  if (how == "+") return x + y;
  if (how == "-") return x - y;
  if (how == "*") return x * y;
  if (how == "//") return std::floor(x / y);
  if (how == "%") return x - std::floor(x / y) * y;
  return std::pow(x, y);
}

bool Interpreter::compare(const std::string& how, const Value& a, const Value& b) {
  if (how == "==") return equal(a, b);
  if (how == "!=") return !equal(a, b);
  if (how == "<") return less(a, b);
  if (how == ">") return less(b, a);
  if (how == "<=") return !less(b, a);
  if (how == ">=") return !less(a, b);
  if (const Sequence* s = b.sequence()) count(static_cast<std::int64_t>(s->items.size()));
  return contains(b, a) == (how == "in");
}

Value Interpreter::slice(const Expression& e, const ScopePtr& scope) {
  const Value object = evaluate(*e.operands[0], scope);
  std::optional<std::int64_t> bound[3];
  for (std::size_t i = 0; i < 3; ++i) {
    if (!e.operands[i + 1]) continue;
    const Value value = evaluate(*e.operands[i + 1], scope);
    if (value.is_none()) continue;
    if (!value.is_integer()) throw data_error(fmt::format("a slice at {}", value.type_name()));
    bound[i] = value.integer();
  }
  if (object.is_undefined())
    throw data_error(fmt::format("'{}' is undefined and cannot be cut", object.undefined().what));
  const Sequence* s = object.sequence();
  if (s == nullptr && !object.is_string()) throw data_error(fmt::format("{} cannot be cut", object.type_name()));
  std::vector<std::string_view> letters;
  if (s == nullptr) letters = characters(object.string());
  const auto size = static_cast<std::int64_t>(s != nullptr ? s->items.size() : letters.size());
  count(size);
  const std::int64_t by = bound[2].value_or(1);
  if (by == 0) throw data_error("a slice with a step of 0");
  const auto clip = [&](std::int64_t at, std::int64_t low, std::int64_t high) {
    return std::clamp(at < 0 ? at + size : at, low, high);
  };
  const std::int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const std::int64_t first = bound[0] ? clip(*bound[0], low, high) : by > 0 ? low : high;
  const std::int64_t last = bound[1] ? clip(*bound[1], low, high) : by > 0 ? high : low;
  std::string made;
  std::vector<Value> parts;
  // Steps beyond the ends are all alike; clamped, the sum cannot overflow.
  const std::int64_t stride = std::clamp<std::int64_t>(by, -size - 1, size + 1);
  for (std::int64_t i = first; by > 0 ? i < last : i > last; i += stride) {
    if (s != nullptr) {
      parts.push_back(s->items[static_cast<std::size_t>(i)]);
    } else {
      made += letters[static_cast<std::size_t>(i)];
    }
  }
  if (s == nullptr) return text(std::move(made));
  return s->tuple ? Value::tuple(std::move(parts)) : Value::list(std::move(parts));
}

}  // namespace convoy::jinja
