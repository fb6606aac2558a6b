#include "models/task_head.h"

#include <array>

#include "base/error.h"
#include "graph/ops/cross_entropy.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/linear.h"
#include "graph/ops/select_rows.h"

namespace convoy {
namespace {

constexpr const char* kChoicePrefix = "multiple_choice_head.";
constexpr const char* kChoiceWeight = "multiple_choice_head.summary.weight";
constexpr const char* kChoiceBias = "multiple_choice_head.summary.bias";
constexpr const char* kClassWeight = "score.weight";
constexpr std::uint32_t kDropoutUse = 1U << 30;  // far from the decoder's own

class HeadedModel final : public Model {
 public:
  HeadedModel(std::unique_ptr<Model> inner, TaskHead head, double init_std, std::int64_t added_tokens)
      : inner_(std::move(inner)), head_(head), added_tokens_(added_tokens) {
    parameters_ = inner_->parameters();
    files_ = inner_->file_tensors();
    const std::int64_t width = parameters_.front().shape[1];  // of the embedding
    first_ = parameters_.size();
    if (head_.kind == TaskHead::Kind::kChoice) {
      add(kChoiceWeight, {1, width}, init_std, true);
      add(kChoiceBias, {1}, 0, false);
    } else {
      add(kClassWeight, {head_.outputs, width}, init_std, true);
    }
  }

  std::string family() const override { return inner_->family(); }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<FileTensor>& file_tensors() const override { return files_; }
  ModelGraph build(const GraphOptions& options) const override;
  std::int64_t vocab_size() const override { return inner_->vocab_size(); }
  std::int64_t max_positions() const override { return inner_->max_positions(); }
  bool positions_are_learned() const override { return inner_->positions_are_learned(); }
  std::int64_t block_count() const override { return inner_->block_count(); }
  void fill_tables(std::int64_t length, std::span<float> cosines, std::span<float> sines) const override {
    inner_->fill_tables(length, cosines, sines);
  }
  bool tables_depend_on_length() const override { return inner_->tables_depend_on_length(); }
  std::string base_prefix() const override { return inner_->base_prefix(); }
  std::string tied_embedding() const override { return classifies() ? "" : inner_->tied_embedding(); }
  std::string tied_head() const override { return classifies() ? "" : inner_->tied_head(); }
  bool is_buffer(const std::string& tensor) const override { return inner_->is_buffer(tensor); }
  std::vector<BatchConstant> constants(const GraphOptions& options) const override {
    return inner_->constants(options);
  }
  bool writes_all_names() const override { return inner_->writes_all_names(); }
  std::string renamed(const std::string& tensor) const override { return inner_->renamed(tensor); }
  const TaskHead* task_head() const override { return &head_; }
  bool may_be_missing(std::size_t parameter) const override { return parameter >= first_; }
  // A classifier predicts no tokens.
  bool leaves_out(const std::string& tensor) const override { return classifies() && tensor == inner_->tied_head(); }
  std::int64_t added_rows(std::size_t parameter) const override {
    return parameter < first_ && parameters_[parameter].shape.rank() == 2 &&
                   parameters_[parameter].shape[0] == vocab_size()
               ? added_tokens_
               : 0;
  }

 private:
  bool classifies() const { return head_.kind == TaskHead::Kind::kClasses; }
  void add(const std::string& name, const Shape& shape, double std, bool decay) {
    files_.push_back({name, shape, parameters_.size(), 0});
    parameters_.push_back({name, shape, std, 0, -1, decay});
  }

  std::unique_ptr<Model> inner_;
  TaskHead head_;
  std::int64_t added_tokens_;
  std::vector<Parameter> parameters_;
  std::vector<FileTensor> files_;
  std::size_t first_ = 0;  // parameter of the head
};

ModelGraph HeadedModel::build(const GraphOptions& options) const {
  if (options.kind == GraphKind::kLogits && classifies()) {
    throw usage_error("a model with a classification head predicts no tokens")
        .mend("generate with the language model that it was made from");
  }
  ModelGraph made = inner_->build(options);
  Graph& g = made.graph;
  for (std::size_t p = first_; p < parameters_.size(); ++p)
    made.weights.push_back(g.add_source(Role::kWeight, parameters_[p].name, {options.dtype, parameters_[p].shape}));
  if (options.kind == GraphKind::kLogits) return made;
  const std::int64_t alternatives = classifies() ? 1 : head_.outputs;
  const std::int64_t rows = options.items * alternatives;
  const ValueId at = g.add_source(Role::kBatch, batch_input::kHeadRows, {DType::kI32, {rows}});
  ValueId x = g.add_op(SelectRows{}, {made.hidden, at}, {"summary"})[0];
  if (options.kind == GraphKind::kTrain && head_.dropout > 0) {
    const ValueId keys = g.add_source(Role::kBatch, batch_input::kHeadKeys, {DType::kI64, {rows}});
    x = g.add_op(Dropout{static_cast<float>(head_.dropout), options.seed, kDropoutUse}, {x, keys}, {"dropped"})[0];
  }
  const ValueId bias = first_ + 1 < parameters_.size() ? made.weights[first_ + 1] : kNoValue;
  const ValueId scores = g.add_op(Linear{}, {x, made.weights[first_], bias}, {"scores"})[0];
  const ValueId language = made.result;
  if (options.kind == GraphKind::kScores) {
    made.result = scores;
  } else {
    const ValueId labels = g.add_source(Role::kBatch, batch_input::kHeadLabels, {DType::kI32, {options.items}});
    made.result = g.add_op(CrossEntropy{head_.outputs}, {scores, labels}, {"statistics"})[0];
  }
  g.outputs = {made.result};
  if (!classifies() && options.auxiliary_loss && options.kind != GraphKind::kScores) {
    made.auxiliary = language;
    g.outputs.push_back(language);
  }
  eliminate_dead_nodes(g);
  return made;
}

}  // namespace

std::unique_ptr<Model> make_headed_model(std::unique_ptr<Model> inner, TaskHead head, double init_std,
                                         std::int64_t added_tokens) {
  check(head.outputs > 0, "a head without outputs");
  return std::make_unique<HeadedModel>(std::move(inner), head, init_std, added_tokens);
}

bool is_task_head_tensor(const std::string& name) {
  return name == kClassWeight || name.starts_with(kChoicePrefix);
}

std::string headed_architecture(const std::string& family, TaskHead::Kind kind) {
  struct Names {
    const char *family, *prefix;
  };
  constexpr std::array<Names, 7> kNames{{{"llama", "Llama"},
                                         {"qwen2", "Qwen2"},
                                         {"qwen3", "Qwen3"},
                                         {"glm", "Glm"},
                                         {"glm4", "Glm4"},
                                         {"gpt2", "GPT2"},
                                         {"openai-gpt", "OpenAIGPT"}}};
  const bool choice = kind == TaskHead::Kind::kChoice;
  for (const Names& names : kNames) {
    if (family != names.family) continue;
    if (choice && family != "gpt2" && family != "openai-gpt") return "";
    return std::string(names.prefix) + (choice ? "DoubleHeadsModel" : "ForSequenceClassification");
  }
  return "";
}

}  // namespace convoy
