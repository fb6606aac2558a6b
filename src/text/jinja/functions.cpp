// Filters, tests and global functions.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "text/jinja/interpreter.h"

namespace convoy::jinja {
namespace {

using Filter = Value (*)(Interpreter&, const Value&, Arguments&);
using Test = bool (*)(Interpreter&, const Value&, Arguments&);

Value call_method(Interpreter& in, const Value& value, const char* name, Arguments& a) {
  return in.call(method(Value(required_text(value, name)), name), a);
}

Value length(Interpreter&, const Value& v, Arguments&) {
  if (v.is_string()) return character_count(v.string());
  if (const Sequence* s = v.sequence()) return s->items.size();
  if (const Dict* d = v.dict(); d != nullptr && !d->is_namespace) return d->entries.size();
  if (v.is_undefined()) return 0;
  throw data_error(fmt::format("{} has no length", v.type_name()));
}

Value tojson(Interpreter& in, const Value& v, Arguments& a) {
  JsonStyle style;
  if (const Value* ascii = argument(a, 0, "ensure_ascii")) {
    // The first argument by position is the indent in Jinja's own filter, ensure_ascii in transformers'.
    style.ascii = ascii->truth();
  }
  if (const Value* indent = argument(a, 1, "indent"); indent != nullptr && !indent->is_none()) {
    style.indent = indent->is_integer() ? indent->integer() : std::int64_t{2};
    if (*style.indent > 64) throw data_error("tojson with an indent above 64");
    style.item_separator = ",";
  }
  if (const Value* separators = argument(a, 2, "separators"); separators != nullptr && !separators->is_none()) {
    const std::vector<Value> both = in.items(*separators);
    if (both.size() != 2) throw data_error("tojson takes two separators");
    style.item_separator = required_text(both[0], "separators");
    style.key_separator = required_text(both[1], "separators");
  }
  if (const Value* sort = argument(a, 3, "sort_keys")) style.sort = sort->truth();
  return in.text(to_json(v, style));
}

Value fallback(Interpreter&, const Value& v, Arguments& a) {
  const Value* other = argument(a, 0, "default_value");
  const Value* falsy = argument(a, 1, "boolean");
  if (v.is_undefined() || (falsy != nullptr && falsy->truth() && !v.truth()))
    return other != nullptr ? *other : Value("");
  return v;
}

// An attribute path such as "function.name", or an index.
Value by_path(Interpreter& in, const Value& v, const Value& path) {
  if (path.is_integer()) return in.item(v, path);
  Value now = v;
  std::string_view rest = required_text(path, "attribute");
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    now = number && part.size() < 10 ? in.item(now, Value(static_cast<std::int64_t>(std::stol(part))))
                                     : in.item(now, part);
    if (dot == std::string_view::npos) return now;
    rest.remove_prefix(dot + 1);
  }
}

Value join(Interpreter& in, const Value& v, Arguments& a) {
  const std::string between = text_argument(a, 0, "d", "");
  const Value* attribute = argument(a, 1, "attribute");
  std::string made;
  bool first = true;
  for (const Value& each : in.items(v)) {
    if (!first) made += between;
    first = false;
    made += to_text(attribute != nullptr ? by_path(in, each, *attribute) : each);
    in.check_size(made.size());
  }
  return in.text(std::move(made));
}

Value pick_end(Interpreter& in, const Value& v, bool last) {
  std::vector<Value> all = in.items(v);
  if (all.empty()) return Undefined{last ? "the last of nothing" : "the first of nothing"};
  return last ? all.back() : all.front();
}

Value items_of(Interpreter& in, const Value& v, Arguments& a) {
  if (v.is_undefined()) return Value::list({});
  if (v.dict() == nullptr) throw data_error(fmt::format("{} is no dictionary", v.type_name()));
  return in.call(method(v, "items"), a);
}

Value to_integer(Interpreter&, const Value& v, Arguments& a) {
  const Value* given = argument(a, 0, "default");
  const Value other = given != nullptr ? *given : Value(0);
  if (v.is_integer()) return v.integer();
  double number = 0;
  if (v.is_float()) {
    number = v.number();
  } else if (v.is_string()) {
    const std::string& text = v.string();
    const std::size_t first = text.find_first_not_of(" \t\n\r"), last = text.find_last_not_of(" \t\n\r");
    if (first == std::string::npos) return other;
    const char *begin = text.data() + first + (text[first] == '+' ? 1 : 0), *end = text.data() + last + 1;
    std::int64_t whole = 0;
    if (const auto [at, failed] = std::from_chars(begin, end, whole); failed == std::errc() && at == end) return whole;
    if (const auto [at, failed] = std::from_chars(begin, end, number); failed != std::errc() || at != end) return other;
  } else {
    return other;
  }
  if (!(std::abs(number) < 9.2e18)) return other;
  return static_cast<std::int64_t>(number);
}

Value to_float(Interpreter&, const Value& v, Arguments& a) {
  if (v.is_number()) return v.number();
  const Value* other = argument(a, 0, "default");
  double number = 0;
  if (v.is_string()) {
    const char* end = v.string().data() + v.string().size();
    if (const auto [at, failed] = std::from_chars(v.string().data(), end, number); failed == std::errc() && at == end)
      return number;
  }
  return other != nullptr ? *other : Value(0.0);
}

Value rounded(Interpreter&, const Value& v, Arguments& a) {
  if (!v.is_number()) throw data_error(fmt::format("{} cannot be rounded", v.type_name()));
  const double scale = std::pow(10.0, static_cast<double>(integer_argument(a, 0, "precision", 0)));
  const std::string how = text_argument(a, 1, "method", "common");
  const double x = v.number() * scale;
  return (how == "ceil" ? std::ceil(x) : how == "floor" ? std::floor(x) : std::nearbyint(x)) / scale;
}

Value indented(Interpreter& in, const Value& v, Arguments& a) {
  const Value* width = argument(a, 0, "width");
  const std::string by =
      width != nullptr && width->is_string()
          ? width->string()
          : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(integer_argument(a, 0, "width", 4), 0, 1000)),
                        ' ');
  const Value *first = argument(a, 1, "first"), *blank = argument(a, 2, "blank");
  const std::string& text = required_text(v, "indent");
  std::string made = first != nullptr && first->truth() ? by : "";
  for (std::size_t i = 0; i < text.size(); ++i) {
    made += text[i];
    const bool empty_line = i + 1 < text.size() && text[i + 1] == '\n';
    if (text[i] == '\n' && i + 1 < text.size() && (!empty_line || (blank != nullptr && blank->truth()))) made += by;
    in.check_size(made.size());
  }
  return in.text(std::move(made));
}

std::vector<Value> sorted(Interpreter& in, const Value& v, const Value* attribute, bool reverse, bool case_sensitive) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& each : in.items(v)) {
    Value key = attribute != nullptr ? by_path(in, each, *attribute) : each;
    Arguments none;
    if (key.is_string() && !case_sensitive) key = in.call(method(key, "lower"), none);
    keyed.emplace_back(std::move(key), each);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  std::vector<Value> made;
  for (auto& [key, value] : keyed) made.push_back(std::move(value));
  return made;
}

Value sort(Interpreter& in, const Value& v, Arguments& a) {
  const Value *reverse = argument(a, 0, "reverse"), *sensitive = argument(a, 1, "case_sensitive");
  return Value::list(sorted(in, v, argument(a, 2, "attribute"), reverse != nullptr && reverse->truth(),
                            sensitive != nullptr && sensitive->truth()));
}

Value dictsort(Interpreter& in, const Value& v, Arguments& a) {
  Arguments none;
  const Value *sensitive = argument(a, 0, "case_sensitive"), *reverse = argument(a, 2, "reverse");
  const Value by(text_argument(a, 1, "by", "key") == "value" ? 1 : 0);
  return Value::list(sorted(in, items_of(in, v, none), &by, reverse != nullptr && reverse->truth(),
                            sensitive != nullptr && sensitive->truth()));
}

Value unique(Interpreter& in, const Value& v, Arguments& a) {
  const Value* attribute = argument(a, 1, "attribute");
  std::vector<Value> seen, made;
  for (const Value& each : in.items(v)) {
    const Value key = attribute != nullptr ? by_path(in, each, *attribute) : each;
    in.count(static_cast<std::int64_t>(seen.size()));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& old) { return equal(old, key); })) continue;
    seen.push_back(key);
    made.push_back(each);
  }
  return Value::list(std::move(made));
}

// select, reject, selectattr, rejectattr: the first argument of the latter two is an attribute, then comes the test.
Value chosen(Interpreter& in, const Value& v, Arguments& a, bool attribute, bool wanted) {
  std::size_t used = 0;
  const Value path = attribute && !a.positional.empty() ? a.positional[used++] : Value();
  if (attribute && path.is_undefined()) throw data_error("selectattr needs the name of an attribute");
  std::string test;
  if (a.positional.size() > used) test = required_text(a.positional[used++], "select");
  if (!test.empty() && !is_test(test)) throw data_error(fmt::format("there is no test '{}'", test));
  std::vector<Value> made;
  for (const Value& each : in.items(v)) {
    const Value now = attribute ? by_path(in, each, path) : each;
    Arguments rest;
    rest.positional.assign(a.positional.begin() + static_cast<std::ptrdiff_t>(used), a.positional.end());
    in.count(1);
    if ((test.empty() ? now.truth() : apply_test(in, test, now, rest)) == wanted) made.push_back(each);
  }
  return Value::list(std::move(made));
}

Value mapped(Interpreter& in, const Value& v, Arguments& a) {
  std::vector<Value> made;
  const Value* path = a.positional.empty() ? argument(a, 0, "attribute") : nullptr;
  if (path == nullptr && a.positional.empty()) throw data_error("map needs a filter or attribute=…");
  if (path == nullptr && !is_filter(required_text(a.positional[0], "map")))
    throw data_error(fmt::format("there is no filter '{}'", a.positional[0].string()));
  for (const Value& each : in.items(v)) {
    in.count(1);
    if (path != nullptr) {
      Value got = by_path(in, each, *path);
      const Value* other = argument(a, 1, "default");
      made.push_back(got.is_undefined() && other != nullptr ? *other : got);
      continue;
    }
    Arguments rest;
    rest.positional.assign(a.positional.begin() + 1, a.positional.end());
    rest.named = a.named;
    made.push_back(apply_filter(in, a.positional[0].string(), each, rest));
  }
  return Value::list(std::move(made));
}

Value summed(Interpreter& in, const Value& v, Arguments& a) {
  const Value* path = argument(a, 0, "attribute");
  double real = 0;
  std::int64_t whole = integer_argument(a, 1, "start", 0);
  bool integers = true;
  for (const Value& each : in.items(v)) {
    const Value now = path != nullptr && !path->is_none() ? by_path(in, each, *path) : each;
    if (!now.is_number()) throw data_error(fmt::format("{} cannot be added up", now.type_name()));
    integers = integers && now.is_integer();
    real += now.number();
    if (integers && __builtin_add_overflow(whole, now.integer(), &whole)) throw data_error("a number beyond 64 bits");
  }
  return integers ? Value(whole) : Value(real);
}

Value extreme(Interpreter& in, const Value& v, bool largest) {
  const std::vector<Value> all = in.items(v);
  if (all.empty()) return Undefined{"the extreme of nothing"};
  return *(largest
               ? std::max_element(all.begin(), all.end(), [](const Value& a, const Value& b) { return less(a, b); })
               : std::min_element(all.begin(), all.end(), [](const Value& a, const Value& b) { return less(a, b); }));
}

Value escaped(Interpreter& in, const Value& v, Arguments&) {
  std::string made;
  for (const char c : to_text(v)) {
    made += c == '&'    ? "&amp;"
            : c == '<'  ? "&lt;"
            : c == '>'  ? "&gt;"
            : c == '"'  ? "&#34;"
            : c == '\'' ? "&#39;"
                        : std::string(1, c);
  }
  return in.text(std::move(made));
}

Value reversed(Interpreter& in, const Value& v, Arguments&) {
  std::vector<Value> all = in.items(v);
  std::reverse(all.begin(), all.end());
  if (!v.is_string()) return Value::list(std::move(all));
  std::string made;
  for (const Value& each : all) made += each.string();
  return in.text(std::move(made));
}

const std::vector<std::pair<std::string, Filter>>& filters() {
  static const std::vector<std::pair<std::string, Filter>> kAll{
      {"trim",
       [](Interpreter& in, const Value& v, Arguments& a) { return in.call(method(in.text(to_text(v)), "strip"), a); }},
      {"upper",
       [](Interpreter& in, const Value& v, Arguments& a) { return in.call(method(in.text(to_text(v)), "upper"), a); }},
      {"lower",
       [](Interpreter& in, const Value& v, Arguments& a) { return in.call(method(in.text(to_text(v)), "lower"), a); }},
      {"title", [](Interpreter& in, const Value& v, Arguments& a) { return call_method(in, v, "title", a); }},
      {"capitalize", [](Interpreter& in, const Value& v, Arguments& a) { return call_method(in, v, "capitalize", a); }},
      {"replace", [](Interpreter& in, const Value& v,
                     Arguments& a) { return in.call(method(in.text(to_text(v)), "replace"), a); }},
      {"length", length},
      {"count", length},
      {"tojson", tojson},
      {"default", fallback},
      {"d", fallback},
      {"join", join},
      {"first", [](Interpreter& in, const Value& v, Arguments&) { return pick_end(in, v, false); }},
      {"last", [](Interpreter& in, const Value& v, Arguments&) { return pick_end(in, v, true); }},
      {"list", [](Interpreter& in, const Value& v, Arguments&) { return Value::list(in.items(v)); }},
      {"items", items_of},
      {"string", [](Interpreter& in, const Value& v, Arguments&) { return in.text(to_text(v)); }},
      {"safe", [](Interpreter&, const Value& v, Arguments&) { return v; }},
      {"escape", escaped},
      {"e", escaped},
      {"int", to_integer},
      {"float", to_float},
      {"abs",
       [](Interpreter&, const Value& v, Arguments&) {
         if (!v.is_number()) throw data_error(fmt::format("{} has no absolute value", v.type_name()));
         if (v.is_float()) return Value(std::abs(v.number()));
         if (v.integer() == INT64_MIN) throw data_error("a number beyond 64 bits");
         return Value(v.integer() < 0 ? -v.integer() : v.integer());
       }},
      {"round", rounded},
      {"indent", indented},
      {"sort", sort},
      {"dictsort", dictsort},
      {"unique", unique},
      {"reverse", reversed},
      {"select", [](Interpreter& in, const Value& v, Arguments& a) { return chosen(in, v, a, false, true); }},
      {"reject", [](Interpreter& in, const Value& v, Arguments& a) { return chosen(in, v, a, false, false); }},
      {"selectattr", [](Interpreter& in, const Value& v, Arguments& a) { return chosen(in, v, a, true, true); }},
      {"rejectattr", [](Interpreter& in, const Value& v, Arguments& a) { return chosen(in, v, a, true, false); }},
      {"map", mapped},
      {"sum", summed},
      {"min", [](Interpreter& in, const Value& v, Arguments&) { return extreme(in, v, false); }},
      {"max", [](Interpreter& in, const Value& v, Arguments&) { return extreme(in, v, true); }},
      {"attr", [](Interpreter& in, const Value& v,
                  Arguments& a) { return by_path(in, v, Value(text_argument(a, 0, "name", ""))); }},
  };
  return kAll;
}

// The other operand of a comparing test.
const Value& other(const Arguments& a) {
  if (a.positional.empty()) throw data_error("the test needs something to compare with");
  return a.positional.front();
}

const std::vector<std::pair<std::string, Test>>& tests() {
  using I = Interpreter;
  using V = const Value;
  using A = Arguments;
  static const Test kEqual = [](I&, V& v, A& a) { return equal(v, other(a)); };
  static const Test kUnequal = [](I&, V& v, A& a) { return !equal(v, other(a)); };
  static const Test kLess = [](I&, V& v, A& a) { return less(v, other(a)); };
  static const Test kGreater = [](I&, V& v, A& a) { return less(other(a), v); };
  static const Test kAtMost = [](I&, V& v, A& a) { return !less(other(a), v); };
  static const Test kAtLeast = [](I&, V& v, A& a) { return !less(v, other(a)); };
  static const std::vector<std::pair<std::string, Test>> kAll{
      {"defined", [](I&, V& v, A&) { return !v.is_undefined(); }},
      {"undefined", [](I&, V& v, A&) { return v.is_undefined(); }},
      {"none", [](I&, V& v, A&) { return v.is_none(); }},
      {"boolean", [](I&, V& v, A&) { return v.is_bool(); }},
      {"true", [](I&, V& v, A&) { return v.is_bool() && v.truth(); }},
      {"false", [](I&, V& v, A&) { return v.is_bool() && !v.truth(); }},
      {"integer", [](I&, V& v, A&) { return v.is_integer() && !v.is_bool(); }},
      {"float", [](I&, V& v, A&) { return v.is_float(); }},
      {"number", [](I&, V& v, A&) { return v.is_number(); }},
      {"string", [](I&, V& v, A&) { return v.is_string(); }},
      {"mapping", [](I&, V& v, A&) { return v.dict() != nullptr && !v.dict()->is_namespace; }},
      {"iterable",
       [](I&, V& v, A&) {
         return v.is_string() || v.is_undefined() || v.sequence() != nullptr ||
                (v.dict() != nullptr && !v.dict()->is_namespace);
       }},
      {"sequence",
       [](I&, V& v, A&) {
         return v.is_string() || v.is_undefined() || v.sequence() != nullptr ||
                (v.dict() != nullptr && !v.dict()->is_namespace);
       }},
      {"callable", [](I&, V& v, A&) { return v.callable() != nullptr; }},
      {"sameas",
       [](I&, V& v, A& a) {
         const Value& b = other(a);
         if (v.identity() != nullptr || b.identity() != nullptr) return v.identity() == b.identity();
         return v.type_name() == b.type_name() && equal(v, b);
       }},
      {"even", [](I&, V& v, A&) { return v.is_integer() && v.integer() % 2 == 0; }},
      {"odd", [](I&, V& v, A&) { return v.is_integer() && v.integer() % 2 != 0; }},
      {"divisibleby",
       [](I&, V& v, A& a) {
         if (!v.is_integer() || !other(a).is_integer() || other(a).integer() == 0 || other(a).integer() == -1)
           return v.is_integer() && other(a).is_integer() && other(a).integer() == -1;
         return v.integer() % other(a).integer() == 0;
       }},
      {"lower",
       [](I& in, V& v, A& a) { return v.is_string() && equal(in.call(method(v, "islower"), a), Value(true)); }},
      {"upper",
       [](I& in, V& v, A& a) { return v.is_string() && equal(in.call(method(v, "isupper"), a), Value(true)); }},
      {"in", [](I&, V& v, A& a) { return contains(other(a), v); }},
      {"equalto", kEqual},
      {"eq", kEqual},
      {"==", kEqual},
      {"ne", kUnequal},
      {"!=", kUnequal},
      {"lt", kLess},
      {"lessthan", kLess},
      {"<", kLess},
      {"gt", kGreater},
      {"greaterthan", kGreater},
      {">", kGreater},
      {"le", kAtMost},
      {"<=", kAtMost},
      {"ge", kAtLeast},
      {">=", kAtLeast},
  };
  return kAll;
}

template <typename Table>
auto find_in(const Table& table, const std::string& name) {
  return std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.first == name; });
}
template <typename Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.first);
  return names;
}

Value make_dict(Interpreter& in, Arguments& a, bool is_namespace) {
  Dict made;
  made.is_namespace = is_namespace;
  for (const Value& each : a.positional) {
    if (const Dict* d = each.dict()) {
      for (const auto& [key, value] : d->entries) made.set(key, value);
      continue;
    }
    for (const Value& pair : in.items(each)) {
      const std::vector<Value> both = in.items(pair);
      if (both.size() != 2) throw data_error("a dictionary is made of pairs");
      made.set(both[0], both[1]);
    }
  }
  for (const auto& [key, value] : a.named) made.set(key, value);
  return made;
}

Value range(Interpreter& in, Arguments& a) {
  std::int64_t bounds[3] = {0, 0, 1};
  const std::size_t n = a.positional.size();
  if (n < 1 || n > 3) throw data_error("range takes one to three numbers");
  for (std::size_t i = 0; i < n; ++i) {
    if (!a.positional[i].is_integer()) throw data_error(fmt::format("range of {}", a.positional[i].type_name()));
    bounds[n == 1 ? 1 : i] = a.positional[i].integer();
  }
  const auto [first, last, by] = bounds;
  if (by == 0) throw data_error("range with a step of 0");
  std::vector<Value> made;
  for (std::int64_t i = first; by > 0 ? i < last : i > last;) {
    made.emplace_back(i);
    if (made.size() > in.most_items())
      throw data_error(fmt::format("a range of more than {} numbers", in.most_items()));
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return in.list(std::move(made));
}

Value strftime_now(Interpreter& in, Arguments& a) {
  const std::string format = text_argument(a, 0, "format", "%Y-%m-%d");
  if (format.empty()) return "";
  const std::time_t now = in.now();
  std::tm parts{};
  localtime_r(&now, &parts);
  std::string made(format.size() * 4 + 256, '\0');
  made.resize(std::strftime(made.data(), made.size(), format.c_str(), &parts));
  return made;
}

}  // namespace

bool is_filter(const std::string& name) {
  return find_in(filters(), name) != filters().end();
}
bool is_test(const std::string& name) {
  return find_in(tests(), name) != tests().end();
}
std::vector<std::string> filter_names() {
  return names_of(filters());
}
std::vector<std::string> test_names() {
  return names_of(tests());
}

Value apply_filter(Interpreter& in, const std::string& name, const Value& input, Arguments& a) {
  return find_in(filters(), name)->second(in, input, a);
}

bool apply_test(Interpreter& in, const std::string& name, const Value& input, Arguments& a) {
  return find_in(tests(), name)->second(in, input, a);
}

void add_globals(Scope& scope) {
  scope.names["range"] = Callable{"range", range, nullptr};
  scope.names["dict"] =
      Callable{"dict", [](Interpreter& in, Arguments& a) { return make_dict(in, a, false); }, nullptr};
  scope.names["namespace"] =
      Callable{"namespace", [](Interpreter& in, Arguments& a) { return make_dict(in, a, true); }, nullptr};
  scope.names["strftime_now"] = Callable{"strftime_now", strftime_now, nullptr};
  scope.names["raise_exception"] =
      Callable{"raise_exception",
               [](Interpreter&, Arguments& a) -> Value {
                 throw data_error("the chat template refuses the conversation: " + text_argument(a, 0, "message", ""));
               },
               nullptr};
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) throw data_error(fmt::format("{} in a string", item.type_name()));
    return container.string().find(item.string()) != std::string::npos;
  }
  if (const Sequence* s = container.sequence())
    return std::any_of(s->items.begin(), s->items.end(), [&](const Value& each) { return equal(each, item); });
  if (const Dict* d = container.dict(); d != nullptr && !d->is_namespace) return d->find(item) != nullptr;
  if (container.is_undefined()) return false;
  throw data_error(fmt::format("nothing can be in {}", container.type_name()));
}

const Value* argument(const Arguments& a, std::size_t index, std::string_view name) {
  if (index < a.positional.size()) return &a.positional[index];
  for (const auto& [key, value] : a.named) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::int64_t integer_argument(const Arguments& a, std::size_t index, std::string_view name, std::int64_t other_value) {
  const Value* given = argument(a, index, name);
  if (given == nullptr || given->is_none()) return other_value;
  if (!given->is_integer()) throw data_error(fmt::format("'{}' is {}, not an integer", name, given->type_name()));
  return given->integer();
}

std::string text_argument(const Arguments& a, std::size_t index, std::string_view name,
                          const std::string& other_value) {
  const Value* given = argument(a, index, name);
  if (given == nullptr || given->is_none()) return other_value;
  return required_text(*given, name);
}

const std::string& required_text(const Value& value, std::string_view who) {
  if (value.is_string()) return value.string();
  if (value.is_undefined())
    throw data_error(fmt::format("'{}' of '{}', which is undefined", who, value.undefined().what));
  throw data_error(fmt::format("'{}' of {}, not of a string", who, value.type_name()));
}

}  // namespace convoy::jinja
