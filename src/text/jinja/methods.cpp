// The methods of strings, lists and dictionaries.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "text/jinja/interpreter.h"
#include "text/unicode.h"

namespace convoy::jinja {
namespace {

using Method = Value (*)(Interpreter&, const Value&, Arguments&);

bool is_space(std::string_view character) {
  const char32_t code = decode_utf8(character, 0).code;
  return (UnicodeTable::get()[code] & char_class::kSpace) != 0 || (code >= 0x1C && code <= 0x1F);
}

// Takes the characters of `set` (or white space) off one or both ends.
Value strip(Interpreter& in, const Value& v, Arguments& a, bool left, bool right) {
  const Value* given = argument(a, 0, "chars");
  std::vector<std::string_view> set;
  const bool blanks = given == nullptr || given->is_none();
  if (!blanks) set = characters(required_text(*given, "strip"));
  const auto taken = [&](std::string_view c) {
    return blanks ? is_space(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  const std::vector<std::string_view> all = characters(v.string());
  in.count(static_cast<std::int64_t>(all.size() / 16));
  std::size_t first = 0, last = all.size();
  while (left && first < last && taken(all[first])) ++first;
  while (right && last > first && taken(all[last - 1])) --last;
  std::string made;
  for (std::size_t i = first; i < last; ++i) made += all[i];
  return in.text(std::move(made));
}

std::vector<Value> split_blanks(const std::string& text, std::int64_t most) {
  std::vector<Value> made;
  const std::vector<std::string_view> all = characters(text);
  std::size_t i = 0;
  while (true) {
    while (i < all.size() && is_space(all[i])) ++i;
    if (i == all.size()) return made;
    std::string word;
    const bool rest = most >= 0 && static_cast<std::int64_t>(made.size()) == most;
    while (i < all.size() && (rest || !is_space(all[i]))) word += all[i++];
    if (rest) {
      while (!word.empty() && is_space(std::string_view(word).substr(word.size() - 1))) word.pop_back();
    }
    made.emplace_back(std::move(word));
  }
}

Value split(Interpreter& in, const Value& v, Arguments& a) {
  const Value* by = argument(a, 0, "sep");
  const std::int64_t most = integer_argument(a, 1, "maxsplit", -1);
  const std::string& text = v.string();
  if (by == nullptr || by->is_none()) return in.list(split_blanks(text, most));
  const std::string& separator = required_text(*by, "split");
  if (separator.empty()) throw data_error("split at an empty string");
  std::vector<Value> made;
  std::size_t from = 0;
  for (std::size_t at = text.find(separator); at != std::string::npos; at = text.find(separator, from)) {
    if (most >= 0 && static_cast<std::int64_t>(made.size()) == most) break;
    made.emplace_back(text.substr(from, at - from));
    from = at + separator.size();
  }
  made.emplace_back(text.substr(from));
  return in.list(std::move(made));
}

Value rsplit(Interpreter& in, const Value& v, Arguments& a) {
  const Value* by = argument(a, 0, "sep");
  const std::int64_t most = integer_argument(a, 1, "maxsplit", -1);
  if (most < 0) return split(in, v, a);
  if (by == nullptr || by->is_none()) throw data_error("rsplit with a limit needs a separator");
  const std::string& separator = required_text(*by, "rsplit");
  if (separator.empty()) throw data_error("split at an empty string");
  std::string text = v.string();
  std::vector<Value> made;
  while (static_cast<std::int64_t>(made.size()) < most) {
    const std::size_t at = text.rfind(separator);
    if (at == std::string::npos) break;
    made.emplace_back(text.substr(at + separator.size()));
    text.resize(at);
  }
  made.emplace_back(std::move(text));
  std::reverse(made.begin(), made.end());
  return in.list(std::move(made));
}

Value splitlines(Interpreter& in, const Value& v, Arguments& a) {
  const Value* keep = argument(a, 0, "keepends");
  const std::string& text = v.string();
  std::vector<Value> made;
  for (std::size_t from = 0; from < text.size();) {
    std::size_t end = text.find_first_of("\n\r\v\f\x1c\x1d\x1e", from), next = end;
    if (end == std::string::npos) {
      end = next = text.size();
    } else {
      next = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
    }
    made.emplace_back(text.substr(from, (keep != nullptr && keep->truth() ? next : end) - from));
    from = next;
  }
  return in.list(std::move(made));
}

bool ends(const Value& v, Arguments& a, bool front) {
  const Value* given = argument(a, 0, "prefix");
  if (given == nullptr) throw data_error("startswith and endswith need a string");
  const auto one = [&](const Value& part) {
    const std::string& text = required_text(part, front ? "startswith" : "endswith");
    return front ? v.string().starts_with(text) : v.string().ends_with(text);
  };
  const Sequence* several = given->sequence();
  if (several == nullptr) return one(*given);
  return std::any_of(several->items.begin(), several->items.end(), one);
}

// The one-to-one mappings of case; ß stays, where Python writes SS.
Value cased(Interpreter& in, const Value& v, int how) {
  std::string made;
  bool inside = false;  // of a word
  bool first = true;
  for (const std::string_view each : characters(v.string())) {
    const char32_t code = decode_utf8(each, 0).code;
    const bool up = how == 1 || (how == 2 && !inside) || (how == 3 && first);
    const auto mapped = up ? utf8proc_toupper(static_cast<utf8proc_int32_t>(code))
                           : utf8proc_tolower(static_cast<utf8proc_int32_t>(code));
    append_utf8(made, static_cast<char32_t>(mapped));
    inside = (UnicodeTable::get()[code] & char_class::kLetter) != 0;
    first = false;
  }
  return in.text(std::move(made));
}

// Whether all cased letters are of one case, and there is one.
Value is_cased(const Value& v, bool upper) {
  bool any = false;
  for (const std::string_view each : characters(v.string())) {
    const auto code = static_cast<utf8proc_int32_t>(decode_utf8(each, 0).code);
    const bool up = utf8proc_tolower(code) != code, low = utf8proc_toupper(code) != code;
    if (upper ? low && !up : up && !low) return false;
    any = any || up || low;
  }
  return any;
}

Value all_of_class(const Value& v, std::uint16_t classes) {
  const auto all = characters(v.string());
  return !all.empty() && std::all_of(all.begin(), all.end(), [&](std::string_view each) {
    return (UnicodeTable::get()[decode_utf8(each, 0).code] & classes) != 0;
  });
}

Value replace(Interpreter& in, const Value& v, Arguments& a) {
  if (a.positional.size() + a.named.size() < 2) throw data_error("replace needs two strings");
  const std::string from = text_argument(a, 0, "old", ""), to = text_argument(a, 1, "new", "");
  const std::int64_t most = integer_argument(a, 2, "count", -1);
  const std::string& text = v.string();
  std::string made;
  std::int64_t done = 0;
  std::size_t at = 0;
  while (most < 0 || done < most) {
    if (from.empty()) {  // between all characters, as Python does
      made += to;
      ++done;
      if (at == text.size()) break;
      const std::size_t length = decode_utf8(text, at).length;
      made.append(text, at, length);
      at += length;
    } else {
      const std::size_t found = text.find(from, at);
      if (found == std::string::npos) break;
      made.append(text, at, found - at);
      made += to;
      at = found + from.size();
      ++done;
    }
    in.check_size(made.size());
  }
  if (at < text.size()) made.append(text, at);
  return in.text(std::move(made));
}

Value find(const Value& v, Arguments& a, bool last) {
  const std::string& text = v.string();
  const std::string what = text_argument(a, 0, "sub", "");
  const std::size_t at = last ? text.rfind(what) : text.find(what);
  return at == std::string::npos ? Value(-1) : Value(character_count(std::string_view(text).substr(0, at)));
}

Value count(Interpreter&, const Value& v, Arguments& a) {
  const std::string what = text_argument(a, 0, "sub", "");
  if (what.empty()) return character_count(v.string()) + 1;
  std::int64_t n = 0;
  for (std::size_t at = v.string().find(what); at != std::string::npos; at = v.string().find(what, at + what.size()))
    ++n;
  return n;
}

Value join(Interpreter& in, const Value& v, Arguments& a) {
  if (a.positional.empty()) throw data_error("join needs a list");
  std::string made;
  bool first = true;
  for (const Value& each : in.items(a.positional[0])) {
    if (!first) made += v.string();
    first = false;
    made += required_text(each, "join");
    in.check_size(made.size());
  }
  return in.text(std::move(made));
}

Value cut_affix(Interpreter& in, const Value& v, Arguments& a, bool front) {
  const std::string affix = text_argument(a, 0, "affix", "");
  const std::string& text = v.string();
  if (front && text.starts_with(affix)) return in.text(text.substr(affix.size()));
  if (!front && text.ends_with(affix)) return in.text(text.substr(0, text.size() - affix.size()));
  return v;
}

Value partition(Interpreter& in, const Value& v, Arguments& a) {
  const std::string by = text_argument(a, 0, "sep", "");
  if (by.empty()) throw data_error("partition at an empty string");
  const std::size_t at = v.string().find(by);
  if (at == std::string::npos) return Value::tuple({v, Value(""), Value("")});
  return Value::tuple({in.text(v.string().substr(0, at)), by, in.text(v.string().substr(at + by.size()))});
}

const std::vector<std::pair<std::string_view, Method>>& string_methods() {
  using I = Interpreter;
  using V = const Value;
  using A = Arguments;
  static const std::vector<std::pair<std::string_view, Method>> kAll{
      {"strip", [](I& in, V& v, A& a) { return strip(in, v, a, true, true); }},
      {"lstrip", [](I& in, V& v, A& a) { return strip(in, v, a, true, false); }},
      {"rstrip", [](I& in, V& v, A& a) { return strip(in, v, a, false, true); }},
      {"split", split},
      {"rsplit", rsplit},
      {"splitlines", splitlines},
      {"partition", partition},
      {"startswith", [](I&, V& v, A& a) { return Value(ends(v, a, true)); }},
      {"endswith", [](I&, V& v, A& a) { return Value(ends(v, a, false)); }},
      {"upper", [](I& in, V& v, A&) { return cased(in, v, 1); }},
      {"lower", [](I& in, V& v, A&) { return cased(in, v, 0); }},
      {"title", [](I& in, V& v, A&) { return cased(in, v, 2); }},
      {"capitalize", [](I& in, V& v, A&) { return cased(in, v, 3); }},
      {"islower", [](I&, V& v, A&) { return is_cased(v, false); }},
      {"isupper", [](I&, V& v, A&) { return is_cased(v, true); }},
      {"isdigit", [](I&, V& v, A&) { return all_of_class(v, char_class::kNumber); }},
      {"isalpha", [](I&, V& v, A&) { return all_of_class(v, char_class::kLetter); }},
      {"isalnum", [](I&, V& v, A&) { return all_of_class(v, char_class::kLetter | char_class::kNumber); }},
      {"isspace", [](I&, V& v, A&) { return all_of_class(v, char_class::kSpace); }},
      {"replace", replace},
      {"find", [](I&, V& v, A& a) { return find(v, a, false); }},
      {"rfind", [](I&, V& v, A& a) { return find(v, a, true); }},
      {"count", count},
      {"join", join},
      {"removeprefix", [](I& in, V& v, A& a) { return cut_affix(in, v, a, true); }},
      {"removesuffix", [](I& in, V& v, A& a) { return cut_affix(in, v, a, false); }},
  };
  return kAll;
}

Value dict_method(const Value& object, const std::string& name) {
  const auto self = std::make_shared<const Value>(object);
  const auto each = [&](auto make) {
    return Value(Callable{name,
                          [self, make](Interpreter& in, Arguments&) {
                            std::vector<Value> made;
                            for (const auto& [key, value] : self->dict()->entries) made.push_back(make(key, value));
                            return in.list(std::move(made));
                          },
                          self});
  };
  if (name == "items") return each([](const Value& k, const Value& v) { return Value::tuple({k, v}); });
  if (name == "keys") return each([](const Value& k, const Value&) { return k; });
  if (name == "values") return each([](const Value&, const Value& v) { return v; });
  if (name == "get") {
    return Callable{name,
                    [self](Interpreter&, Arguments& a) {
                      if (a.positional.empty()) throw data_error("get needs a key");
                      const Value* found = self->dict()->find(a.positional[0]);
                      const Value* other = argument(a, 1, "default");
                      return found != nullptr ? *found : other != nullptr ? *other : Value(None{});
                    },
                    self};
  }
  return {};
}

Value list_method(const Value& object, const std::string& name) {
  const auto self = std::make_shared<const Value>(object);
  if (name == "index") {
    return Callable{name,
                    [self](Interpreter&, Arguments& a) {
                      if (a.positional.empty()) throw data_error("index needs something to look for");
                      const std::vector<Value>& items = self->sequence()->items;
                      for (std::size_t i = 0; i < items.size(); ++i) {
                        if (equal(items[i], a.positional[0])) return Value(i);
                      }
                      throw data_error("index of something that is not in the list");
                    },
                    self};
  }
  if (name == "count") {
    return Callable{
        name,
        [self](Interpreter&, Arguments& a) {
          if (a.positional.empty()) throw data_error("count needs something to look for");
          const std::vector<Value>& items = self->sequence()->items;
          return Value(static_cast<std::int64_t>(std::count_if(
              items.begin(), items.end(), [&](const Value& each) { return equal(each, a.positional[0]); })));
        },
        self};
  }
  for (const char* changing : {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"}) {
    if (name == changing)
      throw data_error(fmt::format("'{}' would change a list, which templates may not", name)).mend("write a + [b]");
  }
  return {};
}

}  // namespace

Value method(const Value& object, const std::string& name) {
  if (object.is_string()) {
    for (const auto& [known, run] : string_methods()) {
      if (known == name)
        return Callable{name, [object, run = run](Interpreter& in, Arguments& a) { return run(in, object, a); },
                        nullptr};
    }
    return {};
  }
  if (object.dict() != nullptr) return dict_method(object, name);
  if (object.sequence() != nullptr) return list_method(object, name);
  return {};
}

}  // namespace convoy::jinja
