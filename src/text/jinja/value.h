// The values of Jinja templates: Python's, as far as templates use them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace convoy::jinja {

class Value;
class Interpreter;

struct Undefined {
  std::string what;  // what was looked for, for errors
};
struct None {};
// A list, or a tuple.
struct Sequence {
  std::vector<Value> items;
  bool tuple = false;
};
// Keeps the order of insertion. A namespace is a dictionary that templates may write to.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  bool is_namespace = false;
  // Null where there is none.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
};
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Arguments&)> call;
  std::shared_ptr<const Value> bound;  // the object of a method
};

// How deep a value nests, and whether a namespace is in it. Kept, so that no template can build what is too deep to be
// freed, or a circle: a namespace holds no other.
struct Nesting {
  int depth = 0;
  bool has_namespace = false;
};

class Value {
 public:
  using String = std::shared_ptr<const std::string>;
  using Store = std::variant<Undefined, None, bool, std::int64_t, double, String, std::shared_ptr<const Sequence>,
                             std::shared_ptr<Dict>, std::shared_ptr<const Callable>>;

  Value() : store_(Undefined{}) {}
  Value(None none) : store_(none) {}
  Value(Undefined undefined) : store_(std::move(undefined)) {}
  Value(bool b) : store_(b) {}
  Value(int i) : store_(std::int64_t{i}) {}
  Value(std::int64_t i) : store_(i) {}
  Value(std::size_t i) : store_(static_cast<std::int64_t>(i)) {}
  Value(double d) : store_(d) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(std::string text) : store_(std::make_shared<const std::string>(std::move(text))) {}
  // These three throw a data error for what nests more than kDeepest deep.
  Value(Sequence sequence);
  Value(Dict dict);
  Value(Callable callable);
  static Value list(std::vector<Value> items) { return Sequence{std::move(items), false}; }
  static Value tuple(std::vector<Value> items) { return Sequence{std::move(items), true}; }

  bool is_undefined() const { return std::holds_alternative<Undefined>(store_); }
  bool is_none() const { return std::holds_alternative<None>(store_); }
  bool is_bool() const { return std::holds_alternative<bool>(store_); }
  bool is_float() const { return std::holds_alternative<double>(store_); }
  // A truth value is an integer too, as in Python.
  bool is_integer() const { return is_bool() || std::holds_alternative<std::int64_t>(store_); }
  bool is_number() const { return is_integer() || is_float(); }
  bool is_string() const { return std::holds_alternative<String>(store_); }
  const Undefined& undefined() const { return std::get<Undefined>(store_); }
  // Only where is_string, is_number and is_integer say so.
  const std::string& string() const { return *std::get<String>(store_); }
  double number() const;
  std::int64_t integer() const;
  // Null where it is something else.
  const Sequence* sequence() const;
  Dict* dict() const;
  const Callable* callable() const;
  const void* identity() const;
  const Nesting& nesting() const { return nesting_; }

  bool truth() const;
  // "a string", "a list", for errors; and Python's name of the type.
  std::string_view type_name() const;

 private:
  void enclose(const Value& inner);
  Store store_;
  Nesting nesting_;
};

// Python's ==. Lists and dictionaries that nest deeper than kDeepest are a data error, here and below.
inline constexpr int kDeepest = 200;
bool equal(const Value& a, const Value& b, int depth = 0);
// Python's <, for numbers, strings and lists of them; else a data error.
bool less(const Value& a, const Value& b, int depth = 0);
// str() and repr(). What is undefined is empty as a string.
std::string to_text(const Value& value);
std::string to_repr(const Value& value, int depth = 0);
// A dictionary's keys keep their order; numbers beyond 64 bits become floating-point.
Value from_json(const Json& json, int depth = 0);

struct JsonStyle {
  std::optional<std::int64_t> indent;
  std::string item_separator = ", ", key_separator = ": ";  // with an indent the former is ","
  bool ascii = false, sort = false;
};
// json.dumps.
std::string to_json(const Value& value, const JsonStyle& style, int depth = 0);

// Strings are sequences of characters: length, and the bytes of character i and after.
std::size_t character_count(std::string_view text);
std::vector<std::string_view> characters(std::string_view text);

}  // namespace convoy::jinja
