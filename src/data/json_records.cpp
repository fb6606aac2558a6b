// JSON lines and JSON arrays. simdjson's DOM is used rather than its on-demand reader, because only the former checks
// every byte of a record, also of the fields that nobody asks for.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <limits>
#include <map>

#include "base/error.h"
#include "base/suggest.h"
#include "data/records.h"

namespace convoy {
namespace {

namespace dom = simdjson::dom;

std::string_view type_name(dom::element value) {
  switch (value.type()) {
    case dom::element_type::ARRAY:
      return "a list";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a truth value";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

std::string_view string_of(dom::element value, const std::string& field) {
  std::string_view text;
  if (value.get_string().get(text) != simdjson::SUCCESS)
    throw data_error(fmt::format("field '{}' is {}, not a string", field, type_name(value)));
  return text;
}

std::string_view required_string(dom::object object, const std::string& field) {
  dom::element value;
  if (object.at_key(field).get(value) != simdjson::SUCCESS) throw data_error(fmt::format("no field '{}'", field));
  return string_of(value, field);
}

// Missing and null are the same: none.
std::string_view optional_string(dom::object object, const std::string& field) {
  dom::element value;
  if (object.at_key(field).get(value) != simdjson::SUCCESS || value.is_null()) return {};
  return string_of(value, field);
}

dom::array required_list(dom::object object, const std::string& field) {
  dom::element value;
  if (object.at_key(field).get(value) != simdjson::SUCCESS) throw data_error(fmt::format("no field '{}'", field));
  dom::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS)
    throw data_error(fmt::format("field '{}' is {}, not a list", field, type_name(value)));
  return list;
}

dom::object object_in(dom::element value, const std::string& what) {
  dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS)
    throw data_error(fmt::format("{} is {}, not an object", what, type_name(value)));
  return object;
}

// A string, or a list of parts of which each is {"type": "text", "text": …}.
std::string content_of(dom::object message, const std::string& field) {
  dom::element value;
  if (message.at_key(field).get(value) != simdjson::SUCCESS) throw data_error(fmt::format("no field '{}'", field));
  dom::array parts;
  if (value.get_array().get(parts) != simdjson::SUCCESS) return std::string(string_of(value, field));
  std::string text;
  for (const dom::element part : parts) {
    const dom::object object = object_in(part, fmt::format("a part of '{}'", field));
    const std::string_view type = required_string(object, "type");
    if (type != "text") {
      throw data_error(fmt::format("a part of '{}' is of type '{}'", field, type))
          .mend("only parts of type 'text' can be trained on here");
    }
    text += required_string(object, "text");
  }
  return text;
}

// A field that says something: not null, and neither an empty list nor an empty string.
bool says(dom::object object, std::string_view field) {
  dom::element value;
  if (object.at_key(field).get(value) != simdjson::SUCCESS || value.is_null()) return false;
  std::string_view text;
  if (value.get_string().get(text) == simdjson::SUCCESS && (text.empty() || text == "[]")) return false;
  dom::array list;
  return value.get_array().get(list) != simdjson::SUCCESS || list.begin() != list.end();
}

// The fields of a message that only templates know, as a JSON object; or "".
std::string more_of(dom::object message) {
  std::string more;
  for (const char* field : {"tool_calls", "function_call", "tool_call_id", "reasoning_content", "name", "tools"}) {
    if (!says(message, field)) continue;
    more += fmt::format("{}\"{}\": {}", more.empty() ? "{" : ", ", field,
                        std::string(simdjson::minify(message.at_key(field).value())));
  }
  return more.empty() ? more : more + "}";
}

// A list, or (as some data sets have it) a string that holds one.
std::string tools_of(dom::object record) {
  if (!says(record, "tools")) return {};
  const dom::element tools = record.at_key("tools").value();
  std::string_view text;
  if (tools.get_string().get(text) == simdjson::SUCCESS) {
    dom::parser parser;
    dom::array list;
    if (parser.parse(text.data(), text.size()).get_array().get(list) != simdjson::SUCCESS)
      throw data_error("field 'tools' is a string that holds no JSON list");
    return std::string(text);
  }
  dom::array list;
  if (tools.get_array().get(list) != simdjson::SUCCESS)
    throw data_error(fmt::format("field 'tools' is {}, not a list", type_name(tools)));
  return std::string(simdjson::minify(list));
}

// A message that calls tools may have no content.
std::string content_or_call(dom::object message, const std::string& field) {
  dom::element value;
  const bool absent = message.at_key(field).get(value) != simdjson::SUCCESS || value.is_null();
  if (absent && (says(message, "tool_calls") || says(message, "function_call"))) return {};
  return content_of(message, field);
}

std::string number_message(Error failure, std::size_t index) {
  return fmt::format("message {}: {}", index + 1, failure.message());
}

bool weight_of(dom::object message, const std::string& field) {
  dom::element value;
  if (message.at_key(field).get(value) != simdjson::SUCCESS || value.is_null()) return true;
  double weight = 0;
  if (value.get_double().get(weight) != simdjson::SUCCESS || (weight != 0 && weight != 1))
    throw data_error(fmt::format("field '{}' is neither 0 nor 1", field));
  return weight == 1;
}

template <typename Read>
void read_messages(dom::array list, const std::string& field, Sample& sample, Read read) {
  sample.kind = Sample::Kind::kMessages;
  std::size_t index = 0;
  for (const dom::element element : list) {
    try {
      sample.messages.push_back(read(object_in(element, "it")));
    } catch (const Error& failure) {
      if (failure.status() != Status::kData) throw;
      throw data_error(number_message(failure, index)).at(fmt::format("field '{}'", field)).mend(failure.remedy());
    }
    ++index;
  }
}

// ShareGPT's names of the speakers.
std::string role_of_speaker(std::string_view from) {
  if (from == "human") return "user";
  if (from == "function_call" || from == "tool_call") return "assistant";
  if (from == "observation" || from == "function_response" || from == "tool_response" || from == "function")
    return "tool";
  if (from == "gpt" || from == "chatgpt" || from == "bing" || from == "bard" || from == "model") return "assistant";
  return std::string(from);
}

// A string, or an integer or truth value as its text.
std::string scalar_text(dom::object object, const std::string& field) {
  dom::element value;
  if (object.at_key(field).get(value) != simdjson::SUCCESS) throw data_error(fmt::format("no field '{}'", field));
  std::int64_t number = 0;
  if (value.get_int64().get(number) == simdjson::SUCCESS) return std::to_string(number);
  bool truth = false;
  if (value.get_bool().get(truth) == simdjson::SUCCESS) return truth ? "1" : "0";
  return std::string(string_of(value, field));
}

// A flat record as a table's row has it, or one with a list of endings, whose label counts from 0.
void read_choice_record(dom::object record, const std::vector<std::string>& present, const SourceOptions& options,
                        Sample& sample) {
  std::vector<std::string> names;
  std::map<std::string, std::string> values;
  const auto add = [&](const std::string& name, std::string text) {
    names.push_back(name);
    values[name] = std::move(text);
  };
  for (const std::string& name : present) {
    dom::element value;
    if (record.at_key(name).get(value) != simdjson::SUCCESS) continue;
    dom::array list;
    if (name == "endings" && value.get_array().get(list) == simdjson::SUCCESS) {
      std::size_t index = 0;
      for (const dom::element ending : list)
        add(fmt::format("ending{}", index++), std::string(string_of(ending, "endings")));
    } else if (value.is_string() || value.is_int64() || value.is_bool()) {
      add(name, scalar_text(record, name));
    }
  }
  const FieldLookup find = [&](const std::string& name) -> const std::string* {
    const auto at = values.find(name);
    return at == values.end() ? nullptr : &at->second;
  };
  read_choice(names, find, options.fields, sample);
}

void read_record(dom::object record, const SourceOptions& options, Sample& sample) {
  const FieldNames& names = options.fields;
  std::vector<std::string> present;
  for (const dom::key_value_pair field : record) present.emplace_back(field.key);
  switch (kind_of(present, options)) {
    case SampleKind::kMessages:
      sample.tools = tools_of(record);
      read_messages(required_list(record, names.messages), names.messages, sample, [&](dom::object message) {
        return ChatMessage{.role = std::string(required_string(message, names.role)),
                           .content = content_or_call(message, names.content),
                           .metadata = std::string(optional_string(message, names.metadata)),
                           .trained = weight_of(message, names.weight),
                           .more = more_of(message)};
      });
      return;
    case SampleKind::kConversations: {
      sample.tools = tools_of(record);
      if (const std::string_view system = optional_string(record, names.system); !system.empty())
        sample.messages.push_back({.role = "system", .content = std::string(system), .metadata = "", .trained = false});
      read_messages(required_list(record, names.conversations), names.conversations, sample, [&](dom::object message) {
        return ChatMessage{.role = role_of_speaker(required_string(message, names.from)),
                           .content = content_of(message, names.value),
                           .metadata = "",
                           .trained = weight_of(message, names.weight)};
      });
      return;
    }
    case SampleKind::kInstruction:
      set_instruction(sample, optional_string(record, names.system), required_string(record, names.instruction),
                      optional_string(record, names.input), required_string(record, names.output));
      return;
    case SampleKind::kPrompt:
      sample.kind = Sample::Kind::kPrompt;
      sample.prompt = required_string(record, names.prompt);
      sample.completion = required_string(record, names.completion);
      return;
    case SampleKind::kText:
      sample.text = required_string(record, names.text);
      return;
    case SampleKind::kLabelled:
      sample.kind = Sample::Kind::kLabelled;
      sample.text = required_string(record, names.text);
      sample.label = scalar_text(record, names.label);
      return;
    case SampleKind::kChoice:
      read_choice_record(record, present, options, sample);
      return;
    case SampleKind::kAuto:
      break;
  }
  throw internal_error("a record of no kind");
}

// Adds where it was to a data error of `read`.
template <typename Read>
void located(const std::string& where, Read read) {
  try {
    read();
  } catch (Error& failure) {
    throw failure.at(where);
  }
}

// simdjson's message without the code it repeats: "TAPE_ERROR: The JSON …" to "The JSON …".
std::string reason_of(simdjson::error_code code) {
  const std::string text = simdjson::error_message(code);
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

class JsonLinesReader : public RecordReader {
 public:
  JsonLinesReader(std::unique_ptr<ByteStream> stream, const std::string& name, const SourceOptions& options)
      : lines_(std::move(stream), name), options_(options) {
    static_assert(LineReader::kPadding >= simdjson::SIMDJSON_PADDING);
  }

  bool next(Sample& sample) override {
    std::string_view line;
    do {  // blank lines hold no record
      if (!lines_.next(line)) return false;
    } while (line.find_first_not_of(" \t\r") == std::string_view::npos);
    sample.where = fmt::format("{}:{}", lines_.name(), lines_.number());
    require_utf8(line, sample.where);
    located(sample.where, [&] {
      dom::element element;
      const simdjson::error_code code = parser_.parse(line.data(), line.size(), false).get(element);
      if (code != simdjson::SUCCESS) throw data_error(fmt::format("not a JSON object: {}", reason_of(code)));
      read_record(object_in(element, "the line"), options_, sample);
    });
    return true;
  }

  std::int64_t bytes() const override { return lines_.bytes(); }

 private:
  LineReader lines_;
  const SourceOptions& options_;
  dom::parser parser_;
};

class JsonArrayReader : public RecordReader {
 public:
  JsonArrayReader(std::unique_ptr<ByteStream> stream, const std::string& name, const SourceOptions& options)
      : lines_(std::move(stream), name), options_(options) {}

  bool next(Sample& sample) override {
    if (!parsed_) parse();
    if (index_ == size_) return false;
    const dom::element element = *element_;
    ++element_;
    sample.where = fmt::format("{}, record {}", lines_.name(), ++index_);
    located(sample.where, [&] { read_record(object_in(element, "the record"), options_, sample); });
    return true;
  }

  std::int64_t bytes() const override { return lines_.bytes(); }

 private:
  // A file that is not an array at all has no records to go on with, so these errors are not a record's.
  void parse() {
    parsed_ = true;
    text_ = lines_.rest();
    if (const std::size_t bad = find_invalid_utf8(text_); bad != std::string::npos)
      throw storage_error(fmt::format("{} is not valid UTF-8 at byte {}", lines_.name(), bad + 1))
          .mend("convert the file to UTF-8");
    dom::array array;
    const simdjson::error_code code = parser_.parse(text_).get_array().get(array);
    if (code != simdjson::SUCCESS) {
      throw storage_error(fmt::format("{} is not a JSON array of records: {}", lines_.name(), reason_of(code)))
          .mend("if it holds one record a line, name its format: jsonl");
    }
    element_ = array.begin();
    // dom::array::size() saturates at 2^24 - 1.
    for (auto it = array.begin(); it != array.end(); ++it) ++size_;
  }

  LineReader lines_;
  const SourceOptions& options_;
  std::string text_;
  dom::parser parser_;
  dom::array::iterator element_{};
  std::size_t index_ = 0, size_ = 0;
  bool parsed_ = false;
};

}  // namespace

struct JsonRecordParser::Parser {
  dom::parser parser;
};
JsonRecordParser::JsonRecordParser() : parser_(std::make_unique<Parser>()) {}
JsonRecordParser::~JsonRecordParser() = default;

void JsonRecordParser::read(std::string& json, const std::string& what, const SourceOptions& options, Sample& sample) {
  located(sample.where, [&] {
    json.reserve(json.size() + simdjson::SIMDJSON_PADDING);
    dom::element element;
    const simdjson::error_code code = parser_->parser.parse(json.data(), json.size(), false).get(element);
    if (code != simdjson::SUCCESS) throw data_error(fmt::format("{} is no record: {}", what, reason_of(code)));
    read_record(object_in(element, what), options, sample);
  });
}

SampleKind kind_of(const std::vector<std::string>& present, const SourceOptions& options) {
  if (options.kind != SampleKind::kAuto) return options.kind;
  const FieldNames& names = options.fields;
  const auto has = [&](const std::string& name) {
    return std::find(present.begin(), present.end(), name) != present.end();
  };
  if (has("chosen") && has("rejected")) {
    throw data_error("a preference pair ('chosen' and 'rejected'): training on preferences is not there yet")
        .mend("train on the chosen answers: name their field as messages or completion, or leave 'rejected' out");
  }
  if (has(names.messages)) return SampleKind::kMessages;
  if (has(names.conversations)) return SampleKind::kConversations;
  if (has(names.instruction) && has(names.output)) return SampleKind::kInstruction;
  if (has(names.prompt) && has(names.completion)) return SampleKind::kPrompt;
  if (has(names.text)) return SampleKind::kText;
  const std::string wanted =
      fmt::format("'{}', '{}', '{}' with '{}', '{}' with '{}', or '{}'", names.messages, names.conversations,
                  names.instruction, names.output, names.prompt, names.completion, names.text);
  throw data_error(fmt::format("none of the known fields is present: it has {}",
                               present.empty() ? "none at all" : fmt::format("'{}'", fmt::join(present, "', '"))))
      .mend(fmt::format("name the fields to read; without that these are looked for: {}", wanted));
}

void set_instruction(Sample& sample, std::string_view system, std::string_view instruction, std::string_view input,
                     std::string_view output) {
  sample.kind = Sample::Kind::kMessages;
  sample.instruction = true;
  if (!system.empty())
    sample.messages.push_back({.role = "system", .content = std::string(system), .metadata = "", .trained = false});
  std::string user(instruction);
  if (!input.empty()) user += (user.empty() ? "" : "\n\n") + std::string(input);
  sample.messages.push_back({.role = "user", .content = std::move(user), .metadata = "", .trained = false});
  sample.messages.push_back({.role = "assistant", .content = std::string(output), .metadata = "", .trained = true});
  // Without a chat format the parts are told apart by headings.
  if (!system.empty()) sample.prompt = fmt::format("{}\n\n", system);
  sample.prompt += fmt::format("### Instruction:\n{}\n\n", instruction);
  if (!input.empty()) sample.prompt += fmt::format("### Input:\n{}\n\n", input);
  sample.prompt += "### Response:\n";
  sample.completion = output;
}

std::unique_ptr<RecordReader> json_lines_reader(std::unique_ptr<ByteStream> stream, const std::string& name,
                                                const SourceOptions& options) {
  return std::make_unique<JsonLinesReader>(std::move(stream), name, options);
}

std::unique_ptr<RecordReader> json_array_reader(std::unique_ptr<ByteStream> stream, const std::string& name,
                                                const SourceOptions& options) {
  return std::make_unique<JsonArrayReader>(std::move(stream), name, options);
}

}  // namespace convoy
