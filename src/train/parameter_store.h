// A model's parameters in a rank's arenas, seen by rows: the side that files and other dtypes meet.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "plan/program_set.h"

namespace convoy {

// The part of a parameter that a rank holds in one role: elements [first, first + count) in row-major order.
struct StoredPart {
  const Slot* slot = nullptr;
  std::int64_t first = 0, count = 0;
};

class ParameterStore {
 public:
  // All must outlive the store. `shape` says how the parameters are spread over ranks.
  ParameterStore(Device& device, const Model& model, const Layout& layout, const Arenas& arenas,
                 const TrainShape& shape = {})
      : device_(device), model_(model), layout_(layout), arenas_(arenas), shape_(shape) {}

  const Model& model() const { return model_; }
  // Draws the weights of a new model.
  void initialize(std::uint64_t seed);
  // Draws one parameter that the files lack, from the run's seed.
  void initialize_fresh(std::size_t parameter);
  // Sets rows of a parameter (and of its master copy) from values of any floating dtype, as far as this rank holds
  // them.
  void set_rows(std::size_t parameter, std::int64_t first_row, DType dtype, std::span<const std::byte> values);
  // Rows of a parameter as `dtype`, from the master copy where there is one and it is the wider. Only for parameters
  // that this rank holds whole: see is_whole.
  std::vector<std::byte> rows(std::size_t parameter, std::int64_t first_row, std::int64_t count, DType dtype) const;
  // Whether rows() can answer without the other ranks.
  bool is_whole(std::size_t parameter, DType dtype) const;
  // The whole parameter as `dtype`, put together from all ranks, which must all call.
  std::vector<std::byte> gather(std::size_t parameter, DType dtype, Communicator& communicator) const;
  // What this rank holds of a weight, master weight or moment (`moment` is its number).
  StoredPart part(Role role, std::size_t parameter, int moment = 0) const;
  // Raw storage of a part.
  std::vector<std::byte> read(Role role, const StoredPart& part) const;
  std::vector<std::byte> read_elements(Role role, const StoredPart& part, std::int64_t first, std::int64_t count) const;
  void write_elements(Role role, const StoredPart& part, std::int64_t first, std::span<const std::byte> bytes);
  // Raw persistent storage by role and name.
  std::vector<std::byte> read(Role role, const std::string& name) const;

 private:
  void draw(std::size_t parameter, std::uint64_t seed);
  Role source_role(std::size_t parameter, DType dtype) const;

  Device& device_;
  const Model& model_;
  const Layout& layout_;
  const Arenas& arenas_;
  const TrainShape shape_;
};

// Single numbers of a floating dtype in raw memory.
double load_float(DType dtype, const std::byte* at);
void store_float(DType dtype, double value, std::byte* at);

}  // namespace convoy
