#include "cpu/cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>

#include "base/error.h"
#include "cpu/cross_entropy_kernels.h"
#include "cpu/gemm_tile.h"
#include "cpu/isa.h"

namespace convoy::cpu {
namespace {

// The vocabulary is cut into panels; every kMaxGroups-th panel belongs to one group, which has its own scratch and its
// own sum of dx. Groups are what threads share out.
constexpr std::int64_t kMaxGroups = 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

const CrossEntropyKernels& kernels() {
#if defined(__x86_64__)
  return pick(&base::cross_entropy_kernels, &avx2::cross_entropy_kernels, &avx512::cross_entropy_kernels)();
#else
  return base::cross_entropy_kernels();
#endif
}

// Runs body(i) for i in 0…n-1; an exception leaves the parallel region.
template <class Body>
void for_each(std::int64_t n, const Body& body) {
  std::exception_ptr failure;
  std::mutex lock;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < n; ++i) {
    try {
      body(i);
    } catch (...) {
      const std::lock_guard guard(lock);
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

CrossEntropySpec validated(const CrossEntropySpec& s) {
  check(is_floating(s.dtype), "cross-entropy: not a floating-point type");
  check(s.tokens >= 0 && s.dim > 0 && s.vocab > 0 && s.chunk_rows > 0, "cross-entropy: a size is not positive");
  check(s.label_smoothing >= 0 && s.label_smoothing <= 1, "cross-entropy: label smoothing must be in [0, 1]");
  check(s.z_loss >= 0, "cross-entropy: the z-loss coefficient is negative");
  return s;
}

char* at(void* base, std::int64_t bytes) {
  return static_cast<char*>(base) + bytes;
}
const char* at(const void* base, std::int64_t bytes) {
  return static_cast<const char*>(base) + bytes;
}

}  // namespace

struct CrossEntropy::Plan {
  explicit Plan(const CrossEntropySpec& given);
  void run(const CrossEntropyArgs& args) const;

  CrossEntropySpec spec;
  std::size_t total_bytes = 0;

 private:
  // The workspace and what a chunk is at.
  struct Run {
    const CrossEntropyArgs& args;
    char* space;
    std::int64_t count = 0, correct = 0;  // rows with a target in all
    std::int64_t first = 0, filled = 0;   // the chunk's rows in the list, and how many
    double loss = 0;
    double factor = 1;
  };
  struct Products {
    std::shared_ptr<TileProduct> logits, dx, dw;
  };

  std::size_t place(std::size_t bytes) {
    const std::size_t offset = total_bytes;
    total_bytes += align64(bytes);
    return offset;
  }
  Products prepare(std::int64_t width) const;
  std::int64_t width_of(std::int64_t p) const { return std::min(panel, spec.vocab - p * panel); }
  const Products& products_of(std::int64_t p) const { return products[p == panels - 1]; }
  char* logits_of(const Run& run, std::int64_t p) const {
    return run.space + logits_at + static_cast<std::size_t>(p) * panel_bytes;
  }
  char* group_space(const Run& run, std::int64_t g) const {
    return run.space + groups_at + static_cast<std::size_t>(g) * group_bytes;
  }
  std::int32_t* row_list(const Run& run) const { return reinterpret_cast<std::int32_t*>(run.space + list_at); }
  std::int32_t* chunk_targets(const Run& run) const { return reinterpret_cast<std::int32_t*>(run.space + targets_at); }
  double* chunk_lse(const Run& run) const { return reinterpret_cast<double*>(run.space + lse_at); }
  double* chunk_loss(const Run& run) const { return reinterpret_cast<double*>(run.space + loss_at); }
  std::int32_t* chunk_correct(const Run& run) const { return reinterpret_cast<std::int32_t*>(run.space + correct_at); }
  double sum_of(const Run& run, std::size_t offset, std::int64_t p, std::int64_t r) const {
    const char* v = run.space + offset + static_cast<std::size_t>(p * rows + r) * real_bytes;
    return real_bytes == 8 ? *reinterpret_cast<const double*>(v) : *reinterpret_cast<const float*>(v);
  }
  double logit(const Run& run, std::int64_t r, std::int64_t v) const {
    const std::int64_t p = v / panel, index = r * width_of(p) + v % panel;
    const char* x = logits_of(run, p) + static_cast<std::size_t>(index) * real_bytes;
    return real_bytes == 8 ? *reinterpret_cast<const double*>(x) : *reinterpret_cast<const float*>(x);
  }

  void list_rows(Run& run) const;
  void clear_gradients(const Run& run) const;
  void gather(const Run& run) const;
  const void* weight_panel(const Run& run, std::int64_t p, std::int64_t g) const;
  void compute_logits(const Run& run) const;
  void compute_losses(Run& run) const;
  void lose_row(const Run& run, std::int64_t r) const;
  bool is_correct(const Run& run, std::int64_t r, double max) const;
  void compute_gradients(const Run& run) const;
  void scatter_dx(const Run& run) const;

  DType in;  // of the products' operands
  std::size_t real_bytes;
  std::int64_t rows, panel, panels, groups;
  Products products[2];  // of a whole panel and of the last one
  std::size_t list_at = 0, targets_at = 0, x_at = 0, logits_at = 0, max_at = 0, exp_at = 0, sum_at = 0, lse_at = 0,
              loss_at = 0, correct_at = 0, groups_at = 0;
  std::size_t panel_bytes = 0, scratch_bytes = 0, weight_bytes = 0, partial_bytes = 0, group_bytes = 0;
};

CrossEntropy::Plan::Plan(const CrossEntropySpec& given) : spec(validated(given)) {
  const bool detour = spec.dtype == DType::kF16 || (spec.dtype == DType::kBF16 && !native_bf16());
  in = detour ? DType::kF32 : spec.dtype;
  real_bytes = spec.dtype == DType::kF64 ? 8 : 4;
  rows = std::min(spec.chunk_rows, spec.tokens);
  panel = std::clamp<std::int64_t>(ceil_div(ceil_div(spec.vocab, kMaxGroups), 64) * 64, 64, detour ? 256 : 1024);
  panel = std::min(panel, spec.vocab);
  panels = ceil_div(spec.vocab, panel);
  groups = std::min(panels, kMaxGroups);
  if (rows == 0) return;
  products[0] = prepare(panel);
  products[1] = prepare(width_of(panels - 1));
  for (const Products& p : products)
    for (const auto& product : {p.logits, p.dx, p.dw})
      if (product) scratch_bytes = std::max(scratch_bytes, align64(product->scratch_bytes()));
  const std::size_t real_rows = static_cast<std::size_t>(rows) * real_bytes;
  const std::size_t dim = static_cast<std::size_t>(spec.dim), all = static_cast<std::size_t>(panels);
  list_at = place(static_cast<std::size_t>(spec.tokens) * sizeof(std::int32_t));
  targets_at = place(static_cast<std::size_t>(rows) * sizeof(std::int32_t));
  x_at = place(static_cast<std::size_t>(rows) * dim * size_of(in));
  panel_bytes = align64(real_rows * static_cast<std::size_t>(panel));
  logits_at = place(panel_bytes * all);
  max_at = place(real_rows * all);
  exp_at = place(real_rows * all);
  sum_at = place(spec.label_smoothing > 0 ? real_rows * all : 0);
  lse_at = place(static_cast<std::size_t>(rows) * sizeof(double));
  loss_at = place(static_cast<std::size_t>(rows) * sizeof(double));
  correct_at = place(static_cast<std::size_t>(rows) * sizeof(std::int32_t));
  if (detour) weight_bytes = align64(static_cast<std::size_t>(panel) * dim * sizeof(float));
  if (spec.backward) partial_bytes = align64(real_rows * dim);
  group_bytes = scratch_bytes + weight_bytes;
  groups_at = place((group_bytes + partial_bytes) * static_cast<std::size_t>(groups));
}

CrossEntropy::Plan::Products CrossEntropy::Plan::prepare(std::int64_t width) const {
  const DType real = spec.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  TileSpec t{};
  t.in = in;
  t.out = real;
  Products p;
  t.m = rows, t.n = width, t.k = spec.dim;
  t.lda = t.ldb = spec.dim, t.ldc = width;
  t.transpose_b = true;
  p.logits = TileProduct::prepare(t);
  if (!spec.backward) return p;
  t.m = rows, t.n = spec.dim, t.k = width;
  t.lda = width, t.ldb = t.ldc = spec.dim;
  t.transpose_b = false;
  t.accumulate = true;
  if (spec.with_dx) p.dx = TileProduct::prepare(t);
  t.m = width, t.n = spec.dim, t.k = rows;
  t.transpose_a = true;
  if (spec.with_dw) p.dw = TileProduct::prepare(t);
  return p;
}

// The rows that have a target, and their number.
void CrossEntropy::Plan::list_rows(Run& run) const {
  std::int32_t* list = row_list(run);
  for (std::int64_t t = 0; t < spec.tokens; ++t) {
    const std::int32_t target = run.args.targets[t];
    if (target == -1) continue;
    if (target < 0 || target >= spec.vocab)
      throw data_error("the target token " + std::to_string(target) + " of row " + std::to_string(t) +
                       " is not in the vocabulary of " + std::to_string(spec.vocab))
          .mend("use a tokenizer whose size is that of the model's vocabulary");
    list[run.count++] = static_cast<std::int32_t>(t);
  }
}

void CrossEntropy::Plan::clear_gradients(const Run& run) const {
  const std::size_t row = static_cast<std::size_t>(spec.dim) * size_of(spec.dtype);
  for_each(spec.with_dx ? ceil_div(spec.tokens, 64) : 0, [&](std::int64_t i) {
    for (std::int64_t t = i * 64; t < std::min(spec.tokens, (i + 1) * 64); ++t)
      if (run.args.targets[t] == -1) std::memset(at(run.args.dx, t * static_cast<std::int64_t>(row)), 0, row);
  });
  if (spec.accumulate_dw || !spec.with_dw) return;
  const std::int64_t entry = spec.dim * static_cast<std::int64_t>(real_bytes);
  for_each(panels, [&](std::int64_t p) {
    std::memset(at(run.args.dweight, p * panel * entry), 0, static_cast<std::size_t>(width_of(p) * entry));
  });
}

// The chunk's rows of x side by side; zeros behind the last.
void CrossEntropy::Plan::gather(const Run& run) const {
  const std::int64_t in_row = spec.dim * static_cast<std::int64_t>(size_of(in));
  const std::int64_t x_row = spec.dim * static_cast<std::int64_t>(size_of(spec.dtype));
  const GemmKernels& convert = active_gemm_kernels();
  for_each(ceil_div(rows, 64), [&](std::int64_t block) {
    for (std::int64_t r = block * 64; r < std::min(rows, (block + 1) * 64); ++r) {
      char* to = run.space + x_at + static_cast<std::size_t>(r * in_row);
      if (r >= run.filled) {
        std::memset(to, 0, static_cast<std::size_t>(in_row));
        chunk_targets(run)[r] = -1;
        continue;
      }
      const std::int64_t t = row_list(run)[run.first + r];
      chunk_targets(run)[r] = run.args.targets[t];
      const char* from = at(run.args.x, t * x_row);
      if (in == spec.dtype) {
        std::memcpy(to, from, static_cast<std::size_t>(x_row));
      } else {
        convert.load_rows(static_cast<int>(spec.dtype), from, spec.dim, 1, spec.dim, to, spec.dim);
      }
    }
  });
}

// The panel's rows of W as operands of a product.
const void* CrossEntropy::Plan::weight_panel(const Run& run, std::int64_t p, std::int64_t g) const {
  const char* w = at(run.args.weight, p * panel * spec.dim * static_cast<std::int64_t>(size_of(spec.dtype)));
  if (in == spec.dtype) return w;
  char* wide = group_space(run, g) + scratch_bytes;
  active_gemm_kernels().load_rows(static_cast<int>(spec.dtype), w, spec.dim, width_of(p), spec.dim, wide, spec.dim);
  return wide;
}

void CrossEntropy::Plan::compute_logits(const Run& run) const {
  const bool f64 = real_bytes == 8;
  for_each(groups, [&](std::int64_t g) {
    for (std::int64_t p = g; p < panels; p += groups) {
      char* logits = logits_of(run, p);
      products_of(p).logits->run(run.space + x_at, weight_panel(run, p, g), nullptr, logits, group_space(run, g));
      const std::size_t row = static_cast<std::size_t>(p * rows) * real_bytes;
      kernels().sums({f64, run.filled, width_of(p), logits},
                     {run.space + max_at + row, run.space + exp_at + row,
                      spec.label_smoothing > 0 ? run.space + sum_at + row : nullptr});
    }
  });
}

bool CrossEntropy::Plan::is_correct(const Run& run, std::int64_t r, double max) const {
  const std::int32_t target = chunk_targets(run)[r];
  if (logit(run, r, target) != max) return false;
  for (std::int32_t v = 0; v < target; ++v)
    if (logit(run, r, v) == max) return false;  // a tie goes to the first
  return true;
}

void CrossEntropy::Plan::lose_row(const Run& run, std::int64_t r) const {
  double max = sum_of(run, max_at, 0, r);
  for (std::int64_t p = 1; p < panels; ++p) max = std::max(max, sum_of(run, max_at, p, r));
  double total = 0, sum = 0;
  for (std::int64_t p = 0; p < panels; ++p) {
    total += sum_of(run, exp_at, p, r) * std::exp(sum_of(run, max_at, p, r) - max);
    if (spec.label_smoothing > 0) sum += sum_of(run, sum_at, p, r);
  }
  const double lse = max + std::log(total), e = spec.label_smoothing;
  double loss = (1 - e) * (lse - logit(run, r, chunk_targets(run)[r]));
  if (e > 0) loss += e * (lse - sum / static_cast<double>(spec.vocab));
  if (spec.z_loss > 0) loss += spec.z_loss * lse * lse;
  chunk_lse(run)[r] = lse;
  chunk_loss(run)[r] = loss;
  if (spec.count_correct) chunk_correct(run)[r] = is_correct(run, r, max) ? 1 : 0;
}

void CrossEntropy::Plan::compute_losses(Run& run) const {
  for_each(ceil_div(run.filled, 16), [&](std::int64_t block) {
    for (std::int64_t r = block * 16; r < std::min(run.filled, (block + 1) * 16); ++r) lose_row(run, r);
  });
  for (std::int64_t r = 0; r < run.filled; ++r) {
    run.loss += chunk_loss(run)[r];
    if (spec.count_correct) run.correct += chunk_correct(run)[r];
  }
}

void CrossEntropy::Plan::compute_gradients(const Run& run) const {
  const bool f64 = real_bytes == 8, to_bf16 = in == DType::kBF16;
  const double e = spec.label_smoothing;
  const std::int64_t gradient_bytes = static_cast<std::int64_t>(to_bf16 ? 2 : real_bytes);
  for_each(groups, [&](std::int64_t g) {
    char* scratch = group_space(run, g);
    char* partial = run.space + groups_at + group_bytes * static_cast<std::size_t>(groups) +
                    partial_bytes * static_cast<std::size_t>(g);
    std::memset(partial, 0, partial_bytes);
    for (std::int64_t p = g; p < panels; p += groups) {
      const std::int64_t width = width_of(p);
      char* logits = logits_of(run, p);
      kernels().gradient({f64, run.filled, width, logits},
                         {p * panel, chunk_targets(run), chunk_lse(run), spec.z_loss,
                          e / static_cast<double>(spec.vocab), 1 - e, run.factor, to_bf16});
      std::memset(logits + run.filled * width * gradient_bytes, 0,
                  static_cast<std::size_t>((rows - run.filled) * width * gradient_bytes));
      if (spec.with_dx) products_of(p).dx->run(logits, weight_panel(run, p, g), nullptr, partial, scratch);
      if (!spec.with_dw) continue;
      products_of(p).dw->run(logits, run.space + x_at, nullptr,
                             at(run.args.dweight, p * panel * spec.dim * static_cast<std::int64_t>(real_bytes)),
                             scratch);
    }
  });
}

void CrossEntropy::Plan::scatter_dx(const Run& run) const {
  const char* partials = run.space + groups_at + group_bytes * static_cast<std::size_t>(groups);
  const std::int64_t stride = static_cast<std::int64_t>(partial_bytes / real_bytes);
  const std::int64_t x_row = spec.dim * static_cast<std::int64_t>(size_of(spec.dtype));
  for_each(ceil_div(run.filled, 16), [&](std::int64_t block) {
    for (std::int64_t r = block * 16; r < std::min(run.filled, (block + 1) * 16); ++r)
      kernels().reduce_row(static_cast<int>(spec.dtype), partials + static_cast<std::size_t>(r * spec.dim) * real_bytes,
                           stride, groups, spec.dim, at(run.args.dx, row_list(run)[run.first + r] * x_row));
  });
}

void CrossEntropy::Plan::run(const CrossEntropyArgs& args) const {
  Run state{args, static_cast<char*>(args.workspace)};
  if (args.grad_scale) state.factor = static_cast<double>(*args.grad_scale);
  list_rows(state);
  if (spec.backward) clear_gradients(state);
  for (; state.first < state.count; state.first += rows) {
    state.filled = std::min(rows, state.count - state.first);
    gather(state);
    compute_logits(state);
    compute_losses(state);
    if (!spec.backward) continue;
    compute_gradients(state);
    if (spec.with_dx) scatter_dx(state);
  }
  *args.loss_sum = state.loss;
  if (args.target_count) *args.target_count = state.count;
  if (spec.count_correct) *args.correct_count = state.correct;
}

CrossEntropy::CrossEntropy(const CrossEntropySpec& spec) : plan_(std::make_unique<const Plan>(spec)) {}
CrossEntropy::~CrossEntropy() = default;
CrossEntropy::CrossEntropy(CrossEntropy&&) noexcept = default;
CrossEntropy& CrossEntropy::operator=(CrossEntropy&&) noexcept = default;

const CrossEntropySpec& CrossEntropy::spec() const {
  return plan_->spec;
}
std::size_t CrossEntropy::workspace_bytes() const {
  return plan_->total_bytes;
}
void CrossEntropy::run(const CrossEntropyArgs& args) const {
  plan_->run(args);
}

}  // namespace convoy::cpu
