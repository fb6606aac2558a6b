// A model's parameters in a rank's arenas, seen by rows: the side that files and other dtypes meet.
#pragma once

#include <span>
#include <vector>

#include "models/model.h"
#include "program/layout.h"
#include "runtime/arenas.h"

namespace convoy {

class ParameterStore {
 public:
  // All must outlive the store.
  ParameterStore(Device& device, const Model& model, const Layout& layout, const Arenas& arenas)
      : device_(device), model_(model), layout_(layout), arenas_(arenas) {}

  const Model& model() const { return model_; }
  // Draws the weights of a new model.
  void initialize(std::uint64_t seed);
  // Sets rows of a parameter (and of its master copy) from values of any floating dtype.
  void set_rows(std::size_t parameter, std::int64_t first_row, DType dtype, std::span<const std::byte> values);
  // Rows of a parameter as `dtype`, from the master copy where there is one and it is the wider.
  std::vector<std::byte> rows(std::size_t parameter, std::int64_t first_row, std::int64_t count, DType dtype) const;
  // Raw persistent storage by role and name.
  std::vector<std::byte> read(Role role, const std::string& name) const;
  void write(Role role, const std::string& name, std::span<const std::byte> bytes);

 private:
  Device& device_;
  const Model& model_;
  const Layout& layout_;
  const Arenas& arenas_;
};

// Single numbers of a floating dtype in raw memory.
double load_float(DType dtype, const std::byte* at);
void store_float(DType dtype, double value, std::byte* at);

}  // namespace convoy
