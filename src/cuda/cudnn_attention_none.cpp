// A build without cuDNN's front end.
#include "cuda/cudnn_attention.h"

namespace convoy::cuda {

std::shared_ptr<CudnnAttention> CudnnAttention::make(Context& /*context*/, const AttentionShape& /*shape*/,
                                                     DType /*dtype*/, const DenseAttention& /*dense*/,
                                                     bool /*backward*/) {
  return nullptr;
}

}  // namespace convoy::cuda
