// What one log holds: named values in order, as Hugging Face's Trainer names them (loss, grad_norm, learning_rate,
// epoch, step, eval_loss, …). Console, JSON lines, trainer_state.json, plots and TensorBoard all take it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace convoy {

using LogValue = std::variant<std::int64_t, double, bool, std::string>;
using LogRecord = std::vector<std::pair<std::string, LogValue>>;

// A number by name; nothing if there is none.
std::optional<double> number_in(const LogRecord& record, const std::string& name);

// JSON has no NaN or infinity. Strict: the texts "NaN", "Infinity" and "-Infinity". Python's: the bare words that
// Python's json module writes and reads.
enum class NotFinite : std::uint8_t { kStrict, kPython };
// On one line.
std::string record_text(const LogRecord& record, NotFinite how);
// As Python prints a dict: {'loss': 1.25, 'epoch': 0.5}.
std::string python_dict(const LogRecord& record);

// Reads JSON with Python's words for numbers that are not finite; `name` goes into errors (status `usage`).
Json parse_python_json(std::string_view text, const std::string& name);
// `value` pretty-printed with two spaces, with Python's words; the opposite of parse_python_json.
std::string dump_python_json(const Json& value);
// A number as JSON that dump_python_json writes rightly, and back. Null reads as NaN.
Json python_number(double value);
std::optional<double> number_of(const Json& value);

// An object of numbers, texts and truths. Nested values become their JSON text. Not an object: data error.
LogRecord record_of(const Json& object);
Json json_of(const LogRecord& record);

}  // namespace convoy
