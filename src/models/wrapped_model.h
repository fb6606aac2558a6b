// A model with something changed about it; everything else is the model's own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"

namespace convoy {

// Forwards every question to the model that it wraps. What is virtual in Model must be here.
class WrappedModel : public Model {
 public:
  explicit WrappedModel(std::unique_ptr<Model> base)
      : base_(std::move(base)), parameters_(base_->parameters()), files_(base_->file_tensors()) {}

  std::string family() const override { return base_->family(); }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<FileTensor>& file_tensors() const override { return files_; }
  ModelGraph build(const GraphOptions& options) const override { return base_->build(options); }
  std::int64_t vocab_size() const override { return base_->vocab_size(); }
  std::int64_t max_positions() const override { return base_->max_positions(); }
  bool positions_are_learned() const override { return base_->positions_are_learned(); }
  std::int64_t block_count() const override { return base_->block_count(); }
  void fill_tables(std::int64_t length, std::span<float> cosines, std::span<float> sines) const override {
    base_->fill_tables(length, cosines, sines);
  }
  bool tables_depend_on_length() const override { return base_->tables_depend_on_length(); }
  std::string base_prefix() const override { return base_->base_prefix(); }
  std::string tied_embedding() const override { return base_->tied_embedding(); }
  std::string tied_head() const override { return base_->tied_head(); }
  bool is_buffer(const std::string& tensor) const override { return base_->is_buffer(tensor); }
  const TaskHead* task_head() const override { return base_->task_head(); }
  bool may_be_missing(std::size_t parameter) const override {
    return parameter < base_->parameters().size() && base_->may_be_missing(parameter);
  }
  bool leaves_out(const std::string& tensor) const override { return base_->leaves_out(tensor); }
  std::int64_t added_rows(std::size_t parameter) const override {
    return parameter < base_->parameters().size() ? base_->added_rows(parameter) : 0;
  }
  std::optional<AudioInput> audio() const override { return base_->audio(); }
  std::vector<BatchConstant> constants(const GraphOptions& options) const override { return base_->constants(options); }
  void mark_heard(const GraphOptions& options, std::span<const std::int32_t> lengths,
                  HeardInputs& inputs) const override {
    base_->mark_heard(options, lengths, inputs);
  }
  bool writes_all_names() const override { return base_->writes_all_names(); }
  std::string renamed(const std::string& tensor) const override { return base_->renamed(tensor); }

 protected:
  const Model& base() const { return *base_; }
  std::vector<Parameter>& mutable_parameters() { return parameters_; }
  std::vector<FileTensor>& mutable_files() { return files_; }

 private:
  std::unique_ptr<Model> base_;
  std::vector<Parameter> parameters_;  // the model's first
  std::vector<FileTensor> files_;      // likewise
};

}  // namespace convoy
