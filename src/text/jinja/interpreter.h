// Runs the syntax tree of a template. Internal to jinja/.
#pragma once

#include <map>
#include <optional>

#include "text/jinja/syntax.h"
#include "text/jinja/template.h"

namespace convoy::jinja {

// Names and their values; the chain of parents is what a name is looked up in.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::map<std::string, Value, std::less<>> names;
  const Value* find(std::string_view name) const;
};

class Interpreter {
 public:
  Interpreter(const std::string& name, const Limits& limits, std::time_t now)
      : name_(name), limits_(limits), now_(now) {}

  Rendered run(const Block& body, const Dict& variables);

  // For filters, tests and methods.
  Value call(const Value& callee, Arguments& arguments);
  // The text after its bytes are counted.
  Value text(std::string made);
  Value list(std::vector<Value> made);
  void count(std::int64_t steps);
  void check_size(std::size_t bytes) const;
  // The items that a loop sees: of lists, the characters of a string, the keys of a dictionary.
  std::vector<Value> items(const Value& value);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  std::time_t now() const { return now_; }
  std::size_t most_items() const { return limits_.items; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  Flow run_block(const Block& block, const ScopePtr& scope);
  Flow run_statement(const Statement& statement, const ScopePtr& scope);
  Flow run_branches(const Statement& statement, const ScopePtr& scope);
  void run_loop(const Statement& statement, const ScopePtr& scope);
  void run_set(const Statement& statement, const ScopePtr& scope);
  void define_macro(const Statement& statement, const ScopePtr& scope);
  Value run_macro(const Statement& statement, const ScopePtr& scope, Arguments& arguments);
  std::string capture(const Block& block, const ScopePtr& scope);
  void assign(const Expression& target, const Value& value, const ScopePtr& scope);
  void assign(const std::vector<ExpressionPtr>& targets, const Value& value, const ScopePtr& scope);
  void write(std::string_view text);

  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_node(const Expression& expression, const ScopePtr& scope);
  Value arithmetic(const Expression& expression, const Value& a, const Value& b);
  Value concatenate(const Value& a, const Value& b);
  Value multiply(const Value& a, const Value& b);
  bool compare(const std::string& how, const Value& a, const Value& b);
  Value slice(const Expression& expression, const ScopePtr& scope);
  Arguments arguments(const Expression& expression, const ScopePtr& scope);
  Value filtered(const Expression& expression, const Value* input, const ScopePtr& scope);

  const std::string& name_;
  const Limits limits_;
  std::time_t now_;
  std::int64_t steps_ = 0;
  int depth_ = 0, captures_ = 0;
  std::string out_;
  std::vector<std::pair<std::size_t, std::size_t>> generated_;
};

// Defined in functions.cpp and methods.cpp. Errors are data errors without a place.
Value apply_filter(Interpreter& in, const std::string& name, const Value& input, Arguments& arguments);
bool apply_test(Interpreter& in, const std::string& name, const Value& input, Arguments& arguments);
// The bound method of a string, list or dictionary; undefined where there is none.
Value method(const Value& object, const std::string& name);
void add_globals(Scope& scope);

bool contains(const Value& container, const Value& item);

// Arguments by position or name: `index` counts from 0. Null where not given.
const Value* argument(const Arguments& arguments, std::size_t index, std::string_view name);
std::int64_t integer_argument(const Arguments& arguments, std::size_t index, std::string_view name,
                              std::int64_t fallback);
std::string text_argument(const Arguments& arguments, std::size_t index, std::string_view name,
                          const std::string& fallback);
const std::string& required_text(const Value& value, std::string_view who);

}  // namespace convoy::jinja
