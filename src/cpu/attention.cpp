#include "cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "cpu/attention_kernels.h"
#include "cpu/isa.h"

namespace convoy::cpu {
namespace {

// Enough tasks in the backward pass for this many threads, if the heads alone are fewer.
constexpr std::int64_t kBackwardTasks = 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
std::size_t align64(std::size_t n) {
  return (n + 63) / 64 * 64;
}

const AttentionKernels& kernels() {
#if defined(__x86_64__)
  return pick(&base::attention_kernels, &avx2::attention_kernels, &avx512::attention_kernels)();
#else
  return base::attention_kernels();
#endif
}

struct Sizes {
  explicit Sizes(const AttentionSpec& s)
      : query_blocks(ceil_div(s.tokens, kQueryBlock)),
        key_blocks(ceil_div(s.keys, kKeyBlock)),
        keys_padded(key_blocks * kKeyBlock),
        dim_padded(ceil_div(s.head_dim, 32) * 32),
        chunks(std::clamp<std::int64_t>(ceil_div(kBackwardTasks, s.heads), 1, std::max<std::int64_t>(query_blocks, 1))),
        real_bytes(s.dtype == DType::kF64 ? 8 : 4),
        per_query(align64(static_cast<std::size_t>(s.tokens) * sizeof(std::int32_t))),
        per_block(align64(static_cast<std::size_t>(query_blocks) * sizeof(std::int32_t))),
        packed(align64(static_cast<std::size_t>(s.kv_heads * keys_padded * dim_padded) * real_bytes)),
        partial(align64(static_cast<std::size_t>(s.heads * chunks * keys_padded * dim_padded) * real_bytes)) {}
  std::size_t ranges() const { return 3 * per_query + 2 * per_block; }

  std::int64_t query_blocks, key_blocks, keys_padded, dim_padded, chunks;
  std::size_t real_bytes, per_query, per_block, packed, partial;
};

class Carver {
 public:
  explicit Carver(void* workspace) : next_(static_cast<char*>(workspace)) {}
  template <class T = void>
  T* take(std::size_t bytes) {
    void* p = next_;
    next_ += bytes;
    return static_cast<T*>(p);
  }

 private:
  char* next_;
};

struct Ranges {
  std::int32_t *start, *low, *high, *block_low, *block_high;
};

// The keys of each query, and the hull of those of each query block.
void fill_ranges(const AttentionSpec& s, const AttentionInput& in, const Ranges& r) {
  std::int64_t end = s.tokens;
  for (std::int64_t t = s.tokens - 1; t >= 0; --t) {
    std::int64_t low, high;
    if (s.mask == AttentionMask::kRanges) {
      low = in.key_begin[t];
      high = in.key_end[t];
      check(low >= 0 && low <= high && high <= s.keys, "attention: a range of keys leaves the sequence");
    } else {
      low = in.seq_start[t];
      check(low >= 0 && low <= t, "attention: a document starts behind its own token");
      if (t + 1 < s.tokens && in.seq_start[t + 1] != in.seq_start[t]) end = t + 1;
      high = s.mask == AttentionMask::kCausal ? t + 1 : end;
    }
    r.start[t] = static_cast<std::int32_t>(low);
    if (s.window > 0) {
      low = std::max(low, t - s.window + 1);
      high = std::min(high, t + s.window);
    }
    r.low[t] = static_cast<std::int32_t>(low);
    r.high[t] = static_cast<std::int32_t>(high);
  }
  for (std::int64_t b = 0; b * kQueryBlock < s.tokens; ++b) {
    std::int32_t low = std::numeric_limits<std::int32_t>::max(), high = 0;
    for (std::int64_t t = b * kQueryBlock; t < std::min(s.tokens, (b + 1) * kQueryBlock); ++t) {
      if (r.low[t] >= r.high[t]) continue;
      low = std::min(low, r.low[t]);
      high = std::max(high, r.high[t]);
    }
    r.block_low[b] = std::min(low, high);
    r.block_high[b] = high;
  }
}

AttentionJob make_job(const AttentionSpec& s, const Sizes& z, const AttentionInput& in, Carver& space) {
  Ranges r{};
  for (std::int32_t** p : {&r.start, &r.low, &r.high}) *p = space.take<std::int32_t>(z.per_query);
  for (std::int32_t** p : {&r.block_low, &r.block_high}) *p = space.take<std::int32_t>(z.per_block);
  fill_ranges(s, in, r);
  AttentionJob job{};
  job.dtype = static_cast<int>(s.dtype);
  job.queries = s.tokens;
  job.keys = s.keys;
  job.keys_padded = z.keys_padded;
  job.heads = s.heads;
  job.kv_heads = s.kv_heads;
  job.dim = s.head_dim;
  job.dim_padded = z.dim_padded;
  job.q_stride = s.q_stride;
  job.k_stride = s.k_stride;
  job.v_stride = s.v_stride;
  job.o_stride = s.o_stride;
  job.scale = s.scale;
  // to_unit(bits) >= p in integers; p is taken as f32.
  job.drop_below =
      static_cast<std::uint32_t>(std::ceil(std::ldexp(static_cast<double>(static_cast<float>(s.dropout)), 24)));
  job.keep_scale = 1 / (1 - static_cast<double>(static_cast<float>(s.dropout)));
  job.use = s.use;
  const PhiloxKey key = philox_key(in.seed);
  job.seed[0] = key[0];
  job.seed[1] = key[1];
  job.token_keys = in.token_keys;
  job.start = r.start;
  job.low = r.low;
  job.high = r.high;
  job.block_low = r.block_low;
  job.block_high = r.block_high;
  job.q = in.q;
  job.k = in.k;
  job.v = in.v;
  job.chunks = z.chunks;
  return job;
}

void for_each_key_block(const AttentionJob& job, const Sizes& z,
                        void (*body)(const AttentionJob&, std::int64_t, std::int64_t)) {
  const std::int64_t count = job.kv_heads * z.key_blocks;
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) body(job, i / z.key_blocks, i % z.key_blocks);
}

}  // namespace

Attention::Attention(const AttentionSpec& spec) : spec_(spec) {
  AttentionSpec& s = spec_;
  check(is_floating(s.dtype), "attention: not a floating-point type");
  check(s.tokens >= 0 && s.keys >= 0 && std::max(s.tokens, s.keys) <= std::numeric_limits<std::int32_t>::max(),
        "attention: the number of tokens is out of range");
  check(s.heads > 0 && s.heads < 65536 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
        "attention: the heads must be a multiple of the key-value heads");
  check(s.head_dim > 0 && s.head_dim % 2 == 0 && s.head_dim <= kMaxHeadDim,
        "attention: the head size must be even and at most 256");
  check(s.dropout >= 0 && s.dropout < 1, "attention: dropout must be in [0, 1)");
  check(s.window >= 0 && (s.window == 0 || s.mask != AttentionMask::kRanges),
        "attention: a window needs queries and keys of one sequence");
  check(s.keys == 0 || s.keys == s.tokens || s.mask == AttentionMask::kRanges,
        "attention: only ranges may have another number of keys than of queries");
  if (s.keys == 0) s.keys = s.tokens;
  if (s.scale == 0) s.scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  check(s.scale > 0 && std::isfinite(s.scale), "attention: the scale must be positive");
  const std::int64_t packed_row = (s.heads + 2 * s.kv_heads) * s.head_dim;
  for (std::int64_t* stride : {&s.q_stride, &s.k_stride, &s.v_stride})
    if (*stride == 0) *stride = packed_row;
  if (s.o_stride == 0) s.o_stride = s.heads * s.head_dim;
  check(s.q_stride >= s.heads * s.head_dim && s.o_stride >= s.heads * s.head_dim &&
            s.k_stride >= s.kv_heads * s.head_dim && s.v_stride >= s.kv_heads * s.head_dim,
        "attention: a stride is shorter than its row");
}

std::size_t Attention::forward_workspace_bytes() const {
  const Sizes z(spec_);
  return z.ranges() + 2 * z.packed;
}
std::size_t Attention::backward_workspace_bytes() const {
  const Sizes z(spec_);
  return z.ranges() + 3 * z.packed + 2 * z.partial;
}

AttentionInput Attention::packed(const void* qkv) const {
  const std::int64_t element = static_cast<std::int64_t>(size_of(spec_.dtype));
  const char* row = static_cast<const char*>(qkv);
  AttentionInput in;
  in.q = row;
  in.k = row + spec_.heads * spec_.head_dim * element;
  in.v = row + (spec_.heads + spec_.kv_heads) * spec_.head_dim * element;
  return in;
}

void Attention::forward(const AttentionInput& in, void* o, void* lse, void* workspace) const {
  const Sizes z(spec_);
  Carver space(workspace);
  AttentionJob job = make_job(spec_, z, in, space);
  job.keys_t = space.take(z.packed);
  job.values_p = space.take(z.packed);
  job.out = o;
  job.lse = lse;
  const AttentionKernels& k = kernels();
  for_each_key_block(job, z, k.pack);
  const std::int64_t tasks = z.query_blocks * spec_.heads;
  // The last blocks first: with a causal mask they see the most keys.
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < tasks; ++i) k.forward(job, i % job.heads, z.query_blocks - 1 - i / job.heads);
}

void Attention::backward(const AttentionInput& in, const void* o, const void* lse, const void* d_o, void* dq, void* dk,
                         void* dv, void* workspace) const {
  const Sizes z(spec_);
  Carver space(workspace);
  AttentionJob job = make_job(spec_, z, in, space);
  job.keys_t = space.take(z.packed);
  job.keys_p = space.take(z.packed);
  job.values_t = space.take(z.packed);
  job.dk_part = space.take(z.partial);
  job.dv_part = space.take(z.partial);
  job.o = o;
  job.lse = const_cast<void*>(lse);  // only read
  job.d_out = d_o;
  job.dq = dq;
  job.dk = dk;
  job.dv = dv;
  const AttentionKernels& k = kernels();
  for_each_key_block(job, z, k.pack);
  const std::int64_t tasks = job.heads * z.chunks;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < tasks; ++i) k.backward(job, i / z.chunks, i % z.chunks);
  for_each_key_block(job, z, k.reduce);
}

}  // namespace convoy::cpu
