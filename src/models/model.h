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
  bool trainable = true;       // else it has neither gradient nor optimizer state
  double init_bound = 0;       // uniform in ±init_bound, where not 0 and init_std is 0
  bool sinusoids = false;  // starts as row p = [sin(p·w_i) …, cos(p·w_i) …], w_i = 10000^(-i/(d/2 - 1)) (Whisper)
};

// One tensor of a Hugging Face file: a run of rows (first dimension) of a parameter.
struct FileTensor {
  std::string name;
  Shape shape;
  std::size_t parameter = 0;
  std::int64_t first_row = 0;  // in units of the parameter's first dimension
  bool adapter = false;        // of an adapter's file, not the model's
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

// Keys and values kept from one program to the next, for `rows` tokens per layer. Only for kLogits.
enum class CacheUse : std::uint8_t {
  kNone,
  kFill,    // the documents are given whole, from their first token on; their keys and values are kept
  kExtend,  // every token is the next one of a text whose keys and values are there
};
struct CacheOptions {
  CacheUse use = CacheUse::kNone;
  std::int64_t rows = 0;
  std::int64_t heard_rows = 0;  // encoder-decoders: rows for what the decoder hears, one for each encoder frame
};

struct GraphOptions {
  GraphKind kind = GraphKind::kTrain;
  std::int64_t tokens = 0;        // rows × sequence length of a micro-batch
  std::int64_t table_length = 0;  // positions in the rotary tables: the longest document that can occur
  std::int64_t logit_rows = 0;    // for kLogits
  CacheOptions cache;
  DType dtype = DType::kF32;
  std::uint64_t seed = 0;  // of dropout
  CrossEntropyShape loss;
  std::int64_t items = 0;       // with a task's head: what it decides on in a micro-batch
  bool auxiliary_loss = false;  // with a choice's head: also the language model's loss
  // Models that hear: windows of audio of a micro-batch (as many in each row), and log-mel frames of a window.
  std::int64_t audio_windows = 0, audio_frames = 0;

  std::int64_t encoder_frames() const { return (audio_frames + 1) / 2; }  // after the convolutions
};

// What a model hears: log-mel features in windows.
struct AudioInput {
  std::int64_t mel_bins = 0;
  std::int64_t frames = 0;          // of a window, at most
  bool exact_frames = false;        // no other number is possible (a table of positions for all of them)
  std::int64_t frame_multiple = 2;  // of another number
  // Models whose text has places for audio: the token that holds them, and mel frames of a place. A clip of f frames
  // has ((f + 1) / 2) / (frames_per_token / 2) of them.
  std::int64_t audio_token = -1;
  std::int64_t frames_per_token = 0;
  // A recording's frames see no other: neither the silence that fills its window nor, in the text, anything behind its
  // end. So windows may be shorter than `frames`, by the multiple. Else padding is heard, as in published models.
  bool masks_padding = false;
};

// The entry of config.json that makes it so; no other program knows it.
inline constexpr const char* kMaskAudioPadding = "mask_audio_padding";

// The batch inputs by which a model with masks_padding knows what is sound; empty those that it has not.
struct HeardInputs {
  std::vector<std::int32_t> start, key_begin, key_end;  // kAudioStart, kKeyBegin, kKeyEnd
};

// A batch input whose values follow from the graph's options alone; the host sets it once.
struct BatchConstant {
  std::string name;
  DType dtype;
  std::vector<std::byte> bytes;
  template <typename T>
  static BatchConstant of(std::string name, DType dtype, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {std::move(name), dtype, {bytes.begin(), bytes.end()}};
  }
};

// Names of the batch inputs. Each is [tokens] unless said.
namespace batch_input {
inline constexpr const char* kIds = "input_ids";         // i32
inline constexpr const char* kTargets = "targets";       // i32: the token to predict here, or -1
inline constexpr const char* kPositions = "positions";   // i32, within the document
inline constexpr const char* kSeqStart = "seq_start";    // i32: index of the first token of the document
inline constexpr const char* kTokenKeys = "token_keys";  // i64: keys the dropout of this token
// i64[n], of rows of the graph that are no tokens, as many for each row of the batch: keys their dropout (row_key).
inline constexpr const char* kRowKeys = "row_keys_";       // and n
inline constexpr const char* kRows = "rows";               // i32[logit_rows]
inline constexpr const char* kCacheRow = "cache_row";      // i32: where this token's keys and values go, or -1
inline constexpr const char* kCacheBegin = "cache_begin";  // i32: the rows [begin, end) that this token may see
inline constexpr const char* kCacheEnd = "cache_end";
// i32[w·e]: where the keys and values of this encoder frame go, or -1 (kFill; then key_begin and key_end of kExtend
// name those rows).
inline constexpr const char* kHeardRow = "heard_row";
inline constexpr const char* kLossScale = "loss_scale";            // f32[1] (f64 for f64): d(objective)/d(loss sum)
inline constexpr const char* kAuxiliaryScale = "auxiliary_scale";  // likewise of the auxiliary loss
// Of a task's head, item by item (for a choice, alternative by alternative within each):
inline constexpr const char* kHeadRows = "head_rows";      // i32[items · alternatives]: the token to look at
inline constexpr const char* kHeadKeys = "head_keys";      // i64[items · alternatives]: keys its dropout
inline constexpr const char* kHeadLabels = "head_labels";  // i32[items]: the right alternative or class, or -1
inline constexpr const char* kRopeCos = "rope_cos";        // f32[table_length, r/2]
inline constexpr const char* kRopeSin = "rope_sin";
// Models that hear. w = audio_windows, f = audio_frames, e = encoder_frames().
inline constexpr const char* kAudioFeatures = "audio_features";    // f32 (f64 for f64) [w·f, mel bins], time by time
inline constexpr const char* kAudioPositions = "audio_positions";  // i32[w·e]: place in the window
inline constexpr const char* kAudioStart = "audio_start";          // i32[w·e]: index of the window's first frame
inline constexpr const char* kAudioRopeCos = "audio_rope_cos";     // f32[e, r/2]
inline constexpr const char* kAudioRopeSin = "audio_rope_sin";
inline constexpr const char* kAudioRows = "audio_rows";  // i32[tokens]: the audio row that takes this place, or -1
inline constexpr const char* kKeyBegin = "key_begin";    // i32[tokens]: encoder frames that the token sees
inline constexpr const char* kKeyEnd = "key_end";
}  // namespace batch_input

// The key of the random numbers of the `place`-th of those rows of a batch row whose first token has `token_key`.
std::uint64_t row_key(std::uint64_t token_key, std::int64_t place);

struct ModelGraph {
  Graph graph;                   // its outputs are `result`, `auxiliary` where there is one, and with a cache the cache
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
  // What it hears; none for models of text.
  virtual std::optional<AudioInput> audio() const { return std::nullopt; }
  virtual std::vector<BatchConstant> constants(const GraphOptions& /*options*/) const { return {}; }
  // Those of a micro-batch whose window i has lengths[i] encoder frames of sound and then padding.
  virtual void mark_heard(const GraphOptions& /*options*/, std::span<const std::int32_t> /*lengths*/,
                          HeardInputs& /*inputs*/) const {}
  // Whether weights are always written under canonical names, and a tied tensor under both of its names, however they
  // were read: where readers expect that.
  virtual bool writes_all_names() const { return false; }
  // The canonical name of a tensor that some files call otherwise; else the name itself.
  virtual std::string renamed(const std::string& tensor) const { return tensor; }

  std::int64_t parameter_count() const;
};

struct ModelOptions {
  double rope_theta = 0;        // overrides the configuration's where not 0
  bool train_pad_row = false;   // let look-ups of the pad token train its embedding (Hugging Face does not)
  bool freeze_encoder = false;  // what models that hear have before their text is not trained
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
