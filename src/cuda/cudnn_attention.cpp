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
  Prepared(Context& context, const AttentionShape& s, DType dtype, const DenseAttention& dense, bool backward)
      : handle_(handle_of(context)), shape_(s) {
    graph_.set_io_data_type(dtype == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const std::int64_t rows = dense.rows;
    struct Layout {
      std::int64_t heads, length, row;
    };
    const Layout of_q{s.heads, dense.queries, dense.q_row}, of_kv{s.kv_heads, dense.keys, dense.kv_row};
    const Layout of_o{s.heads, dense.queries, s.heads * s.head_dim};
    const auto tensor = [&](std::int64_t uid, const Layout& l) {
      return graph_.tensor(fe::graph::Tensor_attributes()
                               .set_uid(uid)
                               .set_dim({rows, l.heads, l.length, s.head_dim})
                               .set_stride({l.length * l.row, s.head_dim, l.row, 1}));
    };
    const auto place = [&](const std::shared_ptr<fe::graph::Tensor_attributes>& made, std::int64_t uid,
                           const Layout& l) {
      made->set_output(true)
          .set_uid(uid)
          .set_dim({rows, l.heads, l.length, s.head_dim})
          .set_stride({l.length * l.row, s.head_dim, l.row, 1});
    };
    auto q = tensor(kQ, of_q), k = tensor(kK, of_kv), v = tensor(kV, of_kv);
    const std::vector<std::int64_t> lse_dim{rows, s.heads, dense.queries, 1},
        lse_stride{s.heads * dense.queries, dense.queries, 1, 1};
    if (!backward) {
      auto options = fe::graph::SDPA_attributes()
                         .set_name("attention")
                         .set_generate_stats(true)
                         .set_attn_scale(static_cast<float>(s.scale));
      mask(options, dense.keys);
      auto [o, lse] = graph_.sdpa(q, k, v, options);
      place(o, kO, of_o);
      lse->set_output(true).set_uid(kLse).set_data_type(fe::DataType_t::FLOAT).set_dim(lse_dim).set_stride(lse_stride);
    } else {
      auto o = tensor(kO, of_o), d_o = tensor(kDO, of_o);
      auto lse = graph_.tensor(fe::graph::Tensor_attributes()
                                   .set_uid(kLse)
                                   .set_data_type(fe::DataType_t::FLOAT)
                                   .set_dim(lse_dim)
                                   .set_stride(lse_stride));
      auto options =
          fe::graph::SDPA_backward_attributes().set_name("attention_grad").set_attn_scale(static_cast<float>(s.scale));
      mask(options, dense.keys);
      options.set_deterministic_algorithm(context.options.deterministic);
      auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, o, d_o, lse, options);
      place(dq, kDQ, of_q);
      place(dk, kDK, of_kv);
      place(dv, kDV, of_kv);
    }
    auto status = graph_.build(handle_, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_bad()) throw internal_error("cuDNN: " + status.get_message());
    std::int64_t bytes = 0;
    status = graph_.get_workspace_size(bytes);
    if (status.is_bad()) throw internal_error("cuDNN: " + status.get_message());
    workspace_ = static_cast<std::size_t>(bytes);
  }

  std::size_t workspace_bytes() const override { return workspace_; }

  void forward(const void* q, const void* k, const void* v, void* o, float* lse, void* workspace) const override {
    run({{kQ, read(q)}, {kK, read(k)}, {kV, read(v)}, {kO, o}, {kLse, lse}}, workspace);
  }
  void backward(const void* d_o, const void* q, const void* k, const void* v, const void* o, const float* lse, void* dq,
                void* dk, void* dv, void* workspace) const override {
    run({{kQ, read(q)},
         {kK, read(k)},
         {kV, read(v)},
         {kO, read(o)},
         {kDO, read(d_o)},
         {kLse, read(lse)},
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
  // The front end takes all operands as it takes those that are written.
  static void* read(const void* tensor) { return const_cast<void*>(tensor); }
  void run(std::unordered_map<std::int64_t, void*> operands, void* workspace) const {
    auto status = graph_.execute(handle_, operands, workspace);
    if (status.is_bad()) throw internal_error("cuDNN: " + status.get_message());
  }

  cudnnHandle_t handle_;
  AttentionShape shape_;
  mutable fe::graph::Graph graph_;
  std::size_t workspace_ = 0;
};

}  // namespace

std::shared_ptr<CudnnAttention> CudnnAttention::make(Context& context, const AttentionShape& s, DType dtype,
                                                     const DenseAttention& dense, bool backward) {
  if (dtype != DType::kBF16 && dtype != DType::kF16) return nullptr;
  if (dense.rows <= 0 || dense.queries < 16 || dense.keys < 16 || s.head_dim % 8 != 0 || s.head_dim > 256 ||
      s.dropout > 0)
    return nullptr;
  if (!s.causal && s.window > 0) return nullptr;
  // Preparing takes some hundred milliseconds; the plan asks for the same shapes again and again.
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<CudnnAttention>> made;
  const std::string key = s.str() + " " + std::string(name_of(dtype)) + " " + std::to_string(dense.rows) + "x" +
                          std::to_string(dense.queries) + "x" + std::to_string(dense.keys) + " " +
                          std::to_string(dense.q_row) + "/" + std::to_string(dense.kv_row) +
                          (backward ? " backward" : "") + (context.options.deterministic ? " same bits" : "") + " " +
                          std::to_string(reinterpret_cast<std::uintptr_t>(context.stream)) + " " +
                          std::to_string(s.scale);
  const std::scoped_lock lock(mutex);
  const auto place = made.find(key);
  if (place != made.end()) return place->second;
  std::shared_ptr<CudnnAttention> attention;
  try {
    if (handle_of(context) != nullptr) attention = std::make_shared<Prepared>(context, s, dtype, dense, backward);
  } catch (const Error& e) {
    log_debug("attention {}: Convoy's own kernels ({})", key, e.what());
  }
  made.emplace(key, attention);
  return attention;
}

}  // namespace convoy::cuda
