#include "cpu/row_kernels.h"

#include "base/error.h"
#include "cpu/isa.h"

namespace convoy::cpu {

namespace base {
const RowKernels* row_kernel_tables();
}
#if defined(__x86_64__)
namespace avx2 {
const RowKernels* row_kernel_tables();
}
namespace avx512 {
const RowKernels* row_kernel_tables();
}
#else
namespace avx2 = base;
namespace avx512 = base;
#endif

const RowKernels& row_kernels(DType dtype) {
  const RowKernels* tables = pick(base::row_kernel_tables, avx2::row_kernel_tables, avx512::row_kernel_tables)();
  switch (dtype) {
    case DType::kF32:
      return tables[0];
    case DType::kBF16:
      return tables[1];
    case DType::kF16:
      return tables[2];
    case DType::kF64:
      return tables[3];
    default:
      throw internal_error("no row kernels for an integer dtype");
  }
}

}  // namespace convoy::cpu
