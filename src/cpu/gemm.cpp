#include "cpu/gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>

#include "base/error.h"
#include "cpu/gemm_tile.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kMaxSlots = 32;     // scratch areas, and so the most threads that one product uses
constexpr std::int64_t kConvertRows = 64;  // rows converted at a time

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

struct Grid {
  std::int64_t rows, columns;  // of a tile
};

// Measured with oneDNN 2.6 at one thread: tiles of 256 rows and all columns lose nothing against the whole product (B
// is repacked per tile, and tiles of C without gaps need no copy); 128 rows lose 5%, 64 15%. A transposed A is copied
// per tile besides, so its tiles are not made small. A short product with B stored as [n, k] is cut along n instead,
// where a tile of B is without gaps too.
Grid choose_tiles(const GemmSpec& s) {
  const std::int64_t quarter = ceil_div(ceil_div(s.m, 4), 32) * 32;
  if (s.m >= 512 || s.transpose_a || (!s.transpose_b && s.m >= 64)) {
    return {std::clamp<std::int64_t>(quarter, s.transpose_a ? 192 : 32, 256), std::max<std::int64_t>(s.n, 1)};
  }
  const std::int64_t share = ceil_div(ceil_div(s.n, 8), 64) * 64;
  return {std::max<std::int64_t>(std::min<std::int64_t>(s.m, 256), 1), std::clamp<std::int64_t>(share, 64, 512)};
}

// The f32 detour of 16-bit types that the processor has no products for.
bool detour(const GemmSpec& s) {
  return s.dtype == DType::kF16 || (s.dtype == DType::kBF16 && !native_bf16());
}

GemmSpec validated(GemmSpec s) {
  check(s.m >= 0 && s.n >= 0 && s.k >= 0, "gemm: a negative size");
  check(is_floating(s.dtype), "gemm: not a floating-point type");
  const bool half = s.dtype == DType::kBF16 || s.dtype == DType::kF16;
  check(s.out == s.dtype || (s.out == DType::kF32 && half), "gemm: the result's type must be the operands' or f32");
  check(!(s.accumulate && s.activation != Activation::kNone),
        "gemm: accumulation and an activation exclude each other");
  check(!s.keep_preactivation || s.activation != Activation::kNone, "gemm: no activation whose input could be kept");
  check(!(s.k == 0 && s.bias), "gemm: a product over no terms with a bias");
  const std::int64_t a_row = s.transpose_a ? s.m : s.k, b_row = s.transpose_b ? s.k : s.n;
  if (s.lda == 0) s.lda = a_row;
  if (s.ldb == 0) s.ldb = b_row;
  if (s.ldc == 0) s.ldc = s.n;
  check(s.lda >= a_row && s.ldb >= b_row && s.ldc >= s.n, "gemm: a leading dimension is shorter than its row");
  return s;
}

}  // namespace

struct Gemm::Plan {
  explicit Plan(const GemmSpec& given);
  void run(const GemmArgs& args) const;

  GemmSpec spec;
  bool through_f32;
  Grid tile;
  std::int64_t tile_rows, tile_columns, slots;  // the grid's extent
  // [last row of tiles?][last column of tiles?]: the edge tiles may be smaller.
  std::array<std::array<std::shared_ptr<TileProduct>, 2>, 2> products;
  std::size_t a_bytes = 0, b_bytes = 0, bias_bytes = 0, c_bytes = 0, slot_bytes = 0;

 private:
  std::int64_t rows_of(std::int64_t i) const { return std::min(tile.rows, spec.m - i * tile.rows); }
  std::int64_t columns_of(std::int64_t j) const { return std::min(tile.columns, spec.n - j * tile.columns); }
  void prepare_products();
  void convert(const void* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, void* to) const;
  void run_tile(std::int64_t index, const GemmArgs& args, char* slot) const;
  void finish_tile(std::int64_t i, std::int64_t j, const GemmArgs& args) const;
  void fill_without_terms(const GemmArgs& args) const;
};

Gemm::Plan::Plan(const GemmSpec& given) : spec(validated(given)), through_f32(detour(spec)), tile(choose_tiles(spec)) {
  tile_rows = ceil_div(spec.m, tile.rows);
  tile_columns = ceil_div(spec.n, tile.columns);
  slots = std::min(tile_rows * tile_columns, kMaxSlots);
  if (slots == 0 || spec.k == 0) return;
  if (through_f32) {
    a_bytes = align64(static_cast<std::size_t>(spec.m * spec.k) * sizeof(float));
    b_bytes = align64(static_cast<std::size_t>(spec.n * spec.k) * sizeof(float));
    if (spec.bias) bias_bytes = align64(static_cast<std::size_t>(spec.n) * sizeof(float));
    if (spec.out != DType::kF32) c_bytes = align64(static_cast<std::size_t>(tile.rows * tile.columns) * sizeof(float));
  }
  prepare_products();
}

void Gemm::Plan::prepare_products() {
  TileSpec t{};
  t.k = spec.k;
  t.transpose_a = spec.transpose_a;
  t.transpose_b = spec.transpose_b;
  t.accumulate = spec.accumulate;
  t.bias = spec.bias;
  t.in = through_f32 ? DType::kF32 : spec.dtype;
  t.out = through_f32 ? DType::kF32 : spec.out;
  t.lda = through_f32 ? (spec.transpose_a ? spec.m : spec.k) : spec.lda;
  t.ldb = through_f32 ? (spec.transpose_b ? spec.k : spec.n) : spec.ldb;
  std::size_t scratch = 0;
  for (const int last_row : {0, 1}) {
    for (const int last_column : {0, 1}) {
      if ((!last_row && tile_rows == 1) || (!last_column && tile_columns == 1)) continue;
      t.m = rows_of(last_row ? tile_rows - 1 : 0);
      t.n = columns_of(last_column ? tile_columns - 1 : 0);
      t.ldc = c_bytes > 0 ? t.n : spec.ldc;
      auto& product = products[last_row][last_column];
      product = TileProduct::prepare(t);
      scratch = std::max(scratch, product->scratch_bytes());
    }
  }
  slot_bytes = align64(scratch) + c_bytes;
}

// Converts a matrix to f32 without gaps.
void Gemm::Plan::convert(const void* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, void* to) const {
  const GemmKernels& kernels = active_gemm_kernels();
  const std::int64_t blocks = ceil_div(rows, kConvertRows);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t first = i * kConvertRows;
    kernels.load_rows(static_cast<int>(spec.dtype), static_cast<const std::uint16_t*>(from) + first * ld, ld,
                      std::min(kConvertRows, rows - first), columns, static_cast<float*>(to) + first * columns,
                      columns);
  }
}

namespace {
const char* element(const void* base, std::int64_t index, DType dtype) {
  return static_cast<const char*>(base) + index * static_cast<std::int64_t>(size_of(dtype));
}
char* element(void* base, std::int64_t index, DType dtype) {
  return static_cast<char*>(base) + index * static_cast<std::int64_t>(size_of(dtype));
}
}  // namespace

void Gemm::Plan::run_tile(std::int64_t index, const GemmArgs& args, char* slot) const {
  const std::int64_t i = index / tile_columns, j = index % tile_columns;
  const std::int64_t m0 = i * tile.rows, n0 = j * tile.columns, rows = rows_of(i), columns = columns_of(j);
  const DType in = through_f32 ? DType::kF32 : spec.dtype;
  const std::int64_t lda = through_f32 ? (spec.transpose_a ? spec.m : spec.k) : spec.lda;
  const std::int64_t ldb = through_f32 ? (spec.transpose_b ? spec.k : spec.n) : spec.ldb;
  const char* a = element(args.a, spec.transpose_a ? m0 : m0 * lda, in);
  const char* b = element(args.b, spec.transpose_b ? n0 * ldb : n0, in);
  const char* bias = spec.bias ? element(args.bias, n0, in) : nullptr;
  char* c = element(args.c, m0 * spec.ldc + n0, spec.out);
  TileProduct& product = *products[i == tile_rows - 1][j == tile_columns - 1];
  if (c_bytes > 0) {
    const GemmKernels& kernels = active_gemm_kernels();
    void* wide = slot;
    if (spec.accumulate) kernels.load_rows(static_cast<int>(spec.out), c, spec.ldc, rows, columns, wide, columns);
    product.run(a, b, bias, wide, slot + c_bytes);
    kernels.store_rows(static_cast<int>(spec.out), wide, columns, rows, columns, c, spec.ldc);
  } else {
    product.run(a, b, bias, c, slot);
  }
  finish_tile(i, j, args);
}

// The activation, while the tile is still in the cache.
void Gemm::Plan::finish_tile(std::int64_t i, std::int64_t j, const GemmArgs& args) const {
  if (spec.activation == Activation::kNone) return;
  const std::int64_t first = i * tile.rows * spec.ldc + j * tile.columns;
  active_gemm_kernels().activate(static_cast<int>(spec.out), static_cast<int>(spec.activation),
                                 element(args.c, first, spec.out), spec.ldc, rows_of(i), columns_of(j),
                                 spec.keep_preactivation ? element(args.preactivation, first, spec.out) : nullptr);
}

// k = 0: the sum has no terms.
void Gemm::Plan::fill_without_terms(const GemmArgs& args) const {
  const std::size_t row_bytes = static_cast<std::size_t>(spec.n) * size_of(spec.out);
  for (std::int64_t r = 0; r < spec.m && !spec.accumulate; ++r)
    std::memset(element(args.c, r * spec.ldc, spec.out), 0, row_bytes);
  for (std::int64_t i = 0; i < tile_rows; ++i)
    for (std::int64_t j = 0; j < tile_columns; ++j) finish_tile(i, j, args);
}

void Gemm::Plan::run(const GemmArgs& args) const {
  if (slots == 0) return;
  if (spec.k == 0) return fill_without_terms(args);
  GemmArgs inner = args;
  char* space = static_cast<char*>(args.workspace);
  if (through_f32) {
    inner.a = space;
    inner.b = space + a_bytes;
    convert(args.a, spec.lda, spec.transpose_a ? spec.k : spec.m, spec.transpose_a ? spec.m : spec.k, space);
    convert(args.b, spec.ldb, spec.transpose_b ? spec.n : spec.k, spec.transpose_b ? spec.k : spec.n, space + a_bytes);
    if (spec.bias) {
      inner.bias = space + a_bytes + b_bytes;
      convert(args.bias, spec.n, 1, spec.n, space + a_bytes + b_bytes);
    }
    space += a_bytes + b_bytes + bias_bytes;
  }
  std::exception_ptr failure;
  std::mutex lock;
  const std::int64_t count = tile_rows * tile_columns;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t s = 0; s < slots; ++s) {
    try {
      for (std::int64_t t = s; t < count; t += slots)
        run_tile(t, inner, space + s * static_cast<std::int64_t>(slot_bytes));
    } catch (...) {
      const std::lock_guard guard(lock);
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

Gemm::Gemm(const GemmSpec& spec) : plan_(std::make_unique<const Plan>(spec)) {}
Gemm::~Gemm() = default;
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;

const GemmSpec& Gemm::spec() const {
  return plan_->spec;
}
std::size_t Gemm::workspace_bytes() const {
  return plan_->a_bytes + plan_->b_bytes + plan_->bias_bytes +
         static_cast<std::size_t>(plan_->slots) * plan_->slot_bytes;
}
void Gemm::run(const GemmArgs& args) const {
  plan_->run(args);
}

}  // namespace convoy::cpu
