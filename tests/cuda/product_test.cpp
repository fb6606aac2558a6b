// Products whose rows are no multiple of 16 bytes: Convoy's own kernel, and whatever Matmul chooses, against float64.
#include "cuda/product.h"

#include "cuda/cuda_test.h"
#include "support/graph_runner.h"

namespace convoy {
namespace {

using cuda::MatmulSpec;

class CudaProduct : public testing::CudaTest {
 protected:
  struct Operand {
    std::vector<double> values;  // as the dtype holds them
    std::unique_ptr<DeviceMemory> memory;
  };
  // `shift` elements lie before the matrix, so that its address is no multiple of 16 bytes either.
  Operand operand(DType dtype, std::int64_t count, std::uint64_t stream, std::int64_t shift) {
    Operand made;
    const std::vector<std::byte> bytes = testing::to_bytes(dtype, testing::random_values(count + shift, stream));
    made.values = testing::from_bytes(dtype, bytes);
    made.values.erase(made.values.begin(), made.values.begin() + shift);
    made.memory = device_->allocate(bytes.size());
    device_->copy_in(made.memory->data(), bytes);
    return made;
  }

  // Runs `product(a, b, bias, sum, c)` and compares.
  template <typename Run>
  void check_product(const MatmulSpec& s, std::int64_t shift, Run product) {
    SCOPED_TRACE(s.key());
    const Operand a = operand(s.in, s.m * s.k, 1, shift), b = operand(s.in, s.k * s.n, 2, shift),
                  bias = operand(s.in, s.n, 3, shift), c = operand(s.out, s.m * s.n, 4, shift);
    const auto at = [&](const Operand& of, DType dtype) {
      return of.memory->data() + static_cast<std::size_t>(shift) * size_of(dtype);
    };
    product(at(a, s.in), at(b, s.in), at(bias, s.in), at(c, s.out), at(c, s.out));
    std::vector<std::byte> bytes(static_cast<std::size_t>(s.m * s.n) * size_of(s.out));
    device_->copy_out(bytes, at(c, s.out));
    std::vector<double> expected;
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < s.n; ++j) {
        double sum = s.bias ? bias.values[static_cast<std::size_t>(j)] : 0;
        if (s.accumulate) sum += c.values[static_cast<std::size_t>(i * s.n + j)];
        for (std::int64_t k = 0; k < s.k; ++k) {
          sum += a.values[static_cast<std::size_t>(s.transpose_a ? k * s.m + i : i * s.k + k)] *
                 b.values[static_cast<std::size_t>(s.transpose_b ? j * s.k + k : k * s.n + j)];
        }
        expected.push_back(sum);
      }
    }
    const double tolerance = s.out == DType::kF32 ? 2e-6 : (s.out == DType::kF16 ? 1e-3 : 6e-3);
    EXPECT_LE(testing::relative_error(testing::from_bytes(s.out, bytes), expected), tolerance);
  }

  // Every form of a product in the 16-bit types, with odd rows in one place or another.
  template <typename Use>
  static void each_spec(Use use) {
    const std::int64_t shapes[][3] = {{1, 1, 1}, {33, 77, 51}, {128, 131, 64}, {129, 128, 33}, {200, 257, 320}};
    for (const auto& [m, n, k] : shapes) {
      for (const DType in : {DType::kBF16, DType::kF16}) {
        for (const DType out : {in, DType::kF32}) {
          for (int form = 0; form < 16; ++form) {
            MatmulSpec spec;
            spec.in = in;
            spec.out = out;
            spec.m = m;
            spec.n = n;
            spec.k = k;
            spec.transpose_a = (form & 1) != 0;
            spec.transpose_b = (form & 2) != 0;
            spec.accumulate = (form & 4) != 0;
            spec.bias = (form & 8) != 0;
            use(spec);
          }
        }
      }
    }
  }
};

TEST_F(CudaProduct, ThePlainOneTakesAnyAddress) {
  for (const std::int64_t shift : {0, 1}) {
    each_spec([&](const MatmulSpec& spec) {
      check_product(spec, shift, [&](const void* a, const void* b, const void* bias, const void* sum, void* c) {
        cuda::plain_product(device_->context().stream, spec, a, b, bias, sum, c);
      });
    });
  }
}

// The forms that training has: a bias with y = x Wᵀ, sums into f32 gradients or into gradients of activations.
TEST_F(CudaProduct, MatmulTakesOddRows) {
  const auto workspace = device_->allocate(cuda::kMatmulWorkspace);
  each_spec([&](const MatmulSpec& spec) {
    if (spec.bias && (spec.transpose_a || spec.accumulate || spec.out == DType::kF32)) return;
    const cuda::Matmul product(device_->context(), spec);
    check_product(spec, 0, [&](const void* a, const void* b, const void* bias, const void* sum, void* c) {
      product.run(a, b, bias, sum, c, workspace->data());
    });
  });
}

// TF32 rounds the factors to 10 bits: measurably coarser than f32, and close all the same. The product is large,
// because the search may find f32 faster for a small one; the first rows are compared.
TEST_F(CudaProduct, Tf32IsUsedWhereItIsAskedFor) {
  CudaDevice::Options options;
  options.tf32 = true;
  CudaDevice coarse(options);
  constexpr std::size_t kWidth = 2048, kDepth = 512, kCompared = 16;
  MatmulSpec spec;
  spec.m = spec.n = kWidth;
  spec.k = kDepth;
  const auto a_bytes = testing::to_bytes(DType::kF32, testing::random_values(kWidth * kDepth, 5));
  const auto b_bytes = testing::to_bytes(DType::kF32, testing::random_values(kDepth * kWidth, 6));
  const std::vector<double> a = testing::from_bytes(DType::kF32, a_bytes),
                            b = testing::from_bytes(DType::kF32, b_bytes);
  std::vector<double> expected(kCompared * kWidth, 0.0);
  for (std::size_t i = 0; i < kCompared; ++i) {
    for (std::size_t k = 0; k < kDepth; ++k) {
      for (std::size_t j = 0; j < kWidth; ++j) expected[i * kWidth + j] += a[i * kDepth + k] * b[k * kWidth + j];
    }
  }
  const auto error = [&](CudaDevice& device) {
    const cuda::Matmul product(device.context(), spec);
    const auto left = device.allocate(a_bytes.size()), right = device.allocate(b_bytes.size()),
               out = device.allocate(kWidth * kWidth * sizeof(float)),
               workspace = device.allocate(cuda::kMatmulWorkspace);
    device.copy_in(left->data(), a_bytes);
    device.copy_in(right->data(), b_bytes);
    product.run(left->data(), right->data(), nullptr, nullptr, out->data(), workspace->data());
    std::vector<std::byte> got(expected.size() * sizeof(float));
    device.copy_out(got, out->data());
    return testing::relative_error(testing::from_bytes(DType::kF32, got), expected);
  };
  EXPECT_LE(error(*device_), 2e-6);
  const double tf32 = error(coarse);
  EXPECT_GE(tf32, 2e-5);
  EXPECT_LE(tf32, 2e-3);
}

}  // namespace
}  // namespace convoy
