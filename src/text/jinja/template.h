// Jinja templates as chat templates use them: https://jinja.palletsprojects.com, in the environment that transformers
// makes (trim_blocks, lstrip_blocks, loop controls, tojson without escapes, raise_exception, strftime_now, generation).
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace convoy::jinja {

struct Statement;

// Against templates that never end or fill the memory.
struct Limits {
  std::int64_t steps = 20'000'000;  // nodes of the tree that are visited, and 64 bytes of text made
  std::size_t text = 1u << 26;      // bytes of one text
  std::size_t items = 1u << 20;     // of one list
};

struct Rendered {
  std::string text;
  // Bytes [first, second) of the text that generation tags hold, in order.
  std::vector<std::pair<std::size_t, std::size_t>> generated;
};

class Template {
 public:
  // `name` goes into errors. Throws a usage error with the line for what is no template.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Safe to call from many threads. `now`: the time that strftime_now tells, as local time. Throws a data error with
  // the line where the template fails, raises, or meets a limit.
  Rendered render(const Dict& variables, std::time_t now, const Limits& limits = {}) const;
  bool has_generation_tags() const { return has_generation_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::vector<std::unique_ptr<Statement>> body_;
  bool has_generation_ = false;
};

}  // namespace convoy::jinja
