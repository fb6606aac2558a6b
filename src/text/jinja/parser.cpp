#include <fmt/format.h>

#include <charconv>
#include <initializer_list>

#include "base/suggest.h"
#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace convoy::jinja {
namespace {

constexpr int kDeepestSyntax = 150;

class Parser {
 public:
  Parser(std::string_view source, const std::string& name) : name_(name), tokens_(tokenize(source, name)) {}

  Block run() {
    Block all = block({});
    return all;
  }

 private:
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead(std::size_t by) const { return tokens_[std::min(at_ + by, tokens_.size() - 1)]; }
  [[noreturn]] void fail(const std::string& what, int line) const {
    throw usage_error(what).at(place(name_, line)).mend("mend the chat template, or set chat_format");
  }
  [[noreturn]] void unexpected(const std::string& wanted) const {
    std::string found = fmt::format("'{}'", now().text);
    if (now().kind == TokenKind::kBlockEnd) found = "the end of the tag";
    if (now().kind == TokenKind::kVariableEnd) found = "the end of the tag";
    if (now().kind == TokenKind::kEnd) found = "the end of the template";
    fail(fmt::format("{} was expected, not {}", wanted, found), now().line);
  }
  bool is(TokenKind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool is_operator(std::string_view text) const { return is(TokenKind::kOperator, text); }
  bool is_word(std::string_view text) const { return is(TokenKind::kName, text); }
  bool take(std::string_view text) {
    if (now().kind != TokenKind::kOperator && now().kind != TokenKind::kName) return false;
    if (now().text != text) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!take(text)) unexpected(fmt::format("'{}'", text));
  }
  std::string name() {
    if (now().kind != TokenKind::kName) unexpected("a name");
    return tokens_[at_++].text;
  }
  void end_of_block() {
    if (now().kind != TokenKind::kBlockEnd) unexpected("the end of the tag");
    ++at_;
  }

  // --- expressions ---------------------------------------------------------------------------------------------------

  // A guard against trees that are deeper than the machine's stack.
  struct Level {
    explicit Level(Parser& parser) : owner(parser) {
      if (++owner.depth_ > kDeepestSyntax) owner.fail("nested too deeply", owner.now().line);
    }
    ~Level() { --owner.depth_; }
    Parser& owner;
  };

  ExpressionPtr make(ExpressionKind kind, std::string text, std::vector<ExpressionPtr> operands, int line) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->text = std::move(text);
    made->operands = std::move(operands);
    made->line = line;
    return measured(std::move(made));
  }
  ExpressionPtr measured(ExpressionPtr made) {
    for (const auto& operand : made->operands) {
      if (operand) made->depth = std::max(made->depth, operand->depth + 1);
    }
    for (const auto& [key, operand] : made->named) made->depth = std::max(made->depth, operand->depth + 1);
    if (made->depth > kDeepestSyntax) fail("an expression of too many parts", made->line);
    return made;
  }
  template <typename... Parts>
  ExpressionPtr node(ExpressionKind kind, std::string text, int line, Parts... parts) {
    std::vector<ExpressionPtr> operands;
    (operands.push_back(std::move(parts)), ...);
    return make(kind, std::move(text), std::move(operands), line);
  }
  ExpressionPtr literal(Value value) {
    ExpressionPtr made = node(ExpressionKind::kLiteral, "", now().line);
    made->value = std::move(value);
    return made;
  }

  ExpressionPtr expression() {
    const Level level(*this);
    ExpressionPtr value = either();
    while (is_word("if")) {
      const int line = now().line;
      ++at_;
      ExpressionPtr condition = either();
      ExpressionPtr other = take("else") ? expression() : nullptr;
      value = node(ExpressionKind::kConditional, "", line, std::move(value), std::move(condition), std::move(other));
    }
    return value;
  }

  template <typename Next>
  ExpressionPtr chain(ExpressionKind kind, std::initializer_list<std::string_view> words, Next next) {
    ExpressionPtr left = next();
    while (true) {
      std::string word;
      const int line = now().line;
      for (const std::string_view each : words) {
        if (word.empty() && take(each)) word = each;
      }
      if (word.empty()) return left;
      ExpressionPtr right = next();
      left = node(kind, word, line, std::move(left), std::move(right));
    }
  }
  ExpressionPtr either() {
    return chain(ExpressionKind::kOr, {"or"}, [this] { return both(); });
  }
  ExpressionPtr both() {
    return chain(ExpressionKind::kAnd, {"and"}, [this] { return negation(); });
  }
  ExpressionPtr negation() {
    const int line = now().line;
    if (!take("not")) return comparison();
    const Level level(*this);
    return node(ExpressionKind::kNot, "", line, negation());
  }
  ExpressionPtr comparison() {
    ExpressionPtr first = sum();
    std::vector<std::string> texts;
    std::vector<ExpressionPtr> operands;
    const int line = now().line;
    while (true) {
      std::string word;
      for (const char* each : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (word.empty() && now().kind == TokenKind::kOperator && take(each)) word = each;
      }
      if (word.empty() && is_word("in")) word = tokens_[at_++].text;
      if (word.empty() && is_word("not") && ahead(1).kind == TokenKind::kName && ahead(1).text == "in") {
        at_ += 2;
        word = "not in";
      }
      if (word.empty()) break;
      texts.push_back(word);
      operands.push_back(sum());
    }
    if (texts.empty()) return first;
    operands.insert(operands.begin(), std::move(first));
    ExpressionPtr made = make(ExpressionKind::kCompare, "", std::move(operands), line);
    made->texts = std::move(texts);
    return made;
  }
  ExpressionPtr sum() {
    return chain(ExpressionKind::kArithmetic, {"+", "-"}, [this] { return concatenation(); });
  }
  ExpressionPtr concatenation() {
    return chain(ExpressionKind::kArithmetic, {"~"}, [this] { return product(); });
  }
  ExpressionPtr product() {
    return chain(ExpressionKind::kArithmetic, {"*", "//", "/", "%"}, [this] { return power(); });
  }
  ExpressionPtr power() {
    return chain(ExpressionKind::kArithmetic, {"**"}, [this] { return unary(true); });
  }
  ExpressionPtr unary(bool with_filter) {
    const Level level(*this);
    const int line = now().line;
    ExpressionPtr value;
    if (now().kind == TokenKind::kOperator && take("-")) {
      value = node(ExpressionKind::kNegative, "", line, unary(false));
    } else if (now().kind == TokenKind::kOperator && take("+")) {
      value = node(ExpressionKind::kPositive, "", line, unary(false));
    } else {
      value = postfix(primary());
    }
    return with_filter ? filters(std::move(value)) : std::move(value);
  }

  ExpressionPtr primary() {
    const Token& token = now();
    switch (token.kind) {
      case TokenKind::kName: {
        ++at_;
        if (token.text == "true" || token.text == "True") return literal(true);
        if (token.text == "false" || token.text == "False") return literal(false);
        if (token.text == "none" || token.text == "None") return literal(None{});
        return node(ExpressionKind::kName, token.text, token.line);
      }
      case TokenKind::kString: {
        std::string text;
        while (now().kind == TokenKind::kString) text += tokens_[at_++].text;
        return literal(std::move(text));
      }
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return number();
      default:
        break;
    }
    if (is_operator("(")) return parenthesis();
    if (is_operator("[")) return list();
    if (is_operator("{")) return dictionary();
    unexpected("an expression");
  }
  ExpressionPtr number() {
    const Token& token = tokens_[at_++];
    const char* end = token.text.data() + token.text.size();
    if (token.kind == TokenKind::kInteger) {
      std::int64_t value = 0;
      if (std::from_chars(token.text.data(), end, value).ec != std::errc())
        fail(fmt::format("the number {} is too large", token.text), token.line);
      return literal(value);
    }
    double value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      fail(fmt::format("the number {} is too large", token.text), token.line);
    return literal(value);
  }
  ExpressionPtr parenthesis() {
    const int line = now().line;
    expect("(");
    std::vector<ExpressionPtr> items;
    bool tuple = is_operator(")");
    while (!is_operator(")")) {
      items.push_back(expression());
      if (!take(",")) break;
      tuple = true;
    }
    expect(")");
    if (!tuple) return std::move(items.front());
    return make(ExpressionKind::kTuple, "", std::move(items), line);
  }
  ExpressionPtr list() {
    const int line = now().line;
    expect("[");
    std::vector<ExpressionPtr> items;
    while (!is_operator("]")) {
      items.push_back(expression());
      if (!take(",")) break;
    }
    expect("]");
    return make(ExpressionKind::kList, "", std::move(items), line);
  }
  ExpressionPtr dictionary() {
    const int line = now().line;
    expect("{");
    std::vector<ExpressionPtr> items;
    while (!is_operator("}")) {
      items.push_back(expression());
      expect(":");
      items.push_back(expression());
      if (!take(",")) break;
    }
    expect("}");
    return make(ExpressionKind::kDict, "", std::move(items), line);
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      const int line = now().line;
      if (is_operator(".")) {
        ++at_;
        if (now().kind == TokenKind::kInteger) {
          value = node(ExpressionKind::kItem, "", line, std::move(value), number());
        } else {
          value = node(ExpressionKind::kAttribute, name(), line, std::move(value));
        }
      } else if (is_operator("[")) {
        value = subscript(std::move(value));
      } else if (is_operator("(")) {
        value = call(ExpressionKind::kCall, "", std::move(value));
      } else {
        return value;
      }
    }
  }
  ExpressionPtr subscript(ExpressionPtr value) {
    const int line = now().line;
    expect("[");
    std::vector<ExpressionPtr> parts;
    bool slice = false;
    parts.push_back(is_operator(":") ? nullptr : expression());
    while (parts.size() < 3 && take(":")) {
      slice = true;
      parts.push_back(is_operator(":") || is_operator("]") ? nullptr : expression());
    }
    expect("]");
    parts.insert(parts.begin(), std::move(value));
    if (slice) parts.resize(4);
    return make(slice ? ExpressionKind::kSlice : ExpressionKind::kItem, "", std::move(parts), line);
  }
  ExpressionPtr call(ExpressionKind kind, std::string text, ExpressionPtr callee) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->text = std::move(text);
    made->line = now().line;
    made->operands.push_back(std::move(callee));
    expect("(");
    while (!is_operator(")")) {
      if (is_operator("*") || is_operator("**")) fail("'*' in a call is not supported", now().line);
      if (now().kind == TokenKind::kName && ahead(1).kind == TokenKind::kOperator && ahead(1).text == "=") {
        std::string key = name();
        expect("=");
        made->named.emplace_back(std::move(key), expression());
      } else {
        if (!made->named.empty()) fail("a positional argument after a named one", now().line);
        made->operands.push_back(expression());
      }
      if (!take(",")) break;
    }
    expect(")");
    return measured(std::move(made));
  }
  ExpressionPtr filters(ExpressionPtr value) {
    while (true) {
      if (is_operator("|")) {
        ++at_;
        value = filter(std::move(value));
      } else if (is_word("is")) {
        value = test(std::move(value));
      } else if (is_operator("(")) {
        value = call(ExpressionKind::kCall, "", std::move(value));
      } else {
        return value;
      }
    }
  }
  ExpressionPtr filter(ExpressionPtr value) {
    const int line = now().line;
    std::string word = name();
    if (!is_filter(word))
      fail(fmt::format("there is no filter '{}'{}", word, did_you_mean(word, filter_names())), line);
    if (is_operator("(")) return call(ExpressionKind::kFilter, std::move(word), std::move(value));
    return node(ExpressionKind::kFilter, std::move(word), line, std::move(value));
  }
  ExpressionPtr test(ExpressionPtr value) {
    expect("is");
    const int line = now().line;
    const bool inverse = take("not");
    std::string word = name();
    if (!is_test(word)) fail(fmt::format("there is no test '{}'{}", word, did_you_mean(word, test_names())), line);
    ExpressionPtr made;
    if (is_operator("(")) {
      made = call(ExpressionKind::kTest, std::move(word), std::move(value));
    } else {
      const bool argument = now().kind == TokenKind::kString || now().kind == TokenKind::kInteger ||
                            now().kind == TokenKind::kFloat || is_operator("[") || is_operator("{") ||
                            (now().kind == TokenKind::kName && !is_word("else") && !is_word("or") && !is_word("and") &&
                             !is_word("is") && !is_word("if") && !is_word("not") && !is_word("in"));
      std::vector<ExpressionPtr> operands;
      operands.push_back(std::move(value));
      if (argument) operands.push_back(postfix(primary()));
      made = make(ExpressionKind::kTest, std::move(word), std::move(operands), line);
    }
    return inverse ? node(ExpressionKind::kNot, "", line, std::move(made)) : std::move(made);
  }
  // One expression, or several with commas: a tuple.
  ExpressionPtr tuple() {
    const int line = now().line;
    ExpressionPtr first = expression();
    if (!is_operator(",")) return first;
    std::vector<ExpressionPtr> items;
    items.push_back(std::move(first));
    while (take(",")) {
      if (now().kind == TokenKind::kBlockEnd || now().kind == TokenKind::kVariableEnd) break;
      items.push_back(expression());
    }
    return make(ExpressionKind::kTuple, "", std::move(items), line);
  }

  // --- statements ----------------------------------------------------------------------------------------------------

  // Statements up to a tag that begins with one of `ends`, whose word is taken too (`ended_`); without any, all.
  Block block(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    const int line = now().line;
    Block made;
    while (now().kind != TokenKind::kEnd) {
      if (now().kind == TokenKind::kText) {
        made.push_back(statement(StatementKind::kText));
        made.back()->text = tokens_[at_++].text;
      } else if (now().kind == TokenKind::kVariableBegin) {
        ++at_;
        made.push_back(statement(StatementKind::kOutput));
        made.back()->expression = tuple();
        if (now().kind != TokenKind::kVariableEnd) unexpected("the end '}}' of the tag");
        ++at_;
      } else {
        ++at_;
        for (const std::string_view end : ends) {
          if (!is_word(end)) continue;
          ++at_;
          ended_ = end;
          return made;
        }
        made.push_back(tag());
      }
    }
    if (ends.size() > 0) fail(fmt::format("the tag before has no '{}'", *(ends.end() - 1)), line);
    return made;
  }
  std::unique_ptr<Statement> statement(StatementKind kind) const {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = now().line;
    return made;
  }

  std::unique_ptr<Statement> tag() {
    const int line = now().line;
    const std::string word = name();
    if (word == "if") return conditional();
    if (word == "for") return loop();
    if (word == "set") return assignment();
    if (word == "macro") return macro();
    if (word == "filter") return filter_block();
    if (word == "with") return with();
    if (word == "generation") {
      auto made = statement(StatementKind::kGeneration);
      end_of_block();
      made->body = block({"endgeneration"});
      end_of_block();
      return made;
    }
    if (word == "break" || word == "continue") {
      auto made = statement(word == "break" ? StatementKind::kBreak : StatementKind::kContinue);
      if (loops_ == 0) fail(fmt::format("'{}' outside of a loop", word), line);
      end_of_block();
      return made;
    }
    if (word == "do") {
      auto made = statement(StatementKind::kDo);
      made->expression = tuple();
      end_of_block();
      return made;
    }
    if (word.starts_with("end") || word == "else" || word == "elif") fail(fmt::format("'{}' ends nothing", word), line);
    static const std::vector<std::string> kTags{"if",         "for",   "set",      "macro", "filter", "with",
                                                "generation", "break", "continue", "do",    "raw"};
    fail(fmt::format("the tag '{}' is not supported{}", word, did_you_mean(word, kTags)), line);
  }

  std::unique_ptr<Statement> conditional() {
    auto made = statement(StatementKind::kIf);
    made->branches.emplace_back(tuple(), Block{});
    end_of_block();
    while (true) {
      made->branches.back().second = block({"elif", "else", "endif"});
      if (ended_ == "endif") break;
      const bool last = ended_ == "else";
      made->branches.emplace_back(last ? nullptr : tuple(), Block{});
      end_of_block();
      if (!last) continue;
      made->branches.back().second = block({"endif"});
      break;
    }
    end_of_block();
    return made;
  }

  std::vector<ExpressionPtr> targets(bool attributes) {
    std::vector<ExpressionPtr> made;
    const bool open = take("(");
    while (true) {
      const int line = now().line;
      ExpressionPtr target = node(ExpressionKind::kName, name(), line);
      if (attributes && is_operator(".")) {
        ++at_;
        target = node(ExpressionKind::kAttribute, name(), line, std::move(target));
      }
      made.push_back(std::move(target));
      if (!take(",") || is_operator(")")) break;
    }
    if (open) expect(")");
    return made;
  }

  std::unique_ptr<Statement> loop() {
    auto made = statement(StatementKind::kFor);
    made->targets = targets(false);
    expect("in");
    // The condition of the loop is not that of a conditional expression.
    made->expression = loop_source();
    if (take("if")) made->condition = expression();
    if (is_word("recursive")) fail("recursive loops are not supported", now().line);
    end_of_block();
    ++loops_;
    made->body = block({"else", "endfor"});
    --loops_;
    if (ended_ == "else") {
      end_of_block();
      made->otherwise = block({"endfor"});
    }
    end_of_block();
    return made;
  }
  ExpressionPtr loop_source() {
    const int line = now().line;
    ExpressionPtr first = either();
    if (!is_operator(",")) return first;
    std::vector<ExpressionPtr> items;
    items.push_back(std::move(first));
    while (take(",")) items.push_back(either());
    return make(ExpressionKind::kTuple, "", std::move(items), line);
  }

  std::unique_ptr<Statement> assignment() {
    auto made = statement(StatementKind::kSet);
    made->targets = targets(true);
    if (take("=")) {
      made->expression = tuple();
      end_of_block();
      return made;
    }
    if (is_operator("|")) {
      ++at_;
      made->condition = filters(filter(nullptr));  // of the body's text
    }
    end_of_block();
    made->body = block({"endset"});
    end_of_block();
    return made;
  }

  std::unique_ptr<Statement> macro() {
    auto made = statement(StatementKind::kMacro);
    made->text = name();
    expect("(");
    while (!is_operator(")")) {
      std::string parameter = name();
      made->parameters.emplace_back(std::move(parameter), take("=") ? expression() : nullptr);
      if (!take(",")) break;
    }
    expect(")");
    end_of_block();
    const int outer = std::exchange(loops_, 0);
    made->body = block({"endmacro"});
    loops_ = outer;
    if (now().kind == TokenKind::kName) ++at_;  // {% endmacro NAME %}
    end_of_block();
    return made;
  }

  std::unique_ptr<Statement> filter_block() {
    auto made = statement(StatementKind::kFilter);
    made->expression = filters(filter(nullptr));
    end_of_block();
    made->body = block({"endfilter"});
    end_of_block();
    return made;
  }

  std::unique_ptr<Statement> with() {
    auto made = statement(StatementKind::kWith);
    while (now().kind != TokenKind::kBlockEnd) {
      std::string variable = name();
      expect("=");
      made->parameters.emplace_back(std::move(variable), expression());
      if (!take(",")) break;
    }
    end_of_block();
    made->body = block({"endwith"});
    end_of_block();
    return made;
  }

  const std::string& name_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::string_view ended_;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

Block parse_template(std::string_view source, const std::string& name) {
  return Parser(source, name).run();
}

}  // namespace convoy::jinja
