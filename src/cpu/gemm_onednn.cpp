#include "cpu/gemm_onednn.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

static_assert(DNNL_VERSION_MAJOR == 2, "this file is written for oneDNN's API v2 (v3 has no operation descriptors)");

namespace convoy::cpu {
namespace {

using dnnl::memory;

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// oneDNN fixes a primitive's division of labour when it is created: one thread, whatever the pool's size.
class OneThread {
 public:
  OneThread() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(saved_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  int pool() const { return saved_; }

 private:
  int saved_;
};

// Rows of `bytes` between two strides.
void copy_rows(const void* from, std::size_t from_stride, void* to, std::size_t to_stride, std::int64_t rows,
               std::size_t bytes) {
  const char* f = static_cast<const char*>(from);
  char* t = static_cast<char*>(to);
  for (std::int64_t r = 0; r < rows; ++r, f += from_stride, t += to_stride) std::memcpy(t, f, bytes);
}

// A stored matrix. oneDNN's brgemm wants rows without gaps, so a sub-matrix goes through scratch.
struct Operand {
  Operand(std::int64_t rows_in, std::int64_t cols, std::int64_t ld, DType dtype)
      : rows(rows_in),
        row_bytes(static_cast<std::size_t>(cols) * size_of(dtype)),
        stride(static_cast<std::size_t>(ld) * size_of(dtype)),
        dense(ld == cols || rows == 1) {}
  std::size_t copy_bytes() const { return dense ? 0 : align64(static_cast<std::size_t>(rows) * row_bytes); }
  std::int64_t rows;
  std::size_t row_bytes, stride;
  bool dense;
};

// The handles and arguments of one execution; each concurrent run has its own.
struct Execution {
  std::array<memory, 5> memories;
  std::array<dnnl_exec_arg_t, 5> arguments{};
};

class OneDnnTile : public TileProduct {
 public:
  OneDnnTile(const TileSpec& spec, const dnnl::matmul::primitive_desc& pd, int threads)
      : spec_(spec),
        pd_(pd),
        primitive_(pd),
        stream_(engine()),
        a_(spec.transpose_a ? spec.k : spec.m, spec.transpose_a ? spec.m : spec.k, spec.lda, spec.in),
        b_(spec.transpose_b ? spec.n : spec.k, spec.transpose_b ? spec.k : spec.n, spec.ldb, spec.in),
        c_(spec.m, spec.n, spec.ldc, spec.out),
        own_scratch_(align64(pd.scratchpad_desc().get_size())) {
    reserve(static_cast<std::size_t>(std::max(1, threads)));
  }

  std::size_t scratch_bytes() const override {
    return own_scratch_ + a_.copy_bytes() + b_.copy_bytes() + c_.copy_bytes();
  }

  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) override {
    char* space = static_cast<char*>(scratch) + own_scratch_;
    a = dense(a_, a, space);
    b = dense(b_, b, space);
    void* target = c;
    if (!c_.dense) {
      target = space;
      if (spec_.accumulate) copy_rows(c, c_.stride, target, c_.row_bytes, c_.rows, c_.row_bytes);
    }
    execute(a, b, bias, target, scratch);
    if (!c_.dense) copy_rows(target, c_.row_bytes, c, c_.stride, c_.rows, c_.row_bytes);
  }

  // Makes `count` executions ready, so that as many threads run without allocating.
  void reserve(std::size_t count) {
    const std::lock_guard guard(lock_);
    free_.reserve(2 * count + 64);
    while (made_ < count) free_.push_back(make_execution());
  }

 private:
  static const void* dense(const Operand& operand, const void* from, char*& space) {
    if (operand.dense) return from;
    copy_rows(from, operand.stride, space, operand.row_bytes, operand.rows, operand.row_bytes);
    const void* copy = space;
    space += operand.copy_bytes();
    return copy;
  }

  std::unique_ptr<Execution> make_execution() {
    ++made_;
    auto e = std::make_unique<Execution>();
    int used = 0;
    const auto add = [&](int argument, const memory::desc& desc) {
      e->memories[used] = memory(desc, engine(), nullptr);
      e->arguments[used] = {argument, e->memories[used].get()};
      ++used;
    };
    add(DNNL_ARG_SRC, pd_.src_desc());
    add(DNNL_ARG_WEIGHTS, pd_.weights_desc());
    add(DNNL_ARG_DST, pd_.dst_desc());
    add(DNNL_ARG_SCRATCHPAD, pd_.scratchpad_desc());
    if (spec_.bias) add(DNNL_ARG_BIAS, pd_.bias_desc());
    return e;
  }

  std::unique_ptr<Execution> take() {
    const std::lock_guard guard(lock_);
    if (free_.empty()) return make_execution();
    auto e = std::move(free_.back());
    free_.pop_back();
    return e;
  }

  void execute(const void* a, const void* b, const void* bias, void* c, void* scratch) {
    auto e = take();
    const std::array<void*, 5> handles{const_cast<void*>(a), const_cast<void*>(b), c, scratch, const_cast<void*>(bias)};
    const int count = spec_.bias ? 5 : 4;
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < count && status == dnnl_success; ++i)
      status = dnnl_memory_set_data_handle(e->arguments[i].memory, handles[i]);
    if (status == dnnl_success)
      status = dnnl_primitive_execute(primitive_.get(), stream_.get(), count, e->arguments.data());
    {
      const std::lock_guard guard(lock_);
      free_.push_back(std::move(e));
    }
    if (status != dnnl_success)
      throw internal_error("oneDNN refused a prepared matrix product (status " + std::to_string(status) + ")");
  }

  TileSpec spec_;
  dnnl::matmul::primitive_desc pd_;
  dnnl::matmul primitive_;
  dnnl::stream stream_;
  Operand a_, b_, c_;
  std::size_t own_scratch_;
  std::mutex lock_;
  std::vector<std::unique_ptr<Execution>> free_;
  std::size_t made_ = 0;
};

memory::desc matrix(std::int64_t rows, std::int64_t cols, bool transposed, DType dtype) {
  return {{rows, cols}, type_of(dtype), transposed ? memory::dims{1, rows} : memory::dims{cols, 1}};
}

}  // namespace

bool onednn_has_bf16() {
  constexpr int kNeeded = static_cast<int>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
}

std::shared_ptr<TileProduct> prepare_onednn_tile(const TileSpec& spec, bool any) {
  const OneThread one;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (spec.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const memory::desc a = matrix(spec.m, spec.k, spec.transpose_a, spec.in);
  const memory::desc b = matrix(spec.k, spec.n, spec.transpose_b, spec.in);
  const memory::desc c = matrix(spec.m, spec.n, false, spec.out);
  const memory::desc bias = spec.bias ? matrix(1, spec.n, false, spec.in) : memory::desc();
  try {
    const dnnl::matmul::desc operation = spec.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc pd(operation, attributes, engine());
    if (!any && !std::string_view(pd.impl_info_str()).starts_with("brg")) return nullptr;
    return std::make_shared<OneDnnTile>(spec, pd, one.pool());
  } catch (const dnnl::error&) {
    return nullptr;  // no implementation for this type on this processor
  }
}

}  // namespace convoy::cpu
