#include "plan/generation_programs.h"

#include <algorithm>

#include "passes/fuse.h"
#include "passes/order.h"

namespace convoy {
namespace {

Graph forward_graph(const Model& model, const GraphOptions& options) {
  ModelGraph built = model.build(options);
  fuse(built.graph);
  order(built.graph);
  return std::move(built.graph);
}

}  // namespace

GenerationPrograms::GenerationPrograms(const Model& model, const GenerationShape& shape,
                                       const WorkspaceSizes& workspaces)
    : model_(model), shape_(shape), workspaces_(workspaces) {
  for (const Parameter& parameter : model.parameters())
    layout_.add(Role::kWeight, parameter.name, {shape.dtype, parameter.shape});
  const auto add_sources = [&](CacheUse use, std::int64_t tokens) {
    const Graph graph = forward_graph(model, options(use, tokens));
    for (std::size_t id = 0; id < graph.value_count(); ++id) {
      const Value& value = graph.value(static_cast<ValueId>(id));
      if (value.producer < 0 && (value.role == Role::kBatch || value.role == Role::kCache))
        layout_.add(value.role, value.name, value.spec);
    }
  };
  add_sources(shape.cache ? CacheUse::kFill : CacheUse::kNone, shape.fill_tokens);
  if (shape.cache) add_sources(CacheUse::kExtend, shape.sequences);
  // Offsets are final from here on.
  for (int role = 0; role < kRoleCount; ++role) {
    if (static_cast<Role>(role) != Role::kActivation)
      sizes_.bytes[static_cast<std::size_t>(role)] = layout_.bytes(static_cast<Role>(role));
  }
  take(fill(shape.fill_tokens));
  if (shape.cache) take(extend(shape.sequences));
}

void GenerationPrograms::take(const Program& program) {
  auto& activations = sizes_.bytes[static_cast<std::size_t>(Role::kActivation)];
  activations = std::max(activations, program.activation_bytes);
  sizes_.workspace = std::max(sizes_.workspace, program.workspace_bytes);
}

bool GenerationPrograms::fits(const Program& program) const {
  return program.activation_bytes <= sizes_.bytes[static_cast<std::size_t>(Role::kActivation)] &&
         program.workspace_bytes <= sizes_.workspace;
}

GraphOptions GenerationPrograms::options(CacheUse use, std::int64_t tokens) const {
  GraphOptions made;
  made.kind = GraphKind::kLogits;
  made.tokens = tokens;
  made.table_length = shape_.capacity;
  made.logit_rows = use == CacheUse::kExtend ? tokens : shape_.sequences;
  made.dtype = shape_.dtype;
  made.cache = {use, shape_.cache_rows()};
  return made;
}

Program GenerationPrograms::make(CacheUse use, std::int64_t tokens) const {
  return compile(forward_graph(model_, options(use, tokens)), layout_, workspaces_,
                 use == CacheUse::kExtend ? "next tokens" : "prompts", {"logits"});
}

Program GenerationPrograms::fill(std::int64_t tokens) const {
  return make(shape_.cache ? CacheUse::kFill : CacheUse::kNone, tokens);
}

Program GenerationPrograms::extend(std::int64_t tokens) const {
  check(shape_.cache, "without kept keys and values no text can be extended");
  return make(CacheUse::kExtend, tokens);
}

}  // namespace convoy
