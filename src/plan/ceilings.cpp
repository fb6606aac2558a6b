#include "plan/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/suggest.h"

namespace convoy {
namespace {

constexpr int kVersion = 1;
constexpr const char* kMend = "docs/benchmarks.md has the format; measure the card again, or correct the file";

// Reads an object's values by name; what is left over is an error that names the nearest known one.
class Fields {
 public:
  Fields(const Json& object, std::string file, std::string path)
      : object_(object), file_(std::move(file)), path_(std::move(path)) {
    if (!object.is_object()) fail(path_, "must be a JSON object");
  }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw usage_error(key.empty() ? "a file of ceilings " + what : fmt::format("`{}` {}", key, what))
        .at(file_)
        .mend(kMend);
  }
  std::string key(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }

  const Json* find(const std::string& name) {
    known_.push_back(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& require(const std::string& name) {
    const Json* value = find(name);
    if (value == nullptr) fail(key(name), "is missing");
    return *value;
  }
  double rate(const std::string& name) { return rate_of(name, require(name)); }
  std::optional<double> optional_rate(const std::string& name) {
    const Json* value = find(name);
    return value == nullptr ? std::nullopt : std::optional(rate_of(name, *value));
  }
  std::int64_t count(const std::string& name) {
    const Json& value = require(name);
    if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > 1e15)
      fail(key(name), fmt::format("must be a whole number above 0, it is {}", shown(value)));
    return value.get<std::int64_t>();
  }
  std::int64_t number(const std::string& name) {
    const Json& value = require(name);
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > 1e6)
      fail(key(name), fmt::format("must be the number of a card, it is {}", shown(value)));
    return value.get<std::int64_t>();
  }
  std::string text(const std::string& name) { return text_of(name, require(name)); }
  std::string optional_text(const std::string& name) {
    const Json* value = find(name);
    return value == nullptr ? std::string() : text_of(name, *value);
  }
  // Each entry of a list that may be absent.
  template <typename Read>
  void each(const std::string& name, Read read) {
    const Json* list = find(name);
    if (list == nullptr) return;
    if (!list->is_array()) fail(key(name), fmt::format("must be a list, it is {}", shown(*list)));
    for (std::size_t i = 0; i < list->size(); ++i) {
      Fields fields((*list)[i], file_, fmt::format("{}[{}]", key(name), i));
      read(fields);
      fields.done();
    }
  }
  Fields inner(const std::string& name, const Json& value) const { return {value, file_, key(name)}; }
  void done() const {
    for (const auto& [name, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), name) == known_.end())
        fail(key(name), "is not known here" + did_you_mean(name, known_));
    }
  }
  static std::string shown(const Json& value) {
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= 40 ? text : text.substr(0, 37) + "…";
  }

 private:
  double rate_of(const std::string& name, const Json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0)
      fail(key(name), fmt::format("must be a number above 0, it is {}", shown(value)));
    return value.get<double>();
  }
  std::string text_of(const std::string& name, const Json& value) const {
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      fail(key(name), fmt::format("must be a text, it is {}", shown(value)));
    return value.get<std::string>();
  }

  const Json& object_;
  const std::string file_, path_;
  std::vector<std::string> known_;
};

bool is_date(const std::string& text) {
  constexpr std::string_view kForm = "dddd-dd-dd";
  if (text.size() != kForm.size()) return false;
  return std::equal(text.begin(), text.end(), kForm.begin(),
                    [](char c, char form) { return form == 'd' ? c >= '0' && c <= '9' : c == form; });
}

Ceilings::MatrixProduct read_product(Fields& fields) {
  return {fields.optional_text("name"), fields.count("m"), fields.count("n"), fields.count("k"), fields.rate("tflops"),
          fields.optional_text("dtype")};
}

Ceilings::Attention read_attention(Fields& fields) {
  return {fields.count("seq"),      fields.count("heads"),         fields.count("kv_heads"),
          fields.count("head_dim"), fields.rate("forward_tflops"), fields.rate("backward_tflops")};
}

Ceilings::PeerLink read_peer_link(Fields& fields) {
  return {fields.number("from"), fields.number("to"), fields.rate("gb_per_second"),
          fields.optional_rate("both_gb_per_second")};
}

}  // namespace

double Ceilings::best_product(std::string_view of) const {
  double best = of == dtype ? matrix_product : 0;
  for (const MatrixProduct& product : matrix_products) {
    if ((product.dtype.empty() ? dtype : product.dtype) == of) best = std::max(best, product.tflops);
  }
  return best > 0 ? best : matrix_product;
}

std::filesystem::path ceilings_path(const std::string& card) {
  const std::filesystem::path folder = cache_folder();
  return folder.empty() ? folder : folder / fmt::format("ceilings-{}.json", file_word(card));
}

Ceilings parse_ceilings(const std::string& text, const std::string& name) {
  const Json object = parse_json(text, name);
  Fields fields(object, name, "");
  if (const Json& version = fields.require("version"); version != kVersion)
    fields.fail("version", fmt::format("must be {}, it is {}", kVersion, Fields::shown(version)));
  Ceilings result;
  result.card = fields.text("card");
  result.date = fields.text("date");
  if (!is_date(result.date)) fields.fail("date", fmt::format("must be YYYY-MM-DD, it is \"{}\"", result.date));
  result.dtype = fields.text("dtype");
  result.matrix_product = fields.rate("matrix_product_tflops");
  result.copy = fields.optional_rate("copy_gb_per_second");
  result.power = fields.optional_rate("power_watts");
  fields.each("matrix_products", [&](Fields& each) { result.matrix_products.push_back(read_product(each)); });
  fields.each("attention", [&](Fields& each) { result.attention.push_back(read_attention(each)); });
  if (const Json* link = fields.find("link")) {
    Fields each = fields.inner("link", *link);
    result.link = {each.rate("to_device_gb_per_second"), each.rate("to_host_gb_per_second"),
                   each.optional_rate("both_gb_per_second")};
    each.done();
  }
  fields.each("peer_links", [&](Fields& each) { result.peer_links.push_back(read_peer_link(each)); });
  fields.done();
  return result;
}

Ceilings read_ceilings(const std::filesystem::path& file) {
  return parse_ceilings(read_file(file), file.string());
}

std::string ceilings_text(const Ceilings& ceilings) {
  Json object = {{"version", kVersion},
                 {"card", ceilings.card},
                 {"date", ceilings.date},
                 {"dtype", ceilings.dtype},
                 {"matrix_product_tflops", ceilings.matrix_product}};
  if (ceilings.copy) object["copy_gb_per_second"] = *ceilings.copy;
  if (ceilings.power) object["power_watts"] = *ceilings.power;
  for (const Ceilings::MatrixProduct& product : ceilings.matrix_products) {
    Json entry = Json::object();
    if (!product.name.empty()) entry["name"] = product.name;
    entry.update({{"m", product.m}, {"n", product.n}, {"k", product.k}, {"tflops", product.tflops}});
    if (!product.dtype.empty()) entry["dtype"] = product.dtype;
    object["matrix_products"].push_back(std::move(entry));
  }
  for (const Ceilings::Attention& at : ceilings.attention) {
    object["attention"].push_back({{"seq", at.seq},
                                   {"heads", at.heads},
                                   {"kv_heads", at.kv_heads},
                                   {"head_dim", at.head_dim},
                                   {"forward_tflops", at.forward_tflops},
                                   {"backward_tflops", at.backward_tflops}});
  }
  if (ceilings.link) {
    object["link"] = {{"to_device_gb_per_second", ceilings.link->to_device},
                      {"to_host_gb_per_second", ceilings.link->to_host}};
    if (ceilings.link->both) object["link"]["both_gb_per_second"] = *ceilings.link->both;
  }
  for (const Ceilings::PeerLink& link : ceilings.peer_links) {
    Json entry = {{"from", link.from}, {"to", link.to}, {"gb_per_second", link.rate}};
    if (link.both) entry["both_gb_per_second"] = *link.both;
    object["peer_links"].push_back(std::move(entry));
  }
  return dump_json(object);
}

}  // namespace convoy
