// The language-model head with its loss: logits of as many rows as the workspace takes, turned into their gradients
// where they lie.
#include "cuda/cross_entropy.h"
#include "cuda/matmul.h"
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/linear_cross_entropy.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 1024;
constexpr std::size_t kLogitBytes = std::size_t{5} << 29;  // 2.5 GiB of logits at once, unless the user says

__global__ void __launch_bounds__(kBlock)
    statistics_kernel(const RowLoss* losses, std::int64_t tokens, float* statistics) {
  __shared__ double shared[3][kBlock];
  double sums[3] = {};
  for (std::int64_t t = threadIdx.x; t < tokens; t += kBlock) {
    sums[0] += losses[t].value;
    sums[1] += losses[t].target;
    sums[2] += losses[t].correct;
  }
  for (int i = 0; i < 3; ++i) shared[i][threadIdx.x] = sums[i];
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) {
      for (int i = 0; i < 3; ++i) shared[i][threadIdx.x] += shared[i][threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    statistics[kLossSum] = static_cast<float>(shared[0][0]);
    statistics[kTargetCount] = static_cast<float>(shared[1][0]);
    statistics[kCorrectCount] = static_cast<float>(shared[2][0]);
    statistics[3] = 0;
  }
}

// The products of a chunk of rows; the last chunk may be shorter. A vocabulary that is no multiple of 16 bytes is cut
// before its last few columns: cuBLASLt's fast products take whole ones alone.
class ChunkProducts {
 public:
  ChunkProducts(Context& c, DType dtype, std::int64_t rows, std::int64_t dim, const CrossEntropyRule& rule,
                bool with_dx, bool with_dweight, bool accumulate)
      : dim_(dim), bytes_(static_cast<std::int64_t>(size_of(dtype))) {
    const auto wide = 16 / bytes_;
    const std::int64_t whole = rule.vocab / wide * wide;
    const bool cut = whole < rule.vocab && rule.stride % wide == 0 && whole >= kLeastCut;
    add(c, dtype, rows, 0, cut ? whole : rule.vocab, rule, with_dx, with_dweight, accumulate);
    if (cut) add(c, dtype, rows, whole, rule.vocab - whole, rule, with_dx, with_dweight, accumulate);
  }
  void logits(const std::byte* x, const std::byte* weight, std::byte* logits, std::byte* workspace) const {
    for (const Part& part : parts_)
      part.logits->run(x, weight + part.first * dim_ * bytes_, nullptr, nullptr, logits + part.first * bytes_,
                       workspace);
  }
  void dx(const std::byte* gradient, const std::byte* weight, std::byte* dx, std::byte* workspace) const {
    for (const Part& part : parts_)
      part.dx->run(gradient + part.first * bytes_, weight + part.first * dim_ * bytes_, nullptr, dx, dx, workspace);
  }
  void dweight(const std::byte* gradient, const std::byte* x, std::byte* dweight, std::byte* workspace) const {
    for (const Part& part : parts_) {
      std::byte* to = dweight + part.first * dim_ * static_cast<std::int64_t>(sizeof(float));
      part.dweight->run(gradient + part.first * bytes_, x, nullptr, to, to, workspace);
    }
  }

 private:
  static constexpr std::int64_t kLeastCut = 1024;  // a smaller product is not worth a second launch
  struct Part {
    std::int64_t first;  // column of the logits, row of the weight
    std::shared_ptr<Matmul> logits, dx, dweight;
  };
  void add(Context& c, DType dtype, std::int64_t rows, std::int64_t first, std::int64_t count,
           const CrossEntropyRule& rule, bool with_dx, bool with_dweight, bool accumulate) {
    const std::int64_t stride = rule.stride > count ? rule.stride : 0;
    const auto product = [&](const MatmulSpec& spec) { return std::make_shared<Matmul>(c, spec); };
    Part part{first, product({dtype, dtype, rows, count, dim_, false, true, false, false, 0, stride}), nullptr,
              nullptr};
    if (with_dx) part.dx = product({dtype, dtype, rows, dim_, count, false, false, first > 0, false, stride, 0});
    if (with_dweight)
      part.dweight = product({dtype, DType::kF32, count, dim_, rows, true, false, accumulate, false, stride, 0});
    parts_.push_back(std::move(part));
  }
  std::int64_t dim_, bytes_;
  std::vector<Part> parts_;
};

struct Head {
  Head(Context& context, const CrossEntropyShape& shape, const KernelRequest& q, bool wants_dx, bool wants_dweight)
      : c(&context),
        with_dx(wants_dx),
        with_dweight(wants_dweight),
        dtype(q.inputs[0]->dtype),
        tokens(q.inputs[0]->shape[0]),
        dim(q.inputs[0]->shape[1]),
        rule{q.inputs[1]->shape[0], stride_of(q), static_cast<float>(shape.label_smoothing),
             static_cast<float>(shape.z_loss), with_dx || with_dweight},
        accumulate(with_dweight && q.has(4)) {
    std::int64_t most = shape.chunk_rows;
    if (most == 0) {
      most = std::max<std::int64_t>(
          128, static_cast<std::int64_t>(kLogitBytes / (static_cast<std::size_t>(rule.stride) * size_of(dtype))));
      most = ceil_div(tokens, std::max<std::int64_t>(1, ceil_div(tokens, most)));  // chunks of one size
      most = ceil_div(most, 128) * 128;
    }
    chunk = std::max<std::int64_t>(1, std::min(most, tokens));
    const std::int64_t rest = tokens % chunk;
    if (tokens >= chunk) {
      first.emplace(context, dtype, chunk, dim, rule, with_dx, with_dweight, accumulate);
      if (with_dweight) later.emplace(context, dtype, chunk, dim, rule, with_dx, with_dweight, true);
    }
    if (rest > 0) {
      last.emplace(context, dtype, rest, dim, rule, with_dx, with_dweight, accumulate || tokens > chunk);
    }
  }

  // Rows of logits begin at multiples of 16 bytes, as fast products ask, where those of the other matrices do.
  static std::int64_t stride_of(const KernelRequest& q) {
    const std::int64_t vocab = q.inputs[1]->shape[0], dim = q.inputs[1]->shape[1];
    const auto wide = static_cast<std::int64_t>(16 / size_of(q.inputs[0]->dtype));
    return dim % wide == 0 ? ceil_div(vocab, wide) * wide : vocab;
  }

  std::size_t logit_bytes() const {
    return (static_cast<std::size_t>(chunk * rule.stride) * size_of(dtype) + 255) / 256 * 256;
  }
  std::size_t loss_bytes() const { return (static_cast<std::size_t>(tokens) * sizeof(RowLoss) + 255) / 256 * 256; }
  std::size_t workspace_bytes() const { return kMatmulWorkspace + logit_bytes() + loss_bytes(); }

  void run(const KernelArguments& a) const {
    std::byte* logits = a.workspace + kMatmulWorkspace;
    auto* losses = reinterpret_cast<RowLoss*>(logits + logit_bytes());
    const auto* targets = reinterpret_cast<const std::int32_t*>(a.inputs[2]);
    const auto row_bytes = dim * static_cast<std::int64_t>(size_of(dtype));
    for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
      const std::int64_t rows = std::min(chunk, tokens - begin);
      const ChunkProducts& products = rows < chunk ? *last : (begin == 0 || !later ? *first : *later);
      const std::byte* x = a.inputs[0] + begin * row_bytes;
      products.logits(x, a.inputs[1], logits, a.workspace);
      cross_entropy_rows(dtype, rule, rows, logits, targets + begin,
                         rule.backward ? reinterpret_cast<const float*>(a.inputs[3]) : nullptr, losses + begin,
                         c->stream);
      if (!rule.backward) continue;
      if (with_dx) products.dx(logits, a.inputs[1], a.outputs[1] + begin * row_bytes, a.workspace);
      if (with_dweight) products.dweight(logits, x, a.outputs[2], a.workspace);
    }
    statistics_kernel<<<1, kBlock, 0, c->stream>>>(losses, tokens, reinterpret_cast<float*>(a.outputs[0]));
    check_launch("cross-entropy's sums");
  }

  Context* c;
  bool with_dx, with_dweight;
  DType dtype;
  std::int64_t tokens, dim, chunk = 1;
  CrossEntropyRule rule;
  bool accumulate;
  std::optional<ChunkProducts> first, later, last;
};

}  // namespace

void register_head(KernelRegistry& registry, Context& c) {
  registry.add<LinearCrossEntropy>(
      [&c](const LinearCrossEntropy& op, const KernelRequest& q) {
        return [head = Head(c, op.shape, q, false, false)](const KernelArguments& a) { head.run(a); };
      },
      [&c](const LinearCrossEntropy& op, const KernelRequest& q) {
        return Head(c, op.shape, q, false, false).workspace_bytes();
      });
  registry.add<LinearCrossEntropyGrad>(
      [&c](const LinearCrossEntropyGrad& op, const KernelRequest& q) {
        return [head = Head(c, op.shape, q, op.dx, op.dweight)](const KernelArguments& a) { head.run(a); };
      },
      [&c](const LinearCrossEntropyGrad& op, const KernelRequest& q) {
        return Head(c, op.shape, q, op.dx, op.dweight).workspace_bytes();
      });
}

}  // namespace convoy::cuda
