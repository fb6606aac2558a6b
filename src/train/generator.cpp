#include "train/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace convoy {
namespace {

constexpr std::int64_t kShortest = 32;      // tokens of the smallest program that reads prompts
constexpr std::int64_t kFillTokens = 1024;  // prompts that are read together, where there are several
constexpr std::uint64_t kStream = 0x5a;

// Numbers of tokens are padded to powers of two, so that few programs serve all.
std::int64_t padded(std::int64_t tokens, std::int64_t shortest, std::int64_t most) {
  std::int64_t size = shortest;
  while (size < tokens) size *= 2;
  return std::max(tokens, std::min(size, most));
}

// Whether the rotation of a token depends on how long the text is.
bool tables_vary(const Model& model, std::int64_t max_length) {
  if (!model.tables_depend_on_length()) return false;
  GraphOptions options;
  options.kind = GraphKind::kLogits;
  options.tokens = options.table_length = 2;
  options.logit_rows = 1;
  const ModelGraph graph = model.build(options);
  const ValueId table = graph.graph.find(Role::kBatch, batch_input::kRopeCos);
  if (table == kNoValue) return false;
  const auto count = static_cast<std::size_t>(graph.graph.spec(table).numel());
  std::vector<float> cosines[2], sines[2];
  for (int i : {0, 1}) {
    cosines[i].resize(count);
    sines[i].resize(count);
    model.fill_tables(i == 0 ? 1 : max_length, cosines[i], sines[i]);
  }
  return cosines[0] != cosines[1] || sines[0] != sines[1];
}

}  // namespace

Generator::Generator(Device& device, const Model& model, DType dtype, std::int64_t max_length, std::int64_t batch,
                     bool cache)
    : device_(device), model_(model), max_length_(max_length), batch_(batch) {
  if (model.positions_are_learned()) max_length_ = std::min(max_length_, model.max_positions());
  check(max_length_ > 0 && batch_ > 0, "a generator needs room for a token");
  GenerationShape shape;
  shape.dtype = dtype;
  shape.cache = cache && !tables_vary(model, max_length_);
  shape.sequences = shape.cache ? batch_ : 1;
  shape.capacity = max_length_;
  shape.fill_tokens =
      shape.sequences == 1 ? max_length_ : std::min(std::max(max_length_, kFillTokens), max_length_ * batch_);
  if (shape.cache_rows() > std::int64_t{1} << 31) {
    throw usage_error(fmt::format("{} texts of {} tokens are more than can be numbered", batch_, max_length_))
        .mend("lower --batch_size or --max_length");
  }
  programs_ = std::make_unique<GenerationPrograms>(model, shape, device);
  arenas_ = std::make_unique<Arenas>(device, programs_->sizes());
  store_ = std::make_unique<ParameterStore>(device, model, programs_->layout(), *arenas_);
}

Generator::Stage& Generator::stage(CacheUse use, std::int64_t tokens) {
  const bool extend = use == CacheUse::kExtend;
  const std::int64_t most = extend ? programs_->shape().sequences : programs_->shape().fill_tokens;
  std::int64_t size = padded(tokens, extend ? 1 : kShortest, most);
  while (true) {
    const auto [place, fresh] = stages_.try_emplace({use, size});
    Stage& made = place->second;
    if (fresh) {
      made.tokens = size;
      made.program = extend ? programs_->extend(size) : programs_->fill(size);
      if (programs_->fits(made.program)) made.executor = std::make_unique<Executor>(device_, made.program, *arenas_);
    }
    if (made.executor) return made;
    check(size < most, "the largest program of a generator does not fit its own arenas");
    size = std::min(2 * size, most);
  }
}

void Generator::put(const char* name, std::span<const std::int32_t> values) {
  if (!programs_->layout().contains(Role::kBatch, name)) return;
  const Slot& slot = programs_->layout().find(Role::kBatch, name);
  check(values.size_bytes() <= slot.spec.bytes(), "more tokens than the programs were made for");
  device_.copy_in(arenas_->base(Role::kBatch) + slot.offset, std::as_bytes(values));
}

void Generator::put_tables(std::int64_t length) {
  if (!programs_->layout().contains(Role::kBatch, batch_input::kRopeCos)) return;
  if (!model_.tables_depend_on_length() || has_cache()) length = max_length_;
  if (length == table_length_) return;
  table_length_ = length;
  const Slot& slot = programs_->layout().find(Role::kBatch, batch_input::kRopeCos);
  std::vector<float> cosines(static_cast<std::size_t>(slot.spec.numel())), sines(cosines.size());
  model_.fill_tables(length, cosines, sines);
  const auto copy = [&](const char* name, const std::vector<float>& table) {
    device_.copy_in(arenas_->base(Role::kBatch) + programs_->layout().find(Role::kBatch, name).offset,
                    std::as_bytes(std::span(table)));
  };
  copy(batch_input::kRopeCos, cosines);
  copy(batch_input::kRopeSin, sines);
}

std::vector<std::vector<float>> Generator::run(Stage& stage, std::size_t rows) {
  stage.executor->run();
  const BufferRef& ref = stage.program.output("logits");
  std::vector<std::byte> raw(ref.spec.bytes());
  device_.copy_out(raw, arenas_->base(ref.arena) + ref.offset);
  const auto vocab = static_cast<std::size_t>(ref.spec.shape[1]);
  const std::size_t size = size_of(ref.spec.dtype);
  std::vector<std::vector<float>> logits(rows, std::vector<float>(vocab));
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < vocab; ++i)
      logits[r][i] = static_cast<float>(load_float(ref.spec.dtype, raw.data() + (r * vocab + i) * size));
  }
  return logits;
}

// Texts one after the other in one row, as documents that do not see each other.
std::vector<std::vector<float>> Generator::read_whole(std::span<Text* const> texts) {
  std::vector<std::int32_t> ids, positions, starts, cache_rows, last;
  for (const Text* text : texts) {
    const auto start = static_cast<std::int32_t>(ids.size());
    for (std::size_t i = 0; i < text->ids.size(); ++i) {
      positions.push_back(static_cast<std::int32_t>(i));
      starts.push_back(start);
      cache_rows.push_back(static_cast<std::int32_t>(text->slot * max_length_) + static_cast<std::int32_t>(i));
    }
    ids.insert(ids.end(), text->ids.begin(), text->ids.end());
    last.push_back(static_cast<std::int32_t>(ids.size()) - 1);
  }
  put_tables(static_cast<std::int64_t>(texts.front()->ids.size()));
  Stage& now = stage(has_cache() ? CacheUse::kFill : CacheUse::kNone, static_cast<std::int64_t>(ids.size()));
  const auto size = static_cast<std::size_t>(now.tokens);
  starts.resize(size, static_cast<std::int32_t>(ids.size()));
  ids.resize(size, 0);
  positions.resize(size, 0);
  cache_rows.resize(size, -1);
  last.resize(static_cast<std::size_t>(programs_->shape().sequences), 0);
  put(batch_input::kIds, ids);
  put(batch_input::kPositions, positions);
  put(batch_input::kSeqStart, starts);
  put(batch_input::kCacheRow, cache_rows);
  put(batch_input::kRows, last);
  for (Text* text : texts) text->read = true;
  return run(now, texts.size());
}

std::vector<std::vector<float>> Generator::read_next(std::span<Text* const> texts) {
  put_tables(max_length_);
  Stage& now = stage(CacheUse::kExtend, static_cast<std::int64_t>(texts.size()));
  const auto size = static_cast<std::size_t>(now.tokens);
  std::vector<std::int32_t> ids(size, 0), positions(size, 0), cache_rows(size, -1), begin(size, 0), end(size, 0);
  std::vector<std::int32_t> rows(size);
  std::iota(rows.begin(), rows.end(), 0);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    ids[i] = texts[i]->ids.back();
    positions[i] = static_cast<std::int32_t>(texts[i]->ids.size()) - 1;
    begin[i] = static_cast<std::int32_t>(texts[i]->slot * max_length_);
    cache_rows[i] = begin[i] + positions[i];
    end[i] = cache_rows[i] + 1;
  }
  put(batch_input::kIds, ids);
  put(batch_input::kPositions, positions);
  put(batch_input::kCacheRow, cache_rows);
  put(batch_input::kCacheBegin, begin);
  put(batch_input::kCacheEnd, end);
  put(batch_input::kRows, rows);
  return run(now, texts.size());
}

std::vector<float> Generator::logits(const Tokens& ids) {
  check(!ids.empty(), "no token to continue");
  check(static_cast<std::int64_t>(ids.size()) <= max_length_, "a text longer than its generator allows");
  Text text{0, 0, ids, ids.size(), RandomStream(0, 0), false};
  Text* const one[] = {&text};
  return std::move(read_whole(one).front());
}

// The next token of every text: those that are known by one program, new ones by as few others as hold them.
void Generator::step(std::vector<Text>& active, const GenerationOptions& options) {
  std::vector<std::pair<Text*, std::vector<float>>> drawn;
  std::vector<Text*> group;
  const auto finish = [&](bool whole) {
    if (group.empty()) return;
    std::vector<std::vector<float>> logits = whole ? read_whole(group) : read_next(group);
    for (std::size_t i = 0; i < group.size(); ++i) drawn.emplace_back(group[i], std::move(logits[i]));
    group.clear();
  };
  for (Text& text : active) {
    if (has_cache() && text.read) group.push_back(&text);
  }
  finish(false);
  std::int64_t tokens = 0;
  for (Text& text : active) {
    if (has_cache() && text.read) continue;
    const auto length = static_cast<std::int64_t>(text.ids.size());
    if (!has_cache() || tokens + length > programs_->shape().fill_tokens) {
      finish(true);
      tokens = 0;
    }
    group.push_back(&text);
    tokens += length;
  }
  finish(true);
  for (auto& [text, logits] : drawn)
    text->ids.push_back(sample_token(logits, text->ids, options.sampling, text->random));
}

std::vector<Generator::Tokens> Generator::generate(const std::vector<Tokens>& prompts,
                                                   const GenerationOptions& options) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<std::int64_t>(prompts[i].size());
    check(length > 0, "no token to continue");
    if (length < max_length_) continue;
    throw usage_error(fmt::format("prompt {} of {} tokens leaves no room for a new token: the most is {}", i + 1,
                                  length, max_length_))
        .mend("shorten the prompt or raise --max_length");
  }
  std::vector<Tokens> made(prompts.size());
  std::vector<Text> active;
  std::vector<std::int64_t> free;
  for (std::int64_t slot = batch_; slot-- > 0;) free.push_back(slot);
  std::size_t next = 0;
  while (next < prompts.size() || !active.empty()) {
    while (next < prompts.size() && !free.empty()) {
      active.push_back({next, free.back(), prompts[next], prompts[next].size(),
                        RandomStream(options.sampling.seed, kStream + (std::uint64_t{next} << 8)), false});
      free.pop_back();
      ++next;
    }
    step(active, options);
    std::erase_if(active, [&](Text& text) {
      const std::int32_t token = text.ids.back();
      const auto length = static_cast<std::int64_t>(text.ids.size());
      const bool goes_on = !options.on_token || options.on_token(text.index, token);
      const bool stops =
          std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end();
      if (goes_on && !stops && length < max_length_ &&
          length - static_cast<std::int64_t>(text.prompt) < options.max_new_tokens)
        return false;
      made[text.index].assign(text.ids.begin() + static_cast<std::ptrdiff_t>(text.prompt), text.ids.end());
      free.push_back(text.slot);
      return true;
    });
  }
  return made;
}

}  // namespace convoy
