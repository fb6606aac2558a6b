// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace convoy::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind : std::uint8_t {
  kLiteral,    // value
  kName,       // text
  kList,       // operands
  kTuple,      // operands
  kDict,       // operands: key, value, key, value, …
  kAttribute,  // operands[0].text
  kItem,       // operands[0][operands[1]]
  kSlice,      // operands[0][operands[1]:operands[2]:operands[3]], null where left out
  kCall,       // operands[0](operands[1…], named)
  kFilter,     // operands[0] | text(operands[1…], named); operands[0] is null in a filter block
  kTest,       // operands[0] is text(operands[1…], named)
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kArithmetic,   // text: + - * / // % ** ~
  kCompare,      // operands[0] texts[0] operands[1] texts[1] …
  kConditional,  // operands[0] if operands[1] else operands[2] (or null)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  int depth = 1;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> texts;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class StatementKind : std::uint8_t {
  kText,        // text
  kOutput,      // expression
  kIf,          // branches; one without a condition is the else
  kFor,         // targets in expression if condition: body, else otherwise
  kSet,         // targets = expression; or, without an expression, the text of body
  kMacro,       // text(parameters): body
  kFilter,      // expression over the text of body
  kGeneration,  // body is the assistant's
  kWith,        // parameters: body
  kBreak,
  kContinue,
  kDo,  // expression, whose result is dropped
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  ExpressionPtr expression, condition;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  std::vector<ExpressionPtr> targets;  // names, or attributes of namespaces
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;
  Block body, otherwise;
};

// Throws a usage error with the line for what is no Jinja, or not of the part that is understood here.
Block parse_template(std::string_view source, const std::string& name);

// Whether the template has filters, tests of these names; see functions.cpp.
bool is_filter(const std::string& name);
bool is_test(const std::string& name);
std::vector<std::string> filter_names();
std::vector<std::string> test_names();

}  // namespace convoy::jinja
