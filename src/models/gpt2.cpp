#include "models/gpt2.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "graph/ops/activation.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/embedding.h"
#include "graph/ops/norm.h"
#include "models/graph_inputs.h"

namespace convoy {
namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr std::size_t kParametersPerLayer = 12;

class Gpt2 final : public Model {
 public:
  explicit Gpt2(Gpt2Config config) : c_(config) { declare(); }

  std::string family() const override { return c_.post_norm ? "openai-gpt" : "gpt2"; }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<FileTensor>& file_tensors() const override { return files_; }
  ModelGraph build(const GraphOptions& options) const override;
  std::int64_t vocab_size() const override { return c_.vocab; }
  std::int64_t max_positions() const override { return c_.positions; }
  bool positions_are_learned() const override { return true; }
  std::int64_t block_count() const override { return c_.layers; }
  void fill_tables(std::int64_t /*length*/, std::span<float> /*cosines*/, std::span<float> /*sines*/) const override {}
  bool tables_depend_on_length() const override { return false; }
  std::string base_prefix() const override { return "transformer."; }
  std::string tied_embedding() const override { return c_.tied ? embedding_name() : ""; }
  std::string tied_head() const override { return c_.tied ? kHead : ""; }
  bool is_buffer(const std::string& tensor) const override {
    return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
  }

 private:
  const char* embedding_name() const {
    return c_.post_norm ? "transformer.tokens_embed.weight" : "transformer.wte.weight";
  }
  void add(const std::string& name, const Shape& shape, double std, float value, bool decay) {
    files_.push_back({name, shape, parameters_.size(), 0});
    parameters_.push_back({name, shape, std, value, -1, decay});
  }
  void norm(const std::string& name) {
    add(name + ".weight", {c_.hidden}, 0, 1, false);
    add(name + ".bias", {c_.hidden}, 0, 0, false);
  }
  void linear(const std::string& name, std::int64_t in, std::int64_t out, double std) {
    add(name + ".weight", {in, out}, std, 0, true);
    add(name + ".bias", {out}, 0, 0, false);
  }
  void declare();

  Gpt2Config c_;
  std::vector<Parameter> parameters_;
  std::vector<FileTensor> files_;
};

void Gpt2::declare() {
  add(embedding_name(), {c_.vocab, c_.hidden}, c_.init_std, 0, true);
  add(c_.post_norm ? "transformer.positions_embed.weight" : "transformer.wpe.weight", {c_.positions, c_.hidden},
      c_.init_std, 0, true);
  // GPT-2's residual projections start smaller by √(2L), so that the sum of the branches keeps its size.
  const double all = c_.init_std;
  const double residual = c_.post_norm ? all : all / std::sqrt(2.0 * static_cast<double>(c_.layers));
  for (std::int64_t l = 0; l < c_.layers; ++l) {
    const std::string p = fmt::format("transformer.h.{}.", l);
    if (!c_.post_norm) norm(p + "ln_1");
    linear(p + "attn.c_attn", c_.hidden, 3 * c_.hidden, all);
    linear(p + "attn.c_proj", c_.hidden, c_.hidden, residual);
    norm(p + (c_.post_norm ? "ln_1" : "ln_2"));
    linear(p + "mlp.c_fc", c_.hidden, c_.intermediate, all);
    linear(p + "mlp.c_proj", c_.intermediate, c_.hidden, residual);
    if (c_.post_norm) norm(p + "ln_2");
  }
  if (!c_.post_norm) norm("transformer.ln_f");
  if (!c_.tied) add(kHead, {c_.vocab, c_.hidden}, c_.init_std, 0, true);
}

ModelGraph Gpt2::build(const GraphOptions& options) const {
  GraphInputs in(*this, options);
  Graph& g = in.graph();
  ValueId x = g.add_op(Embedding{}, {in.ids(), in.weight(0), in.positions(), in.weight(1)}, {"embedded"})[0];
  x = in.dropout(x, c_.embedding_dropout);
  std::size_t p = 2;
  const auto normed = [&](ValueId v) {
    const ValueId weight = in.weight(p++);
    const ValueId bias = in.weight(p++);
    return g.add_op(LayerNorm{c_.norm_eps}, {v, weight, bias}, {"normed", "mean", "rstd"})[0];
  };
  const auto before = [&] { return c_.post_norm ? x : normed(x); };
  const auto add_branch = [&](ValueId branch) {
    x = g.add_op(Add{}, {x, in.dropout(branch, c_.residual_dropout)}, {"residual"})[0];
    if (c_.post_norm) x = normed(x);
  };
  for (std::int64_t l = 0; l < c_.layers; ++l) {
    g.current_block = static_cast<int>(l);
    AttentionShape shape;
    shape.heads = shape.kv_heads = c_.heads;
    shape.head_dim = c_.hidden / c_.heads;
    shape.scale = c_.scale_weights ? 1.0 / std::sqrt(static_cast<double>(shape.head_dim)) : 1.0;
    if (c_.scale_by_layer) shape.scale /= static_cast<double>(l + 1);
    const ValueId qkv = in.linear(before(), p, true, "qkv", true);
    add_branch(in.linear(in.attention(shape, qkv, c_.attention_dropout), p, true, "attention_out", true));
    const ValueId hidden = in.linear(before(), p, true, "mlp_in", true);
    add_branch(in.linear(g.add_op(Gelu{c_.gelu_tanh}, {hidden}, {"mlp"})[0], p, true, "mlp_out", true));
  }
  check(p == 2 + kParametersPerLayer * static_cast<std::size_t>(c_.layers), "gpt: parameters and graph disagree");
  g.current_block = -1;
  if (!c_.post_norm) x = normed(x);
  return in.finish(x, in.weight(c_.tied ? 0 : p));
}

}  // namespace

namespace {

Gpt2Config read_sizes(const ConfigReader& config, std::int64_t default_positions) {
  Gpt2Config made;
  made.vocab = config.positive("vocab_size");
  made.positions = config.positive("n_positions", default_positions);
  made.hidden = config.positive("n_embd");
  made.layers = config.positive("n_layer");
  made.heads = config.positive("n_head");
  if (made.hidden % made.heads != 0) throw usage_error("'n_embd' is not a multiple of 'n_head'").at(config.where());
  made.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  made.embedding_dropout = config.number("embd_pdrop", 0.1);
  made.attention_dropout = config.number("attn_pdrop", 0.1);
  made.residual_dropout = config.number("resid_pdrop", 0.1);
  made.tied = config.boolean("tie_word_embeddings", true);
  made.init_std = config.number("initializer_range", 0.02);
  return made;
}

}  // namespace

Gpt2Config read_gpt1_config(const ConfigReader& config) {
  Gpt2Config made = read_sizes(config, 512);
  made.post_norm = true;
  made.intermediate = 4 * made.hidden;
  const std::string activation = config.text("afn", "gelu");
  if (activation != "gelu" && activation != "gelu_new") {  // both name the tanh form here
    throw usage_error(fmt::format("'afn' {} is not supported", activation))
        .at(config.where())
        .mend("supported: gelu, gelu_new (the same function in this family)");
  }
  return made;
}

Gpt2Config read_gpt2_config(const ConfigReader& config) {
  Gpt2Config made = read_sizes(config, 1024);
  made.intermediate = config.positive("n_inner", 4 * made.hidden);
  made.scale_weights = config.boolean("scale_attn_weights", true);
  made.scale_by_layer = config.boolean("scale_attn_by_inverse_layer_idx", false);
  config.only("add_cross_attention", false, "GPT-2 as a decoder of an encoder-decoder is not supported");
  const std::string activation = config.text("activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    made.gelu_tanh = true;
  } else if (activation == "gelu") {
    made.gelu_tanh = false;
  } else {
    throw usage_error(fmt::format("'activation_function' {} is not supported", activation))
        .at(config.where())
        .mend("supported: gelu_new, gelu_pytorch_tanh, gelu");
  }
  return made;
}

std::unique_ptr<Model> make_gpt2(Gpt2Config config) {
  return std::make_unique<Gpt2>(config);
}

}  // namespace convoy
