#include "cpu/attention_kernels.h"
#include "cpu/gemm_simd.isa.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

template <class R>
constexpr R kLog2e = static_cast<R>(1.44269504088896340736);
template <class R>
constexpr R kLn2 = static_cast<R>(0.69314718055994530942);

// A block of rows in Real, without the power-of-two stride that would map its rows to the same cache sets.
template <class R>
struct Rows {
  static constexpr std::int64_t kStride = kMaxHeadDim + Simd<R>::kWidth;
  alignas(64) R at[kQueryBlock * kStride];
  R* row(std::int64_t i) { return at + i * kStride; }
  void zero(std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) __builtin_memset(row(i), 0, kMaxHeadDim * sizeof(R));
  }
};
template <class R>
struct Scores {
  alignas(64) R at[kQueryBlock * kKeyBlock];
  R* row(std::int64_t i) { return at + i * kKeyBlock; }
};

template <class T>
const typename T::Stored* stored_at(const void* base, std::int64_t index) {
  return static_cast<const typename T::Stored*>(base) + index;
}
template <class T>
typename T::Stored* stored_at(void* base, std::int64_t index) {
  return static_cast<typename T::Stored*>(base) + index;
}

// One head's share of a packed array.
template <class R>
R* head_of(void* base, const AttentionJob& job, std::int64_t head) {
  return static_cast<R*>(base) + head * job.keys_padded * job.dim_padded;
}

// --- packing -------------------------------------------------------------------------------------------------------

template <class T>
void pack_one(const AttentionJob& job, const void* source, std::int64_t stride, std::int64_t head, std::int64_t first,
              void* transposed, void* panels) {
  using R = typename T::Real;
  constexpr std::int64_t kP = kPanel<R>;
  alignas(64) R row[kMaxHeadDim + kP];
  for (std::int64_t key = first; key < first + kKeyBlock; ++key) {
    __builtin_memset(row, 0, sizeof(row));
    if (key < job.keys) load_row<T>(stored_at<T>(source, key * stride + head * job.dim), job.dim, row);
    if (transposed) {
      R* t = head_of<R>(transposed, job, head) + (key / kP) * job.dim * kP + key % kP;
      for (std::int64_t d = 0; d < job.dim; ++d) t[d * kP] = row[d];
    }
    if (panels) {
      R* p = head_of<R>(panels, job, head) + key * kP;
      for (std::int64_t d = 0; d < job.dim; d += kP)
        __builtin_memcpy(p + (d / kP) * job.keys_padded * kP, row + d, kP * sizeof(R));
    }
  }
}

void pack(const AttentionJob& job, std::int64_t head, std::int64_t block) {
  with_storage(job.dtype, [&]<class T>(T) {
    pack_one<T>(job, job.k, job.k_stride, head, block * kKeyBlock, job.keys_t, job.keys_p);
    pack_one<T>(job, job.v, job.v_stride, head, block * kKeyBlock, job.values_t, job.values_p);
  });
}

// --- dropout -------------------------------------------------------------------------------------------------------

constexpr std::int64_t kGroups = kKeyBlock / 4 + 1;

// Philox4x32-10 on the counters {first + i, word1, word2, word3}; four words each.
void random_groups(std::uint32_t first, std::uint32_t word1, std::uint32_t word2, std::uint32_t word3,
                   const std::uint32_t* seed, std::int64_t groups, std::uint32_t (*out)[4]) {
  std::uint32_t c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
  for (std::int64_t i = 0; i < groups; ++i) {
    c0[i] = first + static_cast<std::uint32_t>(i);
    c1[i] = word1;
    c2[i] = word2;
    c3[i] = word3;
  }
  std::uint32_t k0 = seed[0], k1 = seed[1];
  for (int round = 0; round < 10; ++round) {
    for (std::int64_t i = 0; i < groups; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[i], p1 = std::uint64_t{0xCD9E8D57u} * c2[i];
      const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<std::uint32_t>(p1);
      c3[i] = static_cast<std::uint32_t>(p0);
      c0[i] = n0;
      c2[i] = n2;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (std::int64_t i = 0; i < groups; ++i) {
    out[i][0] = c0[i];
    out[i][1] = c1[i];
    out[i][2] = c2[i];
    out[i][3] = c3[i];
  }
}

// Factors of the probabilities of query t and keys [key, key + count): 0 or 1 / (1 - p).
template <class R>
void keep_factors(const AttentionJob& job, std::int64_t head, std::int64_t t, std::int64_t key, std::int64_t count,
                  R* factor) {
  const std::int64_t relative = key - job.start[t];
  const std::uint64_t token = static_cast<std::uint64_t>(job.token_keys[t]);
  std::uint32_t bits[kGroups][4];
  const std::int64_t first = relative / 4, groups = (relative + count - 1) / 4 - first + 1;
  random_groups(static_cast<std::uint32_t>(first), job.use * 65536u + static_cast<std::uint32_t>(head),
                static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(token >> 32), job.seed, groups, bits);
  const std::uint32_t* b = bits[0] + relative % 4;
  const R kept = static_cast<R>(job.keep_scale);
  for (std::int64_t i = 0; i < count; ++i) factor[i] = (b[i] >> 8) >= job.drop_below ? kept : R{0};
}

// --- forward -------------------------------------------------------------------------------------------------------

// The columns of a block that a query sees.
struct Columns {
  std::int64_t begin, end;
};
inline Columns columns_of(const AttentionJob& job, std::int64_t t, std::int64_t key, std::int64_t n) {
  const std::int64_t b = job.low[t] - key, e = job.high[t] - key;
  return {b < 0 ? 0 : b, e > n ? n : e};
}

template <class R>
void fill_outside(R* s, std::int64_t n, Columns c, R value) {
  for (std::int64_t i = 0; i < c.begin; ++i) s[i] = value;
  for (std::int64_t i = c.end; i < n; ++i) s[i] = value;
}

template <class R>
R row_max(const R* s, std::int64_t n) {
  using S = Simd<R>;
  auto m = S::load(s);
  for (std::int64_t i = S::kWidth; i < n; i += S::kWidth) {
    const auto v = S::load(s + i);
    m = v > m ? v : m;
  }
  R best = m[0];
  for (int i = 1; i < S::kWidth; ++i) best = m[i] > best ? m[i] : best;
  return best;
}

// One row of the online softmax: scores become exp(scale (s - max)); the sums so far follow a new maximum.
template <class R>
void softmax_row(R* s, std::int64_t n, R factor, R& max, R& sum, R* o, std::int64_t dim) {
  using S = Simd<R>;
  const R best = row_max(s, n);
  if (best > max) {
    const R shrink = max == -static_cast<R>(INFINITY) ? R{0} : static_cast<R>(std::exp2((max - best) * factor));
    sum *= shrink;
    for (std::int64_t d = 0; d < dim; d += S::kWidth) S::store(o + d, S::load(o + d) * shrink);
    max = best;
  }
  typename S::V total{};
  const R offset = max * factor;
  for (std::int64_t i = 0; i < n; i += S::kWidth) {
    const auto p = exp2_vector(S::load(s + i) * factor - offset);
    total += p;
    S::store(s + i, p);
  }
  sum += horizontal_sum<R>(total);
}

template <class T>
void load_block(const void* source, std::int64_t stride, std::int64_t head, std::int64_t dim, std::int64_t first,
                std::int64_t rows, std::int64_t padded, Rows<typename T::Real>& to) {
  to.zero(0, padded);
  for (std::int64_t r = 0; r < rows; ++r)
    load_row<T>(stored_at<T>(source, (first + r) * stride + head * dim), dim, to.row(r));
}

template <class R>
struct BlockShape {
  BlockShape(const AttentionJob& job, std::int64_t block)
      : first(block * kQueryBlock),
        rows(job.queries - first < kQueryBlock ? job.queries - first : kQueryBlock),
        rows_padded(round_up(rows, kRowsPerTile)),
        vectors(round_up(job.dim, Simd<R>::kWidth) / Simd<R>::kWidth),
        key_begin(job.block_low[block] / kPanel<R> * kPanel<R>),
        key_end(round_up(job.block_high[block], kPanel<R>)) {}
  std::int64_t first, rows, rows_padded, vectors, key_begin, key_end;
  std::int64_t keys_at(std::int64_t key) const { return key_end - key < kKeyBlock ? key_end - key : kKeyBlock; }
};

template <class R>
struct ForwardState {
  Rows<R> q, o;
  Scores<R> s;
  R max[kQueryBlock], sum[kQueryBlock];
};

template <class T>
void forward_keys(const AttentionJob& job, const BlockShape<typename T::Real>& b, std::int64_t head, std::int64_t key,
                  ForwardState<typename T::Real>& f) {
  using R = typename T::Real;
  constexpr std::int64_t kP = kPanel<R>, kW = Simd<R>::kWidth;
  const std::int64_t n = b.keys_at(key), kv = head / (job.heads / job.kv_heads);
  block_product<R>(b.rows_padded, n / kW, job.dim, f.q.at, Rows<R>::kStride, 1,
                   head_of<R>(job.keys_t, job, kv) + key * job.dim, job.dim * kP, kP, f.s.at, kKeyBlock, false);
  for (std::int64_t r = 0; r < b.rows_padded; ++r) {
    R* s = f.s.row(r);
    const Columns c = r < b.rows ? columns_of(job, b.first + r, key, n) : Columns{0, 0};
    if (c.begin >= c.end) {
      __builtin_memset(s, 0, static_cast<std::size_t>(n) * sizeof(R));
      continue;
    }
    fill_outside(s, n, c, -static_cast<R>(INFINITY));
    softmax_row<R>(s, n, static_cast<R>(job.scale) * kLog2e<R>, f.max[r], f.sum[r], f.o.row(r), b.vectors * kW);
    if (job.drop_below) {
      R factor[kKeyBlock];
      keep_factors(job, head, b.first + r, key + c.begin, c.end - c.begin, factor);
      for (std::int64_t i = c.begin; i < c.end; ++i) s[i] *= factor[i - c.begin];
    }
  }
  block_product<R>(b.rows_padded, b.vectors, n, f.s.at, kKeyBlock, 1, head_of<R>(job.values_p, job, kv) + key * kP,
                   job.keys_padded * kP, kP, f.o.at, Rows<R>::kStride, true);
}

template <class T>
void forward_block(const AttentionJob& job, std::int64_t head, std::int64_t block) {
  using R = typename T::Real;
  const BlockShape<R> b(job, block);
  ForwardState<R> f;
  load_block<T>(job.q, job.q_stride, head, job.dim, b.first, b.rows, b.rows_padded, f.q);
  f.o.zero(0, b.rows_padded);
  for (std::int64_t r = 0; r < b.rows; ++r) {
    f.max[r] = -static_cast<R>(INFINITY);
    f.sum[r] = 0;
  }
  for (std::int64_t key = b.key_begin; key < b.key_end; key += kKeyBlock) forward_keys<T>(job, b, head, key, f);
  for (std::int64_t r = 0; r < b.rows; ++r) {
    R* o = f.o.row(r);
    const bool empty = job.low[b.first + r] >= job.high[b.first + r];
    const R inverse = empty ? R{0} : 1 / f.sum[r];
    for (std::int64_t d = 0; d < job.dim; ++d) o[d] *= inverse;
    store_row<T>(o, job.dim, stored_at<T>(job.out, (b.first + r) * job.o_stride + head * job.dim));
    static_cast<R*>(job.lse)[head * job.queries + b.first + r] =
        empty ? -static_cast<R>(INFINITY) : f.max[r] * static_cast<R>(job.scale) + std::log(f.sum[r]);
  }
}

void forward(const AttentionJob& job, std::int64_t head, std::int64_t block) {
  with_storage(job.dtype, [&]<class T>(T) { forward_block<T>(job, head, block); });
}

// --- backward ------------------------------------------------------------------------------------------------------

template <class R>
struct BackwardState {
  Rows<R> q, d_out, dq;
  Scores<R> p, ds;
  R lse2[kQueryBlock], delta[kQueryBlock];
};

// From scores and dP = dO Vᵀ: p becomes the probabilities (after dropout), ds the scores' gradient.
template <class R>
void backward_row(const AttentionJob& job, std::int64_t head, std::int64_t t, std::int64_t key, std::int64_t n,
                  Columns c, R lse2, R delta, R* p, R* ds) {
  using S = Simd<R>;
  const R factor = static_cast<R>(job.scale) * kLog2e<R>, scale = static_cast<R>(job.scale);
  const std::int64_t from = c.begin / S::kWidth * S::kWidth;
  if (job.drop_below) {
    R keep[kKeyBlock] = {};
    keep_factors(job, head, t, key + c.begin, c.end - c.begin, keep + c.begin);
    for (std::int64_t i = from; i < c.end; i += S::kWidth) {
      const auto k = S::load(keep + i), v = exp2_vector(S::load(p + i) * factor - lse2);
      S::store(p + i, v * k);
      S::store(ds + i, v * (S::load(ds + i) * k - delta) * scale);
    }
  } else {
    for (std::int64_t i = from; i < c.end; i += S::kWidth) {
      const auto v = exp2_vector(S::load(p + i) * factor - lse2);
      S::store(p + i, v);
      S::store(ds + i, v * (S::load(ds + i) - delta) * scale);
    }
  }
  fill_outside(p, n, c, R{0});
  fill_outside(ds, n, c, R{0});
}

template <class T>
void backward_keys(const AttentionJob& job, const BlockShape<typename T::Real>& b, std::int64_t head,
                   std::int64_t chunk, std::int64_t key, BackwardState<typename T::Real>& w) {
  using R = typename T::Real;
  constexpr std::int64_t kP = kPanel<R>, kW = Simd<R>::kWidth, kLd = Rows<R>::kStride;
  const std::int64_t n = b.keys_at(key), kv = head / (job.heads / job.kv_heads), task = head * job.chunks + chunk;
  const std::int64_t at_key = key * job.dim, panel = job.dim * kP;
  block_product<R>(b.rows_padded, n / kW, job.dim, w.q.at, kLd, 1, head_of<R>(job.keys_t, job, kv) + at_key, panel, kP,
                   w.p.at, kKeyBlock, false);
  block_product<R>(b.rows_padded, n / kW, job.dim, w.d_out.at, kLd, 1, head_of<R>(job.values_t, job, kv) + at_key,
                   panel, kP, w.ds.at, kKeyBlock, false);
  for (std::int64_t r = 0; r < b.rows_padded; ++r) {
    const Columns c = r < b.rows ? columns_of(job, b.first + r, key, n) : Columns{0, 0};
    if (c.begin < c.end) {
      backward_row<R>(job, head, b.first + r, key, n, c, w.lse2[r], w.delta[r], w.p.row(r), w.ds.row(r));
    } else {
      fill_outside(w.p.row(r), n, {n, n}, R{0});
      fill_outside(w.ds.row(r), n, {n, n}, R{0});
    }
  }
  R* dv = head_of<R>(job.dv_part, job, task) + key * job.dim_padded;
  R* dk = head_of<R>(job.dk_part, job, task) + key * job.dim_padded;
  block_product<R>(n, b.vectors, b.rows, w.p.at, 1, kKeyBlock, w.d_out.at, kP, kLd, dv, job.dim_padded, true);
  block_product<R>(n, b.vectors, b.rows, w.ds.at, 1, kKeyBlock, w.q.at, kP, kLd, dk, job.dim_padded, true);
  block_product<R>(b.rows_padded, b.vectors, n, w.ds.at, kKeyBlock, 1, head_of<R>(job.keys_p, job, kv) + key * kP,
                   job.keys_padded * kP, kP, w.dq.at, kLd, true);
}

template <class T>
void backward_block(const AttentionJob& job, std::int64_t head, std::int64_t chunk, std::int64_t block,
                    BackwardState<typename T::Real>& w) {
  using R = typename T::Real;
  const BlockShape<R> b(job, block);
  load_block<T>(job.o, job.o_stride, head, job.dim, b.first, b.rows, b.rows_padded, w.dq);
  load_block<T>(job.d_out, job.o_stride, head, job.dim, b.first, b.rows, b.rows_padded, w.d_out);
  load_block<T>(job.q, job.q_stride, head, job.dim, b.first, b.rows, b.rows_padded, w.q);
  for (std::int64_t r = 0; r < b.rows; ++r) {
    using S = Simd<R>;
    typename S::V sum{};
    for (std::int64_t d = 0; d < b.vectors * S::kWidth; d += S::kWidth)
      sum += S::load(w.dq.row(r) + d) * S::load(w.d_out.row(r) + d);
    w.delta[r] = horizontal_sum<R>(sum);
    w.lse2[r] = static_cast<const R*>(job.lse)[head * job.queries + b.first + r] * kLog2e<R>;
  }
  w.dq.zero(0, b.rows_padded);
  for (std::int64_t key = b.key_begin; key < b.key_end; key += kKeyBlock) backward_keys<T>(job, b, head, chunk, key, w);
  for (std::int64_t r = 0; r < b.rows; ++r)
    store_row<T>(w.dq.row(r), job.dim, stored_at<T>(job.dq, (b.first + r) * job.q_stride + head * job.dim));
}

void backward(const AttentionJob& job, std::int64_t head, std::int64_t chunk) {
  with_storage(job.dtype, [&]<class T>(T) {
    using R = typename T::Real;
    const std::int64_t task = head * job.chunks + chunk;
    const std::size_t bytes = static_cast<std::size_t>(job.keys_padded * job.dim_padded) * sizeof(R);
    __builtin_memset(head_of<R>(job.dk_part, job, task), 0, bytes);
    __builtin_memset(head_of<R>(job.dv_part, job, task), 0, bytes);
    BackwardState<R> w;
    for (std::int64_t block = chunk; block * kQueryBlock < job.queries; block += job.chunks)
      backward_block<T>(job, head, chunk, block, w);
  });
}

template <class T>
void reduce_rows(const AttentionJob& job, void* part, std::int64_t kv, std::int64_t key, void* to,
                 std::int64_t stride) {
  using R = typename T::Real;
  const std::int64_t shares = job.heads / job.kv_heads * job.chunks;
  R sum[kMaxHeadDim];
  const R* first = head_of<R>(part, job, kv * shares) + key * job.dim_padded;
  for (std::int64_t d = 0; d < job.dim; ++d) sum[d] = first[d];
  for (std::int64_t s = 1; s < shares; ++s) {
    const R* share = first + s * job.keys_padded * job.dim_padded;
    for (std::int64_t d = 0; d < job.dim; ++d) sum[d] += share[d];
  }
  store_row<T>(sum, job.dim, stored_at<T>(to, key * stride + kv * job.dim));
}

void reduce(const AttentionJob& job, std::int64_t kv, std::int64_t block) {
  with_storage(job.dtype, [&]<class T>(T) {
    for (std::int64_t key = block * kKeyBlock; key < (block + 1) * kKeyBlock && key < job.keys; ++key) {
      reduce_rows<T>(job, job.dk_part, kv, key, job.dk, job.k_stride);
      reduce_rows<T>(job, job.dv_part, kv, key, job.dv, job.v_stride);
    }
  });
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels kKernels{pack, forward, backward, reduce};
  return kKernels;
}

}  // namespace convoy::cpu::CONVOY_ISA
