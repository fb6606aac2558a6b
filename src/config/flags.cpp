#include <fmt/format.h>

#include <algorithm>

#include "base/suggest.h"
#include "config/deepspeed_json.h"
#include "config/given.h"
#include "config/value.h"

namespace convoy {
namespace {

bool is_flag(const std::string& arg) {
  return arg.size() > 1 && arg[0] == '-' && !parse_real(arg);
}

// The arguments, read from left to right.
class FlagReader {
 public:
  explicit FlagReader(const std::vector<std::string>& args) : args_(args) {}

  CommandLine read() {
    while (at_ < args_.size()) {
      const std::string& arg = args_[at_++];
      if (!is_clean_utf8(arg)) throw usage_error("an argument is not UTF-8 text").at("command line");
      if (is_flag(arg)) {
        read_flag(arg);
      } else if (!result_.run_file.empty()) {
        throw usage_error(
            fmt::format("'{}' belongs to no flag, and there is a run file already: '{}'", arg, result_.run_file))
            .at("command line")
            .mend("give one run file, and values right after their flag");
      } else {
        result_.run_file = arg;
      }
    }
    return std::move(result_);
  }

 private:
  void read_flag(const std::string& arg) {
    const std::size_t equals = arg.find('=');
    const std::string flag = arg.substr(0, equals);
    std::string name = flag.substr(std::min<std::size_t>(2, flag.size()));
    std::replace(name.begin(), name.end(), '-', '_');
    if (flag.rfind("--", 0) != 0 || name.empty())
      throw usage_error(fmt::format("'{}' is not a flag", arg)).at("command line").mend("flags start with `--`");
    const Key* key = find_key(name);
    bool negated = false;
    if (key == nullptr && name.rfind("no_", 0) == 0) {
      key = find_key(name.substr(3));
      negated = key != nullptr && (key->kind == Key::Kind::kBool || key->kind == Key::Kind::kTextOrBool);
      if (!negated) key = nullptr;
    }
    if (key == nullptr) throw unknown_key(name, flag);
    Given given;
    given.key = key;
    given.written = negated ? name.substr(3) : name;
    given.where = flag;
    if (negated) {
      if (equals != std::string::npos) throw usage_error(fmt::format("`{}` takes no value", flag)).at(flag);
      given.node = ConfigNode::scalar("false", false, 0);
    } else if (equals != std::string::npos) {
      given.node = single(*key, arg.substr(equals + 1), flag);
    } else {
      given.node = following(*key, flag);
    }
    result_.flags.push_back(std::move(given));
  }

  bool has_value() const { return at_ < args_.size() && !is_flag(args_[at_]); }

  static ConfigNode text_node(const Key& key, const std::string& text) {
    const bool null_word = text == "None" || is_null_word(text);
    const bool can_be_text = key.kind == Key::Kind::kText && !key.nullable;
    return null_word && !can_be_text ? ConfigNode{} : ConfigNode::scalar(text, false, 0);
  }

  static ConfigNode single(const Key& key, const std::string& text, const std::string& flag) {
    if (!is_clean_utf8(text)) throw usage_error("the value is not UTF-8 text").at(flag);
    const bool braces = !text.empty() && text.front() == '{';
    if (braces && key.name == "deepspeed") return without_lines(parse_deepspeed_json(text, flag));
    if (braces && (key.kind == Key::Kind::kMap || key.kind == Key::Kind::kTextOrMap))
      return without_lines(parse_yaml_value(text, flag));
    if (key.kind == Key::Kind::kList) {
      ConfigNode list;
      list.kind = ConfigNode::Kind::kList;
      list.items.push_back(ConfigNode::scalar(text, false, 0));
      return list;
    }
    return text_node(key, text);
  }

  static ConfigNode without_lines(ConfigNode node) {
    node.line = 0;
    return node;
  }

  ConfigNode following(const Key& key, const std::string& flag) {
    const bool refused = key.effect == Key::Effect::kRefused;
    switch (key.kind) {
      case Key::Kind::kBool:
        if (has_value() && parse_bool(args_[at_])) return ConfigNode::scalar(args_[at_++], false, 0);
        return ConfigNode::scalar("true", false, 0);
      case Key::Kind::kTextOrBool:
        if (has_value()) return text_node(key, args_[at_++]);
        return ConfigNode::scalar("true", false, 0);
      case Key::Kind::kList:
      case Key::Kind::kAny: {
        ConfigNode list;
        list.kind = ConfigNode::Kind::kList;
        while (has_value())
          list.items.push_back(single(key.kind == Key::Kind::kList ? any_key() : key, args_[at_++], flag));
        if (list.items.empty() && refused) return ConfigNode::scalar("true", false, 0);
        if (list.items.empty()) throw missing_value(key, flag);
        return list.items.size() == 1 && key.kind == Key::Kind::kAny ? list.items.front() : list;
      }
      default:
        if (!has_value()) throw missing_value(key, flag);
        return single(key, args_[at_++], flag);
    }
  }

  // Items of a list are text as it stands.
  static const Key& any_key() {
    static const Key key = [] {
      Key text;
      text.kind = Key::Kind::kText;
      return text;
    }();
    return key;
  }

  static Error missing_value(const Key& key, const std::string& flag) {
    if (key.kind == Key::Kind::kAny) return usage_error(fmt::format("`{}` needs a value", flag)).at(flag);
    return usage_error(fmt::format("`{}` needs a value: {}", flag, accepted_values(key))).at(flag);
  }

  const std::vector<std::string>& args_;
  std::size_t at_ = 0;
  CommandLine result_;
};

}  // namespace

CommandLine parse_flags(const std::vector<std::string>& args) {
  return FlagReader(args).read();
}

Error unknown_key(const std::string& name, const std::string& where) {
  Error error = usage_error(fmt::format("unknown key '{}'{}", name, did_you_mean(name, key_names())));
  error.at(where);
  if (!nearest_name(name, key_names())) error.mend("docs/configuration.md lists the keys");
  return error;
}

std::vector<Given> given_by_file(const ConfigNode& root, const std::string& name) {
  std::vector<Given> result;
  for (const auto& [written, node] : root.entries) {
    const std::string where = node.line > 0 ? fmt::format("{}:{}", name, node.line) : name;
    const Key* key = find_key(written);
    if (key == nullptr) throw unknown_key(written, where);
    for (const Given& earlier : result) {
      if (earlier.key == key)
        throw usage_error(fmt::format("`{}` is the same key as `{}` ({})", written, earlier.written, earlier.where))
            .at(where)
            .mend("keep one of them");
    }
    result.push_back({key, written, node, where});
  }
  return result;
}

}  // namespace convoy
