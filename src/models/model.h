// What a model is to the rest of Convoy: its parameters, their names in Hugging Face files, and its graph for a batch
// shape.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "graph/graph.h"
#include "graph/ops/linear_cross_entropy.h"

namespace convoy {

// One trainable tensor as Convoy computes with it (queries, keys and values fused, gate and up fused).
struct Parameter {
  std::string name;
  Shape shape;
  double init_std = 0;         // normal with this deviation; 0 with init_value
  float init_value = 0;        // constant, where init_std is 0
  std::int64_t zero_row = -1;  // a row that starts as zeros (the pad token)
  bool decay = true;           // weight decay applies (Hugging Face: not to biases and norms)
};

// One tensor of a Hugging Face file: a run of rows (first dimension) of a parameter.
struct FileTensor {
  std::string name;
  Shape shape;
  std::size_t parameter = 0;
  std::int64_t first_row = 0;  // in units of the parameter's first dimension
};

enum class GraphKind : std::uint8_t {
  kTrain,   // statistics of the loss, ready to differentiate; dropout on
  kLoss,    // statistics of the loss, dropout off (evaluation)
  kLogits,  // logits of the rows named by the batch input "rows"
  kScores,  // scores of the task's head, dropout off
};

// What a model decides beside, or instead of, the next token.
struct TaskHead {
  enum class Kind : std::uint8_t {
    kChoice,   // which of `outputs` alternatives: each is a text of its own, with one score
    kClasses,  // which of `outputs` classes: scores from the last token of a text
  };
  Kind kind = Kind::kClasses;
  std::int64_t outputs = 0;
  double dropout = 0;  // before the head
};

struct GraphOptions {
  GraphKind kind = GraphKind::kTrain;
  std::int64_t tokens = 0;        // rows × sequence length of a micro-batch
  std::int64_t table_length = 0;  // positions in the rotary tables: the longest document that can occur
  std::int64_t logit_rows = 0;    // for kLogits
  DType dtype = DType::kF32;
  std::uint64_t seed = 0;  // of dropout
  CrossEntropyShape loss;
  std::int64_t items = 0;       // with a task's head: what it decides on in a micro-batch
  bool auxiliary_loss = false;  // with a choice's head: also the language model's loss
};

// Names of the batch inputs. Each is [tokens] unless said.
namespace batch_input {
inline constexpr const char* kIds = "input_ids";         // i32
inline constexpr const char* kTargets = "targets";       // i32: the token to predict here, or -1
inline constexpr const char* kPositions = "positions";   // i32, within the document
inline constexpr const char* kSeqStart = "seq_start";    // i32: index of the first token of the document
inline constexpr const char* kTokenKeys = "token_keys";  // i64: keys the dropout of this token
inline constexpr const char* kRows = "rows";             // i32[logit_rows]
inline constexpr const char* kLossScale = "loss_scale";  // f32[1] (f64 for f64): d(objective)/d(loss sum)
inline constexpr const char* kAuxiliaryScale = "auxiliary_scale";  // likewise of the auxiliary loss
// Of a task's head, item by item (for a choice, alternative by alternative within each):
inline constexpr const char* kHeadRows = "head_rows";      // i32[items · alternatives]: the token to look at
inline constexpr const char* kHeadKeys = "head_keys";      // i64[items · alternatives]: keys its dropout
inline constexpr const char* kHeadLabels = "head_labels";  // i32[items]: the right alternative or class, or -1
inline constexpr const char* kRopeCos = "rope_cos";      // f32[table_length, r/2]
inline constexpr const char* kRopeSin = "rope_sin";
}  // namespace batch_input

struct ModelGraph {
  Graph graph;                   // its outputs are `result` and, where there is one, `auxiliary`
  ValueId result = kNoValue;     // statistics, logits or scores
  ValueId auxiliary = kNoValue;  // statistics of the language model beside a task's
  ValueId hidden = kNoValue;     // the last hidden states [tokens, d]
  std::vector<ValueId> weights;  // by parameter
};

class Model {
 public:
  virtual ~Model() = default;
  virtual std::string family() const = 0;  // "qwen2"
  virtual const std::vector<Parameter>& parameters() const = 0;
  // Canonical names, in module order.
  virtual const std::vector<FileTensor>& file_tensors() const = 0;
  virtual ModelGraph build(const GraphOptions& options) const = 0;
  virtual std::int64_t vocab_size() const = 0;
  // Longest document that the model can take (learned positions), or the configured limit.
  virtual std::int64_t max_positions() const = 0;
  // Whether max_positions is a hard limit (a learned table) rather than advice.
  virtual bool positions_are_learned() const = 0;
  virtual std::int64_t block_count() const = 0;
  // Fills the rotary tables for documents of up to `length` tokens; does nothing for models without.
  virtual void fill_tables(std::int64_t length, std::span<float> cosines, std::span<float> sines) const = 0;
  virtual bool tables_depend_on_length() const = 0;
  // The base prefix that files may leave out of tensor names ("model."), or "".
  virtual std::string base_prefix() const = 0;
  // The names of the input embedding and the output head when they are one tensor; empty when not tied.
  virtual std::string tied_embedding() const = 0;
  virtual std::string tied_head() const = 0;
  // Names that files may hold beside the parameters: buffers that are recomputed, kept and written back as they are.
  virtual bool is_buffer(const std::string& tensor) const = 0;
  // The task that it has a head for, or null: a language model.
  virtual const TaskHead* task_head() const { return nullptr; }
  // Whether files may lack a parameter, which then starts fresh.
  virtual bool may_be_missing(std::size_t /*parameter*/) const { return false; }
  // Whether a tensor of the files is of no use to it.
  virtual bool leaves_out(const std::string& /*tensor*/) const { return false; }
  // By how many rows a parameter may be longer than its stored tensor: tokens that a run adds.
  virtual std::int64_t added_rows(std::size_t /*parameter*/) const { return 0; }

  std::int64_t parameter_count() const;
};

struct ModelOptions {
  double rope_theta = 0;       // overrides the configuration's where not 0
  bool train_pad_row = false;  // let look-ups of the pad token train its embedding (Hugging Face does not)
  enum class Head : std::uint8_t { kAsStored, kLanguageModel, kChoice, kClasses };
  Head head = Head::kAsStored;    // kAsStored: as `architectures` says
  std::int64_t outputs = 0;       // alternatives or classes; 0: as the configuration says
  std::int64_t added_tokens = 0;  // how many of vocab_size the stored embedding lacks
};

// Chooses the model by `model_type` (or `architectures`); errors name the key of config.json.
std::unique_ptr<Model> make_model(const Json& config, const std::string& where, const ModelOptions& options = {});
// The `model_type`s that make_model knows.
std::vector<std::string> known_models();

// The initial values of one parameter: a function of (seed, index) alone.
void initialize(const Parameter& parameter, std::size_t index, std::uint64_t seed, std::span<float> values);

}  // namespace convoy
