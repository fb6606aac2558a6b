#include "train/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"

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

GenerationShape generation_shape(const Model& model, const GeneratorRoom& room) {
  std::int64_t length = room.max_length;
  if (model.positions_are_learned()) length = std::min(length, model.max_positions());
  check(length > 0 && room.batch > 0 && room.beams > 0, "a generator needs room for a token");
  GenerationShape shape;
  shape.dtype = room.dtype;
  shape.cache = room.cache && !tables_vary(model, length);
  shape.sequences = shape.cache ? room.batch * room.beams : 1;
  shape.capacity = length;
  shape.fill_tokens = shape.sequences == 1 ? length : std::min(std::max(length, kFillTokens), length * room.batch);
  if (const auto audio = model.audio()) {
    shape.clips = shape.cache ? room.batch : 1;
    shape.clip_windows = room.audio_windows;
    shape.audio_frames = audio->frames;
  }
  if (shape.cache_rows() > std::int64_t{1} << 31) {
    throw usage_error(fmt::format("{} texts of {} tokens are more than can be numbered", room.batch, length))
        .mend("lower --batch_size or --max_length");
  }
  return shape;
}

}  // namespace

std::size_t generator_bytes(const WorkspaceSizes& workspaces, const Model& model, const GeneratorRoom& room) {
  return GenerationPrograms(model, generation_shape(model, room), workspaces).sizes().total();
}

Generator::Generator(Device& device, const Model& model, DType dtype, std::int64_t max_length, std::int64_t batch,
                     bool cache)
    : Generator(device, model, {dtype, max_length, batch, 1, cache, 1}) {}

Generator::Generator(Device& device, const Model& model, const GeneratorRoom& room)
    : device_(device),
      model_(model),
      max_length_(room.max_length),
      batch_(room.batch),
      beams_(room.beams),
      audio_(model.audio()) {
  const GenerationShape shape = generation_shape(model, room);
  max_length_ = shape.capacity;
  programs_ = std::make_unique<GenerationPrograms>(model, shape, device);
  arenas_ = std::make_unique<Arenas>(device, programs_->sizes());
  store_ = std::make_unique<ParameterStore>(device, model, programs_->layout(), *arenas_);
  // What is shorter is the beginning of what is longer.
  for (const BatchConstant& each : model.constants(programs_->fill_options(shape.fill_tokens, shape.windows())))
    put(each.name.c_str(), each.bytes);
}

Generator::Stage& Generator::stage(CacheUse use, std::int64_t tokens, std::int64_t windows) {
  const bool extend = use == CacheUse::kExtend;
  const std::int64_t most = extend ? programs_->shape().sequences : programs_->shape().fill_tokens;
  std::int64_t size = padded(tokens, extend ? 1 : kShortest, most);
  while (true) {
    const auto [place, fresh] = stages_.try_emplace({use, size, windows});
    Stage& made = place->second;
    if (fresh) {
      made.tokens = size;
      made.windows = windows;
      made.program = extend ? programs_->extend(size) : programs_->fill(size, windows);
      if (programs_->fits(made.program)) made.executor = std::make_unique<Executor>(device_, made.program, *arenas_);
    }
    if (made.executor) return made;
    if (size < most) {
      size = std::min(2 * size, most);
    } else {
      check(windows < programs_->shape().windows(), "the largest program of a generator does not fit its own arenas");
      ++windows;
    }
  }
}

void Generator::put(const char* name, std::span<const std::byte> bytes) {
  if (!programs_->layout().contains(Role::kBatch, name)) return;
  const Slot& slot = programs_->layout().find(Role::kBatch, name);
  check(bytes.size() <= slot.spec.bytes(), "more than the programs were made for");
  device_.copy_in(arenas_->base(Role::kBatch) + slot.offset, bytes);
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

std::int64_t Generator::windows_of(const Text& text) const {
  if (!audio_) return 0;
  return static_cast<std::int64_t>(text.features.size()) / (audio_->frames * audio_->mel_bins);
}

std::int64_t Generator::heard_frames(const Text& text) const {
  if (!audio_) return 0;
  const std::int64_t all = windows_of(text) * ((audio_->frames + 1) / 2);
  return audio_->masks_padding && text.sound > 0 ? std::min((text.sound + 1) / 2, all) : all;
}

// The recordings of `texts`, one after the other; `ids` are the tokens of the program.
void Generator::put_audio(std::span<Text* const> texts, const Stage& stage, std::span<const std::int32_t> ids) {
  if (!audio_) return;
  const std::int64_t heard = (audio_->frames + 1) / 2;  // encoder frames of a window
  std::vector<float> features(static_cast<std::size_t>(stage.windows * audio_->frames * audio_->mel_bins), 0.0f);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(stage.windows * heard), -1);
  std::vector<std::int32_t> begin(ids.size(), 0), end(ids.size(), 0), places(ids.size(), -1);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(stage.windows), 0);  // that are sound
  std::int64_t window = 0;
  std::size_t token = 0;
  for (const Text* text : texts) {
    const std::int64_t windows = windows_of(*text);
    std::copy(text->features.begin(), text->features.end(),
              features.begin() + window * audio_->frames * audio_->mel_bins);
    const std::int64_t kept = text->clip * programs_->shape().clip_windows * heard;
    for (std::int64_t f = 0; f < windows * heard; ++f)
      rows[static_cast<std::size_t>(window * heard + f)] = static_cast<std::int32_t>(kept + f);
    std::int64_t place = audio_->frames_per_token > 0 ? window * audio_->frames / audio_->frames_per_token : 0;
    for (std::size_t i = 0; i < text->ids.size(); ++i, ++token) {
      begin[token] = static_cast<std::int32_t>(window * heard);
      end[token] = begin[token] + static_cast<std::int32_t>(heard_frames(*text));
      if (audio_->audio_token >= 0 && ids[token] == audio_->audio_token && i < text->prompt)
        places[token] = static_cast<std::int32_t>(place++);
    }
    std::int64_t sound = heard_frames(*text);
    for (std::int64_t w = 0; w < windows; ++w, sound -= heard)
      lengths[static_cast<std::size_t>(window + w)] =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(sound, 0, heard));
    window += windows;
  }
  if (audio_->masks_padding) {
    HeardInputs inputs;
    model_.mark_heard(programs_->fill_options(stage.tokens, stage.windows), lengths, inputs);
    put(batch_input::kAudioStart, inputs.start);
  }
  if (programs_->shape().dtype == DType::kF64) {
    const std::vector<double> wide(features.begin(), features.end());
    put(batch_input::kAudioFeatures, std::as_bytes(std::span(wide)));
  } else {
    put(batch_input::kAudioFeatures, std::as_bytes(std::span(features)));
  }
  put(batch_input::kHeardRow, rows);
  put(batch_input::kAudioRows, places);
  put(batch_input::kKeyBegin, begin);
  put(batch_input::kKeyEnd, end);
}

Generator::Logits Generator::run(Stage& stage, std::size_t rows) {
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
Generator::Logits Generator::read_whole(std::span<Text* const> texts) {
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
  std::int64_t windows = 0;
  for (const Text* text : texts) windows += windows_of(*text);
  Stage& now = stage(has_cache() ? CacheUse::kFill : CacheUse::kNone, static_cast<std::int64_t>(ids.size()), windows);
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
  put_audio(texts, now, ids);
  for (Text* text : texts) text->read = true;
  return run(now, texts.size());
}

Generator::Logits Generator::read_next(std::span<Text* const> texts) {
  put_tables(max_length_);
  Stage& now = stage(CacheUse::kExtend, static_cast<std::int64_t>(texts.size()));
  const auto size = static_cast<std::size_t>(now.tokens);
  std::vector<std::int32_t> ids(size, 0), positions(size, 0), cache_rows(size, -1), begin(size, 0), end(size, 0);
  std::vector<std::int32_t> rows(size), key_begin(size, 0), key_end(size, 0);
  const std::int64_t heard = audio_ ? (audio_->frames + 1) / 2 : 0;
  std::iota(rows.begin(), rows.end(), 0);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    ids[i] = texts[i]->ids.back();
    positions[i] = static_cast<std::int32_t>(texts[i]->ids.size()) - 1;
    begin[i] = static_cast<std::int32_t>(texts[i]->slot * max_length_);
    cache_rows[i] = begin[i] + positions[i];
    end[i] = cache_rows[i] + 1;
    key_begin[i] = static_cast<std::int32_t>(texts[i]->clip * programs_->shape().clip_windows * heard);
    key_end[i] = key_begin[i] + static_cast<std::int32_t>(heard_frames(*texts[i]));
  }
  put(batch_input::kIds, ids);
  put(batch_input::kPositions, positions);
  put(batch_input::kCacheRow, cache_rows);
  put(batch_input::kCacheBegin, begin);
  put(batch_input::kCacheEnd, end);
  put(batch_input::kKeyBegin, key_begin);
  put(batch_input::kKeyEnd, key_end);
  put(batch_input::kRows, rows);
  return run(now, texts.size());
}

std::vector<float> Generator::logits(const Tokens& ids) {
  check(!ids.empty(), "no token to continue");
  check(static_cast<std::int64_t>(ids.size()) <= max_length_, "a text longer than its generator allows");
  check(!audio_, "logits of text alone");
  Text text{0, 0, ids, ids.size(), RandomStream(0, 0), false, 0, {}};
  Text* const one[] = {&text};
  return std::move(read_whole(one).front());
}

// Texts that are known by one program, new ones by as few others as hold them.
Generator::Logits Generator::next_logits(std::span<Text* const> texts) {
  Logits all(texts.size());
  std::vector<Text*> group;
  std::vector<std::size_t> places;
  const auto finish = [&](bool whole) {
    if (group.empty()) return;
    Logits logits = whole ? read_whole(group) : read_next(group);
    for (std::size_t i = 0; i < group.size(); ++i) all[places[i]] = std::move(logits[i]);
    group.clear();
    places.clear();
  };
  const auto known = [&](const Text& text) { return has_cache() && text.read; };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!known(*texts[i])) continue;
    group.push_back(texts[i]);
    places.push_back(i);
  }
  std::vector<bool> done(texts.size(), false);
  for (std::size_t i : places) done[i] = true;
  finish(false);
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (done[i]) continue;
    const auto length = static_cast<std::int64_t>(texts[i]->ids.size());
    if (!has_cache() || tokens + length > programs_->shape().fill_tokens) {
      finish(true);
      tokens = 0;
    }
    group.push_back(texts[i]);
    places.push_back(i);
    tokens += length;
  }
  finish(true);
  return all;
}

void Generator::apply_rule(const Text& text, std::vector<float>& logits, const GenerationOptions& options) const {
  if (options.sampling.vocab > 0 && options.sampling.vocab < static_cast<std::int64_t>(logits.size()))
    logits.resize(static_cast<std::size_t>(options.sampling.vocab));
  if (options.rule) options.rule(text.index, std::span(text.ids).subspan(text.prompt), logits);
}

std::vector<Generator::Tokens> Generator::generate(const std::vector<Tokens>& prompts,
                                                   const GenerationOptions& options) {
  std::vector<GenerationPrompt> all;
  for (const Tokens& ids : prompts) all.push_back({ids, {}});
  std::vector<Tokens> made;
  for (GeneratedText& text : generate_from(all, options)) made.push_back(std::move(text.tokens));
  return made;
}

// The next token of a text, of logits after the rule.
void Generator::draw(Text& text, std::vector<float>& logits, const GenerationOptions& options) const {
  std::vector<float> scored;
  if (options.score) scored = logits;
  const std::int32_t token = sample_token(logits, text.ids, options.sampling, text.random);
  if (options.score) text.log_probability += log_probability(scored, token);
  text.ids.push_back(token);
}

std::vector<GeneratedText> Generator::generate_from(std::span<const GenerationPrompt> prompts,
                                                    const GenerationOptions& options) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<std::int64_t>(prompts[i].ids.size());
    check(length > 0, "no token to continue");
    if (audio_) {
      const std::int64_t window = audio_->frames * audio_->mel_bins;
      const auto floats = static_cast<std::int64_t>(prompts[i].features.size());
      check(floats > 0 && floats % window == 0 && floats / window <= programs_->shape().clip_windows,
            "features of no, broken or too many windows of audio");
    }
    if (length < max_length_) continue;
    throw usage_error(fmt::format("prompt {} of {} tokens leaves no room for a new token: the most is {}", i + 1,
                                  length, max_length_))
        .mend("shorten the prompt or raise --max_length");
  }
  if (beams_ > 1 && options.search) return beam_search(prompts, options);
  std::vector<GeneratedText> made(prompts.size());
  std::vector<Text> active;
  std::vector<std::int64_t> free;
  for (std::int64_t slot = batch_; slot-- > 0;) free.push_back(slot);
  std::size_t next = 0;
  while (next < prompts.size() || !active.empty()) {
    while (next < prompts.size() && !free.empty()) {
      const std::uint64_t stream = prompts[next].stream.value_or(kStream + (std::uint64_t{next} << 8));
      active.push_back({next, free.back(), prompts[next].ids, prompts[next].ids.size(),
                        RandomStream(options.sampling.seed, stream), false, free.back(), prompts[next].features,
                        prompts[next].sound, options.max_new_tokens + prompts[next].forced});
      free.pop_back();
      ++next;
    }
    std::vector<Text*> texts;
    for (Text& text : active) texts.push_back(&text);
    Logits logits = next_logits(texts);
    for (std::size_t i = 0; i < active.size(); ++i) apply_rule(active[i], logits[i], options);
    const auto draw_one = [&](std::int64_t i) {
      draw(active[static_cast<std::size_t>(i)], logits[static_cast<std::size_t>(i)], options);
    };
    parallel_for(static_cast<std::int64_t>(active.size()), draw_one);
    std::erase_if(active, [&](Text& text) {
      const std::int32_t token = text.ids.back();
      const auto length = static_cast<std::int64_t>(text.ids.size());
      const bool goes_on = !options.on_token || options.on_token(text.index, token);
      const bool stops =
          std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end();
      if (goes_on && !stops && length < max_length_ && length - static_cast<std::int64_t>(text.prompt) < text.most)
        return false;
      made[text.index].tokens.assign(text.ids.begin() + static_cast<std::ptrdiff_t>(text.prompt), text.ids.end());
      made[text.index].log_probability = text.log_probability;
      free.push_back(text.slot);
      return true;
    });
  }
  return made;
}

}  // namespace convoy
