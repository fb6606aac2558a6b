#include "cuda/flash_attention.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"
#include "cpu/attention.h"

namespace convoy::cuda {
namespace {

struct Case {
  FlashShape shape;
  std::vector<std::int32_t> documents;  // lengths; the last is cut or stretched to the number of tokens
  std::string str() const {
    const FlashShape& s = shape;
    std::string docs;
    for (const std::int32_t n : documents) docs += (docs.empty() ? "" : ",") + std::to_string(n);
    if (docs.size() > 40) docs = docs.substr(0, 40) + "...";
    return std::string(name_of(s.dtype)) + " tokens " + std::to_string(s.tokens) + " documents " + docs + " heads " +
           std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " D " + std::to_string(s.head_dim) +
           (s.causal ? " causal" : " both ways") + " window " + std::to_string(s.window) + " dropout " +
           std::to_string(s.dropout) + " scale " + std::to_string(s.scale);
  }
};

// --- memory --------------------------------------------------------------------------------------------------------

void expect_cuda(cudaError_t status) {
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
}

class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t size) : size_(size) {
    expect_cuda(cudaMalloc(&data_, std::max<std::size_t>(size, 1)));
    poison();
  }
  template <class E>
  explicit DeviceBytes(const std::vector<E>& host) : DeviceBytes(host.size() * sizeof(E)) {
    expect_cuda(cudaMemcpy(data_, host.data(), size_, cudaMemcpyHostToDevice));
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  // All bits set are a NaN of every type.
  void poison() { expect_cuda(cudaMemset(data_, 0xff, size_)); }
  std::vector<unsigned char> host() const {
    std::vector<unsigned char> out(size_);
    expect_cuda(cudaMemcpy(out.data(), data_, size_, cudaMemcpyDeviceToHost));
    return out;
  }
  template <class E = void>
  E* as() const {
    return static_cast<E*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

std::vector<double> values_of(const std::vector<unsigned char>& bytes, DType dtype) {
  std::vector<double> out(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const unsigned char* at = bytes.data() + i * size_of(dtype);
    if (dtype == DType::kF32) {
      float v;
      std::memcpy(&v, at, sizeof v);
      out[i] = v;
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, at, sizeof bits);
      out[i] = dtype == DType::kBF16 ? to_float(BF16{bits}) : to_float(F16{bits});
    }
  }
  return out;
}

std::vector<unsigned char> bytes_of(const std::vector<float>& values, DType dtype) {
  std::vector<unsigned char> out(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = dtype == DType::kBF16 ? to_bf16(values[i]).bits : to_f16(values[i]).bits;
    if (dtype == DType::kF32)
      std::memcpy(out.data() + i * 4, &values[i], 4);
    else
      std::memcpy(out.data() + i * 2, &bits, 2);
  }
  return out;
}

// --- inputs, outputs and the reference -----------------------------------------------------------------------------

struct Inputs {
  std::vector<unsigned char> qkv, d_o;
  std::vector<std::int32_t> seq_start;
  std::vector<std::int64_t> token_keys;
};

Inputs make_inputs(const Case& c, std::uint64_t seed) {
  const FlashShape& s = c.shape;
  RandomStream random(seed, 1);
  const auto fill = [&](std::int64_t n) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& e : x) e = random.normal();
    return bytes_of(x, s.dtype);
  };
  Inputs in;
  in.qkv = fill(s.tokens * (s.heads + 2 * s.kv_heads) * s.head_dim);
  in.d_o = fill(s.tokens * s.heads * s.head_dim);
  const std::size_t tokens = static_cast<std::size_t>(s.tokens);
  std::int32_t start = 0;
  for (const std::int32_t n : c.documents) {
    in.seq_start.insert(in.seq_start.end(), static_cast<std::size_t>(n), start);
    start += n;
  }
  if (in.seq_start.size() < tokens) in.seq_start.resize(tokens, c.documents.empty() ? 0 : in.seq_start.back());
  in.seq_start.resize(tokens);
  for (std::size_t t = 0; t < tokens; ++t) in.token_keys.push_back(static_cast<std::int64_t>(random.bits64()));
  return in;
}

struct Outputs {
  std::vector<unsigned char> o, lse, dqkv;
  bool operator==(const Outputs&) const = default;
};

// `shift` elements move every tensor off its natural alignment.
Outputs run_gpu(const Case& c, const Inputs& in, std::size_t shift = 0) {
  const FlashShape& s = c.shape;
  const std::size_t skip = shift * size_of(s.dtype);
  const auto shifted = [&](const std::vector<unsigned char>& x) {
    std::vector<unsigned char> y(skip);
    y.insert(y.end(), x.begin(), x.end());
    return y;
  };
  const DeviceBytes qkv(shifted(in.qkv)), d_o(shifted(in.d_o)), starts(in.seq_start), keys(in.token_keys);
  const DeviceBytes o(skip + in.d_o.size()), dqkv(skip + in.qkv.size());
  const DeviceBytes lse(static_cast<std::size_t>(s.heads * s.tokens) * sizeof(float));
  const DeviceBytes forward(flash_workspace(s, false)), backward(flash_workspace(s, true));
  flash_forward(nullptr, s, qkv.as<unsigned char>() + skip, starts.as<std::int32_t>(), keys.as<std::int64_t>(),
                o.as<unsigned char>() + skip, lse.as<float>(), forward.as());
  flash_backward(nullptr, s, d_o.as<unsigned char>() + skip, qkv.as<unsigned char>() + skip,
                 o.as<unsigned char>() + skip, lse.as<float>(), starts.as<std::int32_t>(), keys.as<std::int64_t>(),
                 dqkv.as<unsigned char>() + skip, backward.as());
  expect_cuda(cudaDeviceSynchronize());
  Outputs out{o.host(), lse.host(), dqkv.host()};
  out.o.erase(out.o.begin(), out.o.begin() + static_cast<std::ptrdiff_t>(skip));
  out.dqkv.erase(out.dqkv.begin(), out.dqkv.begin() + static_cast<std::ptrdiff_t>(skip));
  return out;
}

struct Reference {
  std::vector<double> o, lse, dqkv;
};

struct AlignedBytes {
  explicit AlignedBytes(std::size_t n) : data(::operator new(n + 64, std::align_val_t{64})) {}
  ~AlignedBytes() { ::operator delete(data, std::align_val_t{64}); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  void* data;
};

// The CPU's attention in f64 on the same (rounded) inputs.
Reference run_cpu(const Case& c, const Inputs& in) {
  const FlashShape& s = c.shape;
  const cpu::Attention attention({.dtype = DType::kF64,
                                  .tokens = s.tokens,
                                  .heads = s.heads,
                                  .kv_heads = s.kv_heads,
                                  .head_dim = s.head_dim,
                                  .mask = s.causal ? cpu::AttentionMask::kCausal : cpu::AttentionMask::kDocument,
                                  .window = s.window,
                                  .scale = s.scale,
                                  .dropout = s.dropout,
                                  .use = s.use});
  const std::vector<double> qkv = values_of(in.qkv, s.dtype), d_o = values_of(in.d_o, s.dtype);
  Reference r{std::vector<double>(d_o.size()), std::vector<double>(static_cast<std::size_t>(s.heads * s.tokens)),
              std::vector<double>(qkv.size())};
  cpu::AttentionInput input = attention.packed(qkv.data());
  input.seq_start = in.seq_start.data();
  input.token_keys = in.token_keys.data();
  input.seed = s.seed;
  const AlignedBytes forward(attention.forward_workspace_bytes()), backward(attention.backward_workspace_bytes());
  attention.forward(input, r.o.data(), r.lse.data(), forward.data);
  double* dq = r.dqkv.data();
  attention.backward(input, r.o.data(), r.lse.data(), d_o.data(), dq, dq + s.heads * s.head_dim,
                     dq + (s.heads + s.kv_heads) * s.head_dim, backward.data);
  return r;
}

// --- comparison ----------------------------------------------------------------------------------------------------

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

// Relative Frobenius error; `floor` stands for the size of the terms where the sum itself vanishes (the gradient of a
// softmax over one key). NaN in `got` stays NaN.
double error_of(const std::vector<double>& got, const std::vector<double>& want, double floor = 0) {
  double sum = 0;
  for (std::size_t i = 0; i < want.size(); ++i) sum += (got[i] - want[i]) * (got[i] - want[i]);
  return std::sqrt(sum) / std::max({norm(want), floor, 1e-30});
}

// Columns [first, first + count) of rows of `row` elements.
std::vector<double> columns(const std::vector<double>& x, std::int64_t row, std::int64_t first, std::int64_t count) {
  std::vector<double> out;
  for (std::size_t at = 0; at < x.size(); at += static_cast<std::size_t>(row))
    out.insert(out.end(), x.begin() + static_cast<std::ptrdiff_t>(at) + first,
               x.begin() + static_cast<std::ptrdiff_t>(at) + first + count);
  return out;
}

void compare(const Case& c, const Outputs& got, const Reference& want) {
  const FlashShape& s = c.shape;
  const double tolerance = s.dtype == DType::kF32 ? 2e-6 : s.dtype == DType::kF16 ? 2e-3 : 1.5e-2;
  EXPECT_LT(error_of(values_of(got.o, s.dtype), want.o), tolerance) << "o";
  const std::vector<double> lse = values_of(got.lse, DType::kF32);
  double worst = 0;
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const double difference = std::abs(lse[i] - want.lse[i]);
    worst = difference <= worst ? worst : difference;  // NaN is the worst
  }
  EXPECT_LT(worst, 2e-5) << "lse";
  const std::int64_t q = s.heads * s.head_dim, k = s.kv_heads * s.head_dim, row = q + 2 * k;
  const std::vector<double> dqkv = values_of(got.dqkv, s.dtype);
  const double floor = norm(columns(want.dqkv, row, q + k, k));
  EXPECT_LT(error_of(columns(dqkv, row, 0, q), columns(want.dqkv, row, 0, q), floor), tolerance) << "dq";
  EXPECT_LT(error_of(columns(dqkv, row, q, k), columns(want.dqkv, row, q, k), floor), tolerance) << "dk";
  EXPECT_LT(error_of(columns(dqkv, row, q + k, k), columns(want.dqkv, row, q + k, k)), tolerance) << "dv";
}

void check_case(const Case& c, std::uint64_t seed) {
  SCOPED_TRACE(c.str());
  const Inputs in = make_inputs(c, seed);
  compare(c, run_gpu(c, in), run_cpu(c, in));
}

// --- cases ---------------------------------------------------------------------------------------------------------

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

FlashShape shape_of(DType dtype, std::int64_t tokens, int heads, int kv_heads, int head_dim) {
  FlashShape s;
  s.dtype = dtype;
  s.tokens = tokens;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = head_dim;
  s.seed = 0x123456789abcdefULL;
  s.use = 3;
  return s;
}

// Odd lengths that together pass `tokens`.
std::vector<std::int32_t> odd_documents(RandomStream& random, std::int64_t tokens) {
  std::vector<std::int32_t> out;
  for (std::int64_t sum = 0; sum < tokens; sum += out.back())
    out.push_back(static_cast<std::int32_t>(2 * random.below(1 + static_cast<std::uint64_t>(tokens) / 5) + 1));
  return out;
}

class FlashAttention : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "no CUDA device on this machine";
    }
  }
};

TEST_F(FlashAttention, EveryTypeAndHeadSize) {
  for (const DType dtype : kTypes)
    for (const int dim : {2, 16, 64, 80, 90, 96, 128, 192, 256}) {
      check_case({shape_of(dtype, 200, 2, 1, dim), {3, 150, 47}}, 7);
      Case both{shape_of(dtype, 131, 2, 2, dim), {131}};
      both.shape.causal = false;
      check_case(both, 8);
    }
}

TEST_F(FlashAttention, TilesThatAreJustFullOrJustNot) {
  for (const DType dtype : kTypes)
    for (const std::int64_t tokens : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257})
      for (const bool causal : {true, false}) {
        Case c{shape_of(dtype, tokens, 1, 1, 64), {static_cast<std::int32_t>(tokens)}};
        c.shape.causal = causal;
        check_case(c, 9);
      }
}

TEST_F(FlashAttention, RandomCombinations) {
  RandomStream random(2024, 0);
  const auto pick = [&](const auto& list) { return list[random.below(std::size(list))]; };
  constexpr int kDims[] = {16, 64, 80, 96, 128, 192, 256}, kGroups[] = {1, 4, 7};
  constexpr std::int64_t kWindows[] = {0, 5, 100}, kTokens[] = {1, 63, 64, 65, 257, 1000};
  constexpr float kDropouts[] = {0.0f, 0.1f};
  for (int i = 0; i < 60; ++i) {
    const int group = pick(kGroups), kv = group == 1 ? 2 : 1 + static_cast<int>(random.below(2));
    Case c{shape_of(pick(kTypes), pick(kTokens), group * kv, kv, pick(kDims)), {}};
    c.shape.causal = random.below(3) != 0;
    c.shape.window = pick(kWindows);
    c.shape.dropout = pick(kDropouts);
    c.shape.use = static_cast<std::uint32_t>(random.below(500));
    const std::uint64_t kind = random.below(4);
    if (kind == 0)
      c.documents = {static_cast<std::int32_t>(c.shape.tokens)};
    else if (kind == 1)
      c.documents.assign(static_cast<std::size_t>(c.shape.tokens), 1);
    else
      c.documents = odd_documents(random, c.shape.tokens);
    check_case(c, 100 + static_cast<std::uint64_t>(i));
  }
}

TEST_F(FlashAttention, WindowsAcrossDocuments) {
  for (const DType dtype : kTypes)
    for (const bool causal : {true, false})
      for (const std::int64_t window : {1, 5, 64, 100, 1 << 20}) {
        Case c{shape_of(dtype, 400, 2, 1, 64), {1, 1, 65, 200, 2, 131}};
        c.shape.causal = causal;
        c.shape.window = window;
        check_case(c, 11);
      }
}

TEST_F(FlashAttention, DropoutHasTheBitsOfTheCpu) {
  for (const DType dtype : kTypes)
    for (const int dim : {64, 128, 192, 256})
      for (const bool causal : {true, false}) {
        Case c{shape_of(dtype, 290, 4, 2, dim), {5, 90, 2, 193}};
        c.shape.causal = causal;
        c.shape.dropout = 0.3f;
        c.shape.use = 9;
        check_case(c, 12);
      }
}

TEST_F(FlashAttention, GivenScale) {
  for (const DType dtype : kTypes) {
    Case c{shape_of(dtype, 150, 2, 1, 64), {150}};
    c.shape.scale = 0.3f;
    check_case(c, 13);
  }
}

TEST_F(FlashAttention, TensorsOffTheirAlignment) {
  for (const DType dtype : kTypes) {
    const Case c{shape_of(dtype, 150, 2, 1, 64), {150}};
    const Inputs in = make_inputs(c, 14);
    const Outputs straight = run_gpu(c, in);
    EXPECT_TRUE(run_gpu(c, in, 2) == straight) << name_of(dtype);
  }
}

TEST_F(FlashAttention, TheSameBitsOnEveryRun) {
  for (const DType dtype : kTypes)
    for (const int dim : {64, 128}) {
      Case c{shape_of(dtype, 1000, 14, 2, dim), {7, 400, 593}};
      c.shape.dropout = 0.1f;
      const Inputs in = make_inputs(c, 15);
      const Outputs once = run_gpu(c, in);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_gpu(c, in) == once) << name_of(dtype) << " " << dim;
    }
}

TEST_F(FlashAttention, LargeScoresStayFinite) {
  for (const DType dtype : kTypes) {
    Case c{shape_of(dtype, 150, 1, 1, 64), {150}};
    c.shape.scale = 40;
    const Inputs in = make_inputs(c, 16);
    const Outputs out = run_gpu(c, in);
    for (const double v : values_of(out.o, dtype)) ASSERT_TRUE(std::isfinite(v));
    for (const double v : values_of(out.dqkv, dtype)) ASSERT_TRUE(std::isfinite(v));
  }
}

TEST(FlashAttentionShape, NothingToDoAndNonsense) {
  EXPECT_EQ(flash_workspace(shape_of(DType::kBF16, 0, 2, 1, 64), true), 0u);
  EXPECT_NO_THROW(flash_forward(nullptr, shape_of(DType::kBF16, 0, 2, 1, 64), nullptr, nullptr, nullptr, nullptr,
                                nullptr, nullptr));
  EXPECT_THROW(flash_workspace(shape_of(DType::kF64, 8, 2, 1, 64), false), Error);
  EXPECT_THROW(flash_workspace(shape_of(DType::kBF16, 8, 3, 2, 64), false), Error);
  EXPECT_THROW(flash_workspace(shape_of(DType::kBF16, 8, 2, 1, 63), false), Error);
  EXPECT_THROW(flash_workspace(shape_of(DType::kBF16, 8, 2, 1, 258), false), Error);
}

}  // namespace
}  // namespace convoy::cuda
