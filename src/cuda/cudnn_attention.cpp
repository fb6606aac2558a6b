#include "cuda/cudnn_attention.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"

// Where the front end looks the library's functions up.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace convoy::cuda {
namespace {

namespace fe = cudnn_frontend;

enum : std::int64_t { kQ = 1, kK, kV, kO, kLse, kDO, kDQ, kDK, kDV };

// A handle a stream, for the life of the process; null where the library is missing.
cudnnHandle_t handle_of(const Context& context) {
  static std::map<cudaStream_t, cudnnHandle_t> handles;  // under the lock of make()
  if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = ::dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (fe::cudnn_dlhandle == nullptr) return nullptr;
  const auto [place, fresh] = handles.try_emplace(context.stream, nullptr);
  if (fresh && fe::detail::create_handle(&place->second) == CUDNN_STATUS_SUCCESS)
    fe::detail::set_stream(place->second, context.stream);
  return place->second;
}

class Prepared final : public CudnnAttention {
 public:
  Prepared(Context& context, const AttentionShape& s, DType dtype, std::int64_t rows, std::int64_t length,
           bool backward)
      : handle_(handle_of(context)), shape_(s), size_(size_of(dtype)) {
    graph_.set_io_data_type(dtype == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const std::int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const auto tensor = [&](std::int64_t uid, std::int64_t heads, std::int64_t row) {
      return graph_.tensor(fe::graph::Tensor_attributes()
                               .set_uid(uid)
                               .set_dim({rows, heads, length, s.head_dim})
                               .set_stride({length * row, s.head_dim, row, 1}));
    };
    const auto place = [&](const std::shared_ptr<fe::graph::Tensor_attributes>& made, std::int64_t uid,
                           std::int64_t heads, std::int64_t row) {
      made->set_output(true)
          .set_uid(uid)
          .set_dim({rows, heads, length, s.head_dim})
          .set_stride({length * row, s.head_dim, row, 1});
    };
    auto q = tensor(kQ, s.heads, width), k = tensor(kK, s.kv_heads, width), v = tensor(kV, s.kv_heads, width);
    const std::vector<std::int64_t> lse_dim{rows, s.heads, length, 1}, lse_stride{s.heads * length, length, 1, 1};
    if (!backward) {
      auto options = fe::graph::SDPA_attributes()
                         .set_name("attention")
                         .set_generate_stats(true)
                         .set_attn_scale(static_cast<float>(s.scale));
      mask(options, length);
      auto [o, lse] = graph_.sdpa(q, k, v, options);
      place(o, kO, s.heads, s.heads * s.head_dim);
      lse->set_output(true).set_uid(kLse).set_data_type(fe::DataType_t::FLOAT).set_dim(lse_dim).set_stride(lse_stride);
    } else {
      auto o = tensor(kO, s.heads, s.heads * s.head_dim), d_o = tensor(kDO, s.heads, s.heads * s.head_dim);
      auto lse = graph_.tensor(fe::graph::Tensor_attributes()
                                   .set_uid(kLse)
                                   .set_data_type(fe::DataType_t::FLOAT)
                                   .set_dim(lse_dim)
                                   .set_stride(lse_stride));
      auto options =
          fe::graph::SDPA_backward_attributes().set_name("attention_grad").set_attn_scale(static_cast<float>(s.scale));
      mask(options, length);
      options.set_deterministic_algorithm(context.options.deterministic);
      auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, o, d_o, lse, options);
      place(dq, kDQ, s.heads, width);
      place(dk, kDK, s.kv_heads, width);
      place(dv, kDV, s.kv_heads, width);
    }
    auto status = graph_.build(handle_, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_bad()) throw internal_error("cuDNN: " + status.get_message());
    std::int64_t bytes = 0;
    status = graph_.get_workspace_size(bytes);
    if (status.is_bad()) throw internal_error("cuDNN: " + status.get_message());
    workspace_ = static_cast<std::size_t>(bytes);
  }

  std::size_t workspace_bytes() const override { return workspace_; }

  void forward(const void* qkv, void* o, float* lse, void* workspace) const override {
    const auto [q, k, v] = parts(qkv);
    run({{kQ, q}, {kK, k}, {kV, v}, {kO, o}, {kLse, lse}}, workspace);
  }
  void backward(const void* d_o, const void* qkv, const void* o, const float* lse, void* dqkv,
                void* workspace) const override {
    const auto [q, k, v] = parts(qkv);
    const auto [dq, dk, dv] = parts(dqkv);
    run({{kQ, q},
         {kK, k},
         {kV, v},
         {kO, const_cast<void*>(o)},
         {kDO, const_cast<void*>(d_o)},
         {kLse, const_cast<float*>(lse)},
         {kDQ, dq},
         {kDK, dk},
         {kDV, dv}},
        workspace);
  }

 private:
  template <typename Options>
  void mask(Options& options, std::int64_t length) const {
    if (shape_.causal) {
      options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
      if (shape_.window > 0 && shape_.window < length) options.set_diagonal_band_left_bound(shape_.window);
    }
  }
  std::array<void*, 3> parts(const void* packed) const {
    auto* base = static_cast<std::byte*>(const_cast<void*>(packed));
    std::byte* k = base + static_cast<std::size_t>(shape_.heads * shape_.head_dim) * size_;
    return {base, k, k + static_cast<std::size_t>(shape_.kv_heads * shape_.head_dim) * size_};
  }
  void run(std::unordered_map<std::int64_t, void*> operands, void* workspace) const {
    auto status = graph_.execute(handle_, operands, workspace);
    if (status.is_bad()) throw internal_error("cuDNN: " + status.get_message());
  }

  cudnnHandle_t handle_;
  AttentionShape shape_;
  std::size_t size_;
  mutable fe::graph::Graph graph_;
  std::size_t workspace_ = 0;
};

}  // namespace

std::shared_ptr<CudnnAttention> CudnnAttention::make(Context& context, const AttentionShape& s, DType dtype,
                                                     std::int64_t rows, std::int64_t length, bool backward) {
  if (dtype != DType::kBF16 && dtype != DType::kF16) return nullptr;
  if (rows <= 0 || length < 16 || s.head_dim % 8 != 0 || s.head_dim > 256 || s.dropout > 0) return nullptr;
  if (!s.causal && s.window > 0) return nullptr;
  // Preparing takes some hundred milliseconds; the plan asks for the same shapes again and again.
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<CudnnAttention>> made;
  const std::string key =
      s.str() + " " + std::string(name_of(dtype)) + " " + std::to_string(rows) + "x" + std::to_string(length) +
      (backward ? " backward" : "") + (context.options.deterministic ? " same bits" : "") + " " +
      std::to_string(reinterpret_cast<std::uintptr_t>(context.stream)) + " " + std::to_string(s.scale);
  const std::scoped_lock lock(mutex);
  const auto place = made.find(key);
  if (place != made.end()) return place->second;
  std::shared_ptr<CudnnAttention> attention;
  try {
    if (handle_of(context) != nullptr)
      attention = std::make_shared<Prepared>(context, s, dtype, rows, length, backward);
  } catch (const Error& e) {
    log_debug("attention {}: Convoy's own kernels ({})", key, e.what());
  }
  made.emplace(key, attention);
  return attention;
}

}  // namespace convoy::cuda
