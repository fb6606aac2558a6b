#include "cuda/matmul.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <vector>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/log.h"
#include "cuda/cuda_check.h"
#include "cuda/fill.h"
#include "cuda/product.h"

namespace convoy::cuda {
namespace {

constexpr int kProposals = 24;
constexpr float kNever = 1e30f;  // milliseconds of an algorithm that does not run

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      throw internal_error("a matrix product of a type that cuBLASLt does not get");
  }
}

template <typename Value>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check_cublas(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)), "a product's description");
}

struct DeviceBuffer {
  explicit DeviceBuffer(std::size_t bytes) { check_cuda(cudaMalloc(&data, bytes), "memory to time products in"); }
  ~DeviceBuffer() { cudaFree(data); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data = nullptr;
};

// Held while one process chooses; the others wait and read what it wrote.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& file) {
    if (file.empty()) return;
    descriptor_ = ::open((file.string() + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (descriptor_ >= 0) ::flock(descriptor_, LOCK_EX);
  }
  ~FileLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace

std::string MatmulSpec::key() const {
  return fmt::format("{}{}{}_{}_{}x{}x{}{}{}", name_of(in), in_b ? fmt::format("_{}", name_of(*in_b)) : "",
                     transpose_a ? "t" : "n", transpose_b ? "t" : "n", m, n, k, accumulate ? "_sum" : "",
                     bias ? "_bias" : "") +
         fmt::format("_{}{}", name_of(out), rough_sums ? "_rough" : "") +
         (a_row > 0 || c_row > 0 ? fmt::format("_rows_{}_{}", a_stride(), c_stride()) : "");
}

// cuBLASLt counts columns first: a row-major matrix is the transpose of a column-major one, so Cᵀ = op(B)ᵀ op(A)ᵀ is
// asked for, with B as the first operand.
struct Matmul::Impl {
  Impl(Context& of, const MatmulSpec& s) : context(of), spec(s) {
    const bool f32 = s.in == DType::kF32;
    check_cublas(
        cublasLtMatmulDescCreate(&operation, f32 && of.options.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F),
        "a product's description");
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (s.bias) {
      set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(s.bias_type()));
    }
    if (s.rough_sums) set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    const auto layout = [](cublasLtMatrixLayout_t* made, DType dtype, std::int64_t rows, std::int64_t columns,
                           std::int64_t stride) {
      check_cublas(cublasLtMatrixLayoutCreate(made, cuda_type(dtype), static_cast<std::uint64_t>(rows),
                                              static_cast<std::uint64_t>(columns), stride),
                   "a matrix's description");
    };
    const std::int64_t b_row = s.transpose_b ? s.k : s.n;
    layout(&first, s.b(), b_row, s.transpose_b ? s.n : s.k, b_row);
    layout(&second, s.in, s.transpose_a ? s.m : s.k, s.transpose_a ? s.k : s.m, s.a_stride());
    layout(&result, s.out, s.n, s.m, s.c_stride());
    algorithm = of.matmul_choices->find(
        s.key() + (of.options.tf32 ? "_tf32" : "") + (odd_rows() ? "_odd" : "") + (of.options.search ? "" : "_first"),
        [this] { return choose(); });
  }
  ~Impl() {
    cublasLtMatrixLayoutDestroy(first);
    cublasLtMatrixLayoutDestroy(second);
    cublasLtMatrixLayoutDestroy(result);
    cublasLtMatmulDescDestroy(operation);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Whether some matrix has rows that are no multiple of 16 bytes: then neither are the addresses of parts of it.
  bool odd_rows() const {
    const std::size_t in = size_of(spec.in), out = size_of(spec.out);  // B's elements are as large as A's
    const auto odd = [](std::int64_t columns, std::size_t size) {
      return static_cast<std::size_t>(columns) * size % 16 != 0;
    };
    return odd(spec.a_stride(), in) || odd(spec.transpose_b ? spec.k : spec.n, in) || odd(spec.c_stride(), out);
  }
  bool plain_does_it() const { return spec.in == DType::kBF16 || spec.in == DType::kF16; }
  // Convoy's own product stands among the choices as an algorithm without content.
  static bool is_plain(const cublasLtMatmulAlgo_t& algo) {
    return std::all_of(std::begin(algo.data), std::end(algo.data), [](std::uint64_t word) { return word == 0; });
  }

  // Empty where cuBLASLt has none.
  std::vector<cublasLtMatmulHeuristicResult_t> proposals() const {
    cublasLtMatmulPreference_t preference = nullptr;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference), "a product's preferences");
    const std::size_t workspace = kMatmulWorkspace;
    // Without the in-place reduction, whose sums come in any order.
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof(workspace));
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                         sizeof(reductions));
    if (odd_rows()) {
      const auto align = [&](cublasLtMatmulPreferenceAttributes_t which, DType dtype) {
        const auto bytes = static_cast<std::uint32_t>(size_of(dtype));
        cublasLtMatmulPreferenceSetAttribute(preference, which, &bytes, sizeof(bytes));
      };
      align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, spec.in);
      align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, spec.in);
      align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, spec.out);
      align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, spec.out);
    }
    std::vector<cublasLtMatmulHeuristicResult_t> found(kProposals);
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(context.blas, operation, first, second, result, result,
                                                                 preference, kProposals, found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(std::max(count, 0)) : 0);
    return found;
  }

  Error no_algorithm() const {
    return internal_error(fmt::format("cuBLASLt has no algorithm for the product {}", spec.key()));
  }

  cublasLtMatmulAlgo_t choose() const {
    std::vector<cublasLtMatmulHeuristicResult_t> found = proposals();
    if (plain_does_it() && (found.empty() || odd_rows())) found.emplace_back();  // it may win where rows are odd
    if (found.empty()) throw no_algorithm();
    if (!context.options.search || found.size() == 1) return found[0].algo;
    try {
      return fastest(found);
    } catch (const Error& e) {
      if (e.status() != Status::kDoesNotFit) throw;
      return found[0].algo;  // no room to try them out
    }
  }

  cublasLtMatmulAlgo_t fastest(const std::vector<cublasLtMatmulHeuristicResult_t>& found) const {
    const auto bytes = [](std::int64_t count, DType dtype) { return static_cast<std::size_t>(count) * size_of(dtype); };
    const std::int64_t a_count = spec.a_stride() * (spec.transpose_a ? spec.k : spec.m);
    const std::int64_t c_count = spec.c_stride() * spec.m;
    const DeviceBuffer a(bytes(a_count, spec.in)), b(bytes(spec.k * spec.n, spec.in)), c(bytes(c_count, spec.out)),
        bias(bytes(spec.n, spec.bias_type())), workspace(kMatmulWorkspace);
    // Random values: zeros take less power and time.
    fill_random(a.data, spec.in, a_count, 1, context.stream);
    fill_random(b.data, spec.b(), spec.k * spec.n, 2, context.stream);
    fill_random(c.data, spec.out, c_count, 3, context.stream);
    fill_random(bias.data, spec.bias_type(), spec.n, 4, context.stream);
    cudaEvent_t begin = nullptr, end = nullptr;
    check_cuda(cudaEventCreate(&begin), "an event");
    check_cuda(cudaEventCreate(&end), "an event");
    const auto once = [&](const cublasLtMatmulAlgo_t& algo) {
      return launch(algo, a.data, b.data, bias.data, c.data, c.data, workspace.data) == CUBLAS_STATUS_SUCCESS;
    };
    std::vector<float> best(found.size(), kNever);
    for (int round = 0; round < 4; ++round) {  // rounds over all, so that clocks and heat are shared fairly
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (round > 0 && best[i] == kNever) continue;
        if (round > 0 && best[i] > 1.15f * *std::min_element(best.begin(), best.end())) continue;
        if (round == 0 && !once(found[i].algo)) continue;
        cudaEventRecord(begin, context.stream);
        for (int repeat = 0; repeat < 3; ++repeat) once(found[i].algo);
        cudaEventRecord(end, context.stream);
        check_cuda(cudaEventSynchronize(end), "timing products");
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, begin, end);
        best[i] = std::min(best[i], milliseconds);
      }
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    const auto winner = static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin());
    if (best[winner] == kNever) {
      if (!plain_does_it()) throw no_algorithm();
      return {};
    }
    log_debug("product {}: algorithm {} of {}, {:.0f} TFLOP/s (first proposal {:.0f})", spec.key(), winner + 1,
              found.size(), rate(best[winner]), rate(best[0]));
    return found[winner].algo;
  }
  double rate(float milliseconds) const {
    return 6.0 * static_cast<double>(spec.m) * static_cast<double>(spec.n) * static_cast<double>(spec.k) /
           (static_cast<double>(milliseconds) * 1e9);
  }

  cublasStatus_t launch(const cublasLtMatmulAlgo_t& algo, const void* a, const void* b, const void* bias,
                        const void* sum, void* c, void* workspace) const {
    if (is_plain(algo)) {
      plain_product(context.stream, spec, a, b, bias, sum, c);
      return CUBLAS_STATUS_SUCCESS;
    }
    const float alpha = 1, beta = spec.accumulate ? 1 : 0;
    if (spec.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    return cublasLtMatmul(context.blas, operation, &alpha, b, first, a, second, &beta, spec.accumulate ? sum : c,
                          result, c, result, &algo, workspace, kMatmulWorkspace, context.stream);
  }

  Context& context;
  MatmulSpec spec;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

Matmul::Matmul(Context& context, const MatmulSpec& spec) : impl_(std::make_unique<Impl>(context, spec)) {}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;

void Matmul::run(const void* a, const void* b, const void* bias, const void* sum, void* c, void* workspace) const {
  check_cublas(impl_->launch(impl_->algorithm, a, b, bias, sum, c, workspace), "a matrix product");
}

void Matmul::run_scaled(const void* a, const void* b, const float* a_scale, const float* b_scale, const void* bias,
                        const void* sum, void* c, void* workspace) const {
  // cuBLASLt's first factor is B.
  set(impl_->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b_scale);
  set(impl_->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_scale);
  run(a, b, bias, sum, c, workspace);
}

MatmulChoices::MatmulChoices(std::filesystem::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(file_.parent_path(), failed);
  if (failed) file_.clear();  // no home to keep it in: chosen anew each time
  read();
}

// One line a choice: the key and the algorithm's words in hexadecimal.
void MatmulChoices::read() {
  std::ifstream in(file_);
  std::string line;
  while (std::getline(in, line)) {
    cublasLtMatmulAlgo_t algorithm{};
    constexpr std::size_t kWords = sizeof(algorithm.data) / sizeof(algorithm.data[0]);
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.size() != space + 1 + kWords * 16)
      continue;  // cut off or of another version
    bool whole = true;
    for (std::size_t w = 0; w < kWords && whole; ++w) {
      const std::string word = line.substr(space + 1 + w * 16, 16);
      whole = word.find_first_not_of("0123456789abcdef") == std::string::npos;
      if (whole) algorithm.data[w] = std::stoull(word, nullptr, 16);
    }
    if (whole) known_.insert_or_assign(line.substr(0, space), algorithm);
  }
}

void MatmulChoices::write() const {
  const std::string partial = fmt::format("{}.{}", file_.string(), ::getpid());
  {
    std::ofstream out(partial);
    for (const auto& [key, algorithm] : known_) {
      out << key << ' ';
      for (const std::uint64_t word : algorithm.data) out << fmt::format("{:016x}", word);
      out << '\n';
    }
  }
  std::error_code failed;  // a cache that cannot be kept is not an error
  std::filesystem::rename(partial, file_, failed);
}

cublasLtMatmulAlgo_t MatmulChoices::find(const std::string& key, const std::function<cublasLtMatmulAlgo_t()>& choose) {
  if (const auto place = known_.find(key); place != known_.end()) return place->second;
  const FileLock lock(file_);
  if (!file_.empty()) read();
  if (const auto place = known_.find(key); place != known_.end()) return place->second;
  const cublasLtMatmulAlgo_t made = choose();
  known_.emplace(key, made);
  if (!file_.empty()) write();
  return made;
}

std::filesystem::path matmul_choices_file(const cudaDeviceProp& card) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return {};
  return folder / fmt::format("cublaslt-{}-{}.txt", cublasLtGetVersion(), file_word(card.name));
}

}  // namespace convoy::cuda
