#include "config/config_node.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <istream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "config/value.h"

namespace convoy {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxNodes = 10'000;

std::string place(const std::string& name, int line) {
  return line > 0 ? fmt::format("{}:{}", name, line) : name;
}

// Builds the tree from parse events; both readers feed it.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::string name) : name_(std::move(name)) {}

  void add(ConfigNode node, std::size_t anchor) {
    if (++nodes_ > kMaxNodes) fail(node.line, "too many values for a run file");
    if (!stack_.empty() && stack_.back().node.kind == ConfigNode::Kind::kMap && !stack_.back().has_key) {
      set_key(node);
      return;
    }
    if (anchor != 0) anchors_[anchor] = node;
    place_value(std::move(node));
  }

  void open(ConfigNode::Kind kind, int line, std::size_t anchor) {
    if (stack_.size() >= kMaxDepth) fail(line, fmt::format("nested deeper than {} levels", kMaxDepth));
    if (!stack_.empty() && stack_.back().node.kind == ConfigNode::Kind::kMap && !stack_.back().has_key)
      fail(line, "a key must be plain text");
    Frame frame;
    frame.node.kind = kind;
    frame.node.line = line;
    frame.anchor = anchor;
    stack_.push_back(std::move(frame));
  }

  void close() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    if (++nodes_ > kMaxNodes) fail(frame.node.line, "too many values for a run file");
    if (frame.anchor != 0) anchors_[frame.anchor] = frame.node;
    place_value(std::move(frame.node));
  }

  // A copy of what the anchor named, counted node by node so that nested aliases cannot grow without bound.
  void alias(std::size_t anchor, int line) {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(line, "an alias refers to a value that contains it or does not exist");
    ConfigNode copy = found->second;
    nodes_ += count(copy);
    add(std::move(copy), 0);
  }

  [[noreturn]] void fail(int line, const std::string& what) const { throw usage_error(what).at(place(name_, line)); }

  std::optional<ConfigNode> take() { return std::move(root_); }
  const std::string& name() const { return name_; }

 private:
  struct Frame {
    ConfigNode node;
    std::size_t anchor = 0;
    std::string key;
    bool has_key = false;  // a map's key waits for its value
    int key_line = 0;
  };

  static std::size_t count(const ConfigNode& node) {
    std::size_t total = 1;
    for (const ConfigNode& item : node.items) total += count(item);
    for (const auto& entry : node.entries) total += count(entry.value);
    return total;
  }

  void set_key(const ConfigNode& node) {
    if (node.kind == ConfigNode::Kind::kNull) fail(node.line, "a key is missing");
    if (node.kind != ConfigNode::Kind::kScalar) fail(node.line, "a key must be plain text");
    if (node.text == "<<" && !node.quoted)
      throw usage_error("YAML merge keys (`<<`) are not supported")
          .at(place(name_, node.line))
          .mend("write the keys out, or use an alias for a whole value");
    Frame& frame = stack_.back();
    for (const auto& [key, value] : frame.node.entries) {
      if (key == node.text)
        fail(node.line, fmt::format("the key `{}` is given twice (first on line {})", key, value.line));
    }
    frame.key = node.text;
    frame.has_key = true;
    frame.key_line = node.line;
  }

  void place_value(ConfigNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == ConfigNode::Kind::kList) {
      frame.node.items.push_back(std::move(node));
      return;
    }
    if (node.kind != ConfigNode::Kind::kScalar || node.line == 0) node.line = frame.key_line;
    frame.node.entries.push_back({std::move(frame.key), std::move(node)});
    frame.has_key = false;
  }

  std::string name_;
  std::vector<Frame> stack_;
  std::map<std::size_t, ConfigNode> anchors_;
  std::size_t nodes_ = 0;
  std::optional<ConfigNode> root_;
};

class YamlEvents final : public YAML::EventHandler {
 public:
  explicit YamlEvents(TreeBuilder& builder) : builder_(builder) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    ConfigNode node;
    node.line = mark.line + 1;
    builder_.add(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override { builder_.alias(anchor, mark.line + 1); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const int line = mark.line + 1;
    const bool quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    if (!quoted) check_tag(tag, line);
    if (!quoted && is_null_word(value)) return OnNull(mark, anchor);
    // yaml-cpp turns the escapes \_ and \N into single bytes.
    if (!is_clean_utf8(value)) builder_.fail(line, "an escape that gives no UTF-8 text; write the character itself");
    builder_.add(ConfigNode::scalar(value, quoted, line), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check_tag(tag, mark.line + 1);
    builder_.open(ConfigNode::Kind::kList, mark.line + 1, anchor);
  }
  void OnSequenceEnd() override { builder_.close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_tag(tag, mark.line + 1);
    builder_.open(ConfigNode::Kind::kMap, mark.line + 1, anchor);
  }
  void OnMapEnd() override { builder_.close(); }

 private:
  void check_tag(const std::string& tag, int line) const {
    static const std::vector<std::string> known = {"",
                                                   "?",
                                                   "!",
                                                   "tag:yaml.org,2002:int",
                                                   "tag:yaml.org,2002:float",
                                                   "tag:yaml.org,2002:bool",
                                                   "tag:yaml.org,2002:null",
                                                   "tag:yaml.org,2002:map",
                                                   "tag:yaml.org,2002:seq"};
    if (std::find(known.begin(), known.end(), tag) == known.end())
      builder_.fail(line, fmt::format("the YAML tag {} is not supported", tag));
  }
  TreeBuilder& builder_;
};

// Counts the lines that the JSON reader has passed.
struct LineCounter {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  const char* at;
  int* line;
  reference operator*() const { return *at; }
  LineCounter& operator++() {
    if (*at == '\n') ++*line;
    ++at;
    return *this;
  }
  LineCounter operator++(int) {
    LineCounter old = *this;
    ++*this;
    return old;
  }
  bool operator==(const LineCounter& other) const { return at == other.at; }
  bool operator!=(const LineCounter& other) const { return at != other.at; }
};

class JsonEvents final : public nlohmann::json_sax<Json> {
 public:
  JsonEvents(TreeBuilder& builder, const int& line) : builder_(builder), line_(line) {}
  bool null() override {
    builder_.add(ConfigNode{}, 0);
    return true;
  }
  bool boolean(bool value) override { return plain(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return plain(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return plain(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return plain(text); }
  bool string(string_t& value) override { return quoted(value, 0); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    builder_.open(ConfigNode::Kind::kMap, line_, 0);
    return true;
  }
  bool key(string_t& value) override { return quoted(value, line_); }
  bool end_object() override {
    builder_.close();
    return true;
  }
  bool start_array(std::size_t) override {
    builder_.open(ConfigNode::Kind::kList, line_, 0);
    return true;
  }
  bool end_array() override {
    builder_.close();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  // The reader may be a token ahead of a value: values take their key's line.
  bool plain(std::string text) {
    builder_.add(ConfigNode::scalar(std::move(text), false, 0), 0);
    return true;
  }
  bool quoted(const std::string& text, int line) {
    if (text.find('\0') != std::string::npos) builder_.fail(line_, "text holds a NUL character");
    builder_.add(ConfigNode::scalar(text, true, line), 0);
    return true;
  }
  TreeBuilder& builder_;
  const int& line_;
};

void require_utf8(std::string_view text, const std::string& name) {
  if (is_clean_utf8(text)) return;
  throw usage_error("not UTF-8 text").at(name).mend("save the file as UTF-8");
}

ConfigNode require_map(std::optional<ConfigNode> root, const std::string& name) {
  ConfigNode empty;
  empty.kind = ConfigNode::Kind::kMap;
  if (!root || root->kind == ConfigNode::Kind::kNull) return empty;
  if (root->kind != ConfigNode::Kind::kMap)
    throw usage_error("a run file is a map of keys").at(place(name, root->line)).mend("write `key: value` lines");
  return std::move(*root);
}

std::optional<ConfigNode> read_document(std::string_view text, const std::string& name) {
  require_utf8(text, name);
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(name);
  YamlEvents events(builder);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(events);
    std::optional<ConfigNode> root = builder.take();
    TreeBuilder rest(name);
    YamlEvents rest_events(rest);
    if (parser.HandleNextDocument(rest_events)) {
      const std::optional<ConfigNode> second = rest.take();
      throw usage_error("a second YAML document; a run file is one").at(place(name, second ? second->line : 0));
    }
    return root;
  } catch (const YAML::Exception& failure) {
    throw usage_error(fmt::format("not valid YAML: {}", failure.msg))
        .at(failure.mark.is_null() ? name
                                   : fmt::format("{}:{}:{}", name, failure.mark.line + 1, failure.mark.column + 1));
  }
}

}  // namespace

ConfigNode ConfigNode::scalar(std::string text, bool quoted, int line) {
  ConfigNode node;
  node.kind = Kind::kScalar;
  node.text = std::move(text);
  node.quoted = quoted;
  node.line = line;
  return node;
}

ConfigNode parse_yaml(std::string_view text, const std::string& name) {
  return require_map(read_document(text, name), name);
}

ConfigNode parse_yaml_value(std::string_view text, const std::string& name) {
  return read_document(text, name).value_or(ConfigNode{});
}

ConfigNode parse_json_tree(std::string_view text, const std::string& name) {
  require_utf8(text, name);
  int line = 1;
  TreeBuilder builder(name);
  JsonEvents events(builder, line);
  const char* begin = text.data();
  const bool whole = Json::sax_parse(LineCounter{begin, &line}, LineCounter{begin + text.size(), &line}, &events);
  if (!whole) {
    parse_json(text, name);  // throws, with line, column and reason
    throw usage_error("not valid JSON").at(name);
  }
  return require_map(builder.take(), name);
}

Json to_json(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return nullptr;
    case ConfigNode::Kind::kList: {
      Json list = Json::array();
      for (const ConfigNode& item : node.items) list.push_back(to_json(item));
      return list;
    }
    case ConfigNode::Kind::kMap: {
      Json map = Json::object();
      for (const auto& [key, value] : node.entries) map[key] = to_json(value);
      return map;
    }
    case ConfigNode::Kind::kScalar:
      break;
  }
  if (node.quoted) return node.text;
  if (node.text == "true" || node.text == "True" || node.text == "TRUE") return true;
  if (node.text == "false" || node.text == "False" || node.text == "FALSE") return false;
  if (const auto integer = parse_integer(node.text); integer && node.text.find_first_of(".eE") == std::string::npos)
    return *integer;
  if (const auto real = parse_real(node.text)) return *real;
  return node.text;
}

bool is_clean_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead == 0     ? 0
                               : lead < 0x80 ? 1
                               : lead < 0xc2 ? 0
                               : lead < 0xe0 ? 2
                               : lead < 0xf0 ? 3
                               : lead < 0xf5 ? 4
                                             : 0;
    if (length == 0 || i + length > text.size()) return false;
    std::uint32_t code = length == 1 ? lead : lead & (0x7fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0u) != 0x80u) return false;
      code = (code << 6) | (next & 0x3fu);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += length;
  }
  return true;
}

}  // namespace convoy
