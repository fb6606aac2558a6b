#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/unicode.h"

namespace convoy::jinja {
namespace {

void check_depth(int depth) {
  if (depth > kDeepest) throw data_error(fmt::format("lists and dictionaries nested more than {} deep", kDeepest));
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// Whether Python's repr shows the character as it is.
bool printable(char32_t code) {
  if (code < 0x7F) return code >= 0x20;
  switch (UnicodeTable::category(UnicodeTable::get()[code])) {
    case Category::kCn:
    case Category::kCc:
    case Category::kCf:
    case Category::kCs:
    case Category::kCo:
    case Category::kZs:
    case Category::kZl:
    case Category::kZp:
      return false;
    default:
      return true;
  }
}

std::string python_quoted(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    const auto code = static_cast<std::uint32_t>(point.code);
    if (code == static_cast<std::uint32_t>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (printable(point.code)) {
      out += text.substr(at, point.length);
    } else if (code <= 0xFF) {
      out += fmt::format("\\x{:02x}", code);
    } else if (code <= 0xFFFF) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += fmt::format("\\U{:08x}", code);
    }
    at += point.length;
  }
  return out + quote;
}

std::string json_string(std::string_view text, bool ascii) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    const auto code = static_cast<std::uint32_t>(point.code);
    switch (code) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (code < 0x20 || (ascii && code >= 0x7F && code <= 0xFFFF)) {
          out += code == 0x7F ? std::string(1, '\x7f') : fmt::format("\\u{:04x}", code);
        } else if (ascii && code > 0xFFFF) {
          const std::uint32_t rest = code - 0x10000;
          out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
        } else {
          out += text.substr(at, point.length);
        }
    }
    at += point.length;
  }
  return out + '"';
}

std::string json_key(const Value& key, bool ascii) {
  if (key.is_string()) return json_string(key.string(), ascii);
  if (key.is_bool()) return key.truth() ? "\"true\"" : "\"false\"";
  if (key.is_none()) return "\"null\"";
  if (key.is_number()) return '"' + to_text(key) + '"';
  throw data_error(fmt::format("{} cannot be a key of JSON", key.type_name()));
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : entries) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.is_string() && name.string() == key) return &value;
  }
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  for (auto& [name, old] : entries) {
    if (!equal(name, key)) continue;
    old = std::move(value);
    return;
  }
  entries.emplace_back(key, std::move(value));
}

void Value::enclose(const Value& inner) {
  nesting_.depth = std::max(nesting_.depth, inner.nesting_.depth + 1);
  nesting_.has_namespace = nesting_.has_namespace || inner.nesting_.has_namespace;
  check_depth(nesting_.depth);
}

Value::Value(Sequence sequence) : store_(None{}) {
  for (const Value& item : sequence.items) enclose(item);
  store_ = std::make_shared<const Sequence>(std::move(sequence));
}

Value::Value(Dict dict) : store_(None{}) {
  for (const auto& [key, value] : dict.entries) {
    enclose(key);
    enclose(value);
  }
  if (dict.is_namespace && nesting_.has_namespace) throw data_error("a namespace inside of a namespace");
  nesting_.has_namespace = nesting_.has_namespace || dict.is_namespace;
  store_ = std::make_shared<Dict>(std::move(dict));
}

Value::Value(Callable callable) : store_(None{}) {
  if (callable.bound) enclose(*callable.bound);
  store_ = std::make_shared<const Callable>(std::move(callable));
}

double Value::number() const {
  if (const auto* d = std::get_if<double>(&store_)) return *d;
  return static_cast<double>(integer());
}

std::int64_t Value::integer() const {
  if (const auto* b = std::get_if<bool>(&store_)) return *b ? 1 : 0;
  return std::get<std::int64_t>(store_);
}

const Sequence* Value::sequence() const {
  const auto* held = std::get_if<std::shared_ptr<const Sequence>>(&store_);
  return held != nullptr ? held->get() : nullptr;
}

Dict* Value::dict() const {
  const auto* held = std::get_if<std::shared_ptr<Dict>>(&store_);
  return held != nullptr ? held->get() : nullptr;
}

const Callable* Value::callable() const {
  const auto* held = std::get_if<std::shared_ptr<const Callable>>(&store_);
  return held != nullptr ? held->get() : nullptr;
}

const void* Value::identity() const {
  if (is_string()) return &string();
  if (sequence() != nullptr) return sequence();
  if (dict() != nullptr) return dict();
  return callable();
}

bool Value::truth() const {
  if (is_bool()) return std::get<bool>(store_);
  if (is_number()) return number() != 0;
  if (is_string()) return !string().empty();
  if (const Sequence* s = sequence()) return !s->items.empty();
  if (const Dict* d = dict()) return d->is_namespace || !d->entries.empty();
  return callable() != nullptr;
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "None";
  if (is_bool()) return "a truth value";
  if (is_integer()) return "an integer";
  if (is_float()) return "a number";
  if (is_string()) return "a string";
  if (const Sequence* s = sequence()) return s->tuple ? "a tuple" : "a list";
  if (const Dict* d = dict()) return d->is_namespace ? "a namespace" : "a dictionary";
  return "a function";
}

bool equal(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  const Sequence *s = a.sequence(), *t = b.sequence();
  if (s != nullptr && t != nullptr) {
    return s->tuple == t->tuple && std::equal(s->items.begin(), s->items.end(), t->items.begin(), t->items.end(),
                                              [&](const Value& x, const Value& y) { return equal(x, y, depth + 1); });
  }
  const Dict *d = a.dict(), *e = b.dict();
  if (d == nullptr || e == nullptr || d->is_namespace || e->is_namespace)
    return a.identity() != nullptr && a.identity() == b.identity();
  if (d->entries.size() != e->entries.size()) return false;
  return std::all_of(d->entries.begin(), d->entries.end(), [&](const auto& entry) {
    const Value* other = e->find(entry.first);
    return other != nullptr && equal(entry.second, *other, depth + 1);
  });
}

bool less(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (a.is_string() && b.is_string()) return a.string() < b.string();  // UTF-8 sorts as code points do
  const Sequence *s = a.sequence(), *t = b.sequence();
  if (s != nullptr && t != nullptr && s->tuple == t->tuple) {
    for (std::size_t i = 0; i < std::min(s->items.size(), t->items.size()); ++i) {
      if (!equal(s->items[i], t->items[i], depth + 1)) return less(s->items[i], t->items[i], depth + 1);
    }
    return s->items.size() < t->items.size();
  }
  throw data_error(fmt::format("{} and {} have no order", a.type_name(), b.type_name()));
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.string();
  if (value.is_undefined()) return {};
  return to_repr(value);
}

std::string to_repr(const Value& value, int depth) {
  check_depth(depth);
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.truth() ? "True" : "False";
  if (value.is_integer()) return fmt::format("{}", value.integer());
  if (value.is_float()) return float_text(value.number());
  if (value.is_string()) return python_quoted(value.string());
  std::string out;
  if (const Sequence* s = value.sequence()) {
    for (const Value& item : s->items) out += (out.empty() ? "" : ", ") + to_repr(item, depth + 1);
    if (!s->tuple) return '[' + out + ']';
    return '(' + out + (s->items.size() == 1 ? ",)" : ")");
  }
  if (const Dict* d = value.dict()) {
    if (d->is_namespace) return "<Namespace>";
    for (const auto& [key, item] : d->entries)
      out += (out.empty() ? "" : ", ") + to_repr(key, depth + 1) + ": " + to_repr(item, depth + 1);
    return '{' + out + '}';
  }
  return fmt::format("<function {}>", value.callable()->name);
}

Value from_json(const Json& json, int depth) {
  check_depth(depth);
  switch (json.type()) {
    case Json::value_t::null:
      return None{};
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() >> 63 != 0) return json.get<double>();
      return json.get<std::int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(from_json(item, depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) dict.entries.emplace_back(key, from_json(item, depth + 1));
      return dict;
    }
    default:
      throw internal_error("a JSON value of no kind");
  }
}

std::string to_json(const Value& value, const JsonStyle& style, int depth) {
  check_depth(depth);
  if (value.is_none()) return "null";
  if (value.is_bool()) return value.truth() ? "true" : "false";
  if (value.is_float() && std::isnan(value.number())) return "NaN";
  if (value.is_float() && std::isinf(value.number())) return value.number() > 0 ? "Infinity" : "-Infinity";
  if (value.is_number()) return to_text(value);
  if (value.is_string()) return json_string(value.string(), style.ascii);
  const auto indent = [&](int levels) {
    if (!style.indent) return std::string();
    return '\n' + std::string(static_cast<std::size_t>(std::max<std::int64_t>(*style.indent, 0) * levels), ' ');
  };
  std::vector<std::string> parts;
  char open = '[', close = ']';
  if (const Sequence* s = value.sequence()) {
    for (const Value& item : s->items) parts.push_back(to_json(item, style, depth + 1));
  } else if (const Dict* d = value.dict(); d != nullptr && !d->is_namespace) {
    open = '{';
    close = '}';
    auto entries = d->entries;
    if (style.sort)
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return less(a.first, b.first); });
    for (const auto& [key, item] : entries)
      parts.push_back(json_key(key, style.ascii) + style.key_separator + to_json(item, style, depth + 1));
  } else {
    throw data_error(fmt::format("{} cannot be written as JSON", value.type_name()));
  }
  std::string out(1, open);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += style.item_separator;
    out += indent(depth + 1) + parts[i];
  }
  if (!parts.empty()) out += indent(depth);
  return out + close;
}

std::size_t character_count(std::string_view text) {
  if (is_ascii(text)) return text.size();
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at += decode_utf8(text, at).length;
  return count;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = decode_utf8(text, at).length;
    all.push_back(text.substr(at, length));
    at += length;
  }
  return all;
}

}  // namespace convoy::jinja
