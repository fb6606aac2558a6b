// convoy transcribe FILE… --model FOLDER
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "audio/manifest.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/parallel.h"
#include "checkpoint/model_folder.h"
#include "cli/commands.h"
#include "config/value.h"
#include "devices/make_device.h"
#include "text/tokenizer.h"
#include "train/adapter_io.h"
#include "train/speech_evaluation.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostWindows = 21;  // of one text: what GLM-ASR's processor takes (655 s)

// What is given of FallbackOptions; "": what the model's files or openai-whisper say.
struct FallbackWords {
  std::string temperature, compression_ratio_threshold, logprob_threshold, no_speech_threshold;
};

struct Arguments {
  std::vector<std::string> files;
  std::string model, adapter, tokenizer, dtype, device = "cpu";
  std::string output = "txt", output_dir, manifest_format = "auto", metrics, normalize = "basic";
  TranscriberOptions how;
  FallbackWords fallback;
  std::optional<bool> condition_on_prev;
  bool timestamps = false, no_timestamps = false, skip_bad = false, stats = false;
  int threads = 0;
};

bool is_manifest(const fs::path& path) {
  if (fs::is_directory(path)) return true;
  const std::string extension = without_compression(path).extension().string();
  for (const char* known : {".jsonl", ".json", ".ndjson", ".tsv", ".tar", ".tgz"}) {
    if (extension == known) return true;
  }
  return path.filename() == "wav.scp" || path.filename().string().ends_with(".trans.txt");
}

// Recordings by name, and those of manifests with what was said in them.
std::vector<Utterance> collect(const Arguments& arguments) {
  ManifestOptions options;
  options.format = parse_manifest_format(arguments.manifest_format);
  options.need_text = false;
  options.check_files = false;  // a recording that is not there is one that cannot be read
  options.skip_bad_samples = arguments.skip_bad;
  std::vector<Utterance> all;
  for (const std::string& pattern : arguments.files) {
    const std::vector<fs::path> paths = expand_glob(pattern);
    if (paths.empty())
      throw usage_error(fmt::format("no file matches '{}'", pattern)).mend("check the path and the current folder");
    for (const fs::path& path : paths) {
      if (options.format == ManifestFormat::kAuto && !is_manifest(path)) {
        Utterance one;
        one.audio = path.string();
        all.push_back(std::move(one));
        continue;
      }
      DataReport report;
      std::vector<Utterance> some = read_manifest(path, options, &report);
      for (const DataReport::Skipped& each : report.examples) log_warning("left out {}: {}", each.where, each.reason);
      all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    }
  }
  return all;
}

// The transcripts in the order of the recordings, as one text or as a file for each.
class Transcripts {
 public:
  Transcripts(const std::vector<Utterance>& utterances, const Arguments& arguments)
      : utterances_(utterances), arguments_(arguments) {
    if (arguments.output_dir.empty()) {
      if (utterances.size() > 1 && (arguments.output == "srt" || arguments.output == "vtt"))
        throw usage_error("subtitles of several recordings need a file each").mend("give --output_dir FOLDER");
      return;
    }
    fs::create_directories(arguments.output_dir);
    std::map<std::string, std::size_t> names;
    for (std::size_t i = 0; i < utterances.size(); ++i) {
      const auto [place, fresh] = names.try_emplace(file_of(i).string(), i);
      if (!fresh)
        throw usage_error(fmt::format("two recordings would be written to {}: {} and {}", place->first,
                                      utterances[place->second].audio, utterances[i].audio))
            .mend("transcribe them in two calls, or give the manifest's records an id each");
    }
  }
  void add(std::size_t i, const Transcript& transcript) {
    score(utterances_[i], transcript);
    if (arguments_.output_dir.empty()) {
      waiting_[i] = format(i, transcript);
    } else {
      write_file_atomic(file_of(i), format(i, transcript));
      waiting_[i] = "";
    }
    flush();
  }
  void skip(std::size_t i) {
    waiting_[i] = "";
    flush();
  }
  void report() const {
    if (references_ == 0) return;
    const std::string text = fmt::format(
        "WER {:.2f} % ({} errors in {} words), CER {:.2f} % ({} in {} characters), of {} recordings with a transcript",
        100 * errors_.words.rate(), errors_.words.errors(), errors_.words.reference, 100 * errors_.characters.rate(),
        errors_.characters.errors(), errors_.characters.reference, references_);
    fmt::print(stderr, "{}\n", text);
    if (arguments_.metrics.empty()) return;
    const auto figures = [](const EditCounts& counts) {
      return Json{{"rate", counts.rate()},
                  {"substitutions", counts.substitutions},
                  {"insertions", counts.insertions},
                  {"deletions", counts.deletions},
                  {"reference", counts.reference}};
    };
    const Json all{{"wer", errors_.words.rate()},
                   {"cer", errors_.characters.rate()},
                   {"recordings", references_},
                   {"words", figures(errors_.words)},
                   {"characters", figures(errors_.characters)}};
    write_file_atomic(arguments_.metrics, all.dump(2) + "\n");
  }

 private:
  std::string name(std::size_t i) const { return utterances_[i].id.empty() ? utterances_[i].audio : utterances_[i].id; }
  fs::path file_of(std::size_t i) const {
    std::string stem = utterances_[i].id.empty() ? fs::path(utterances_[i].audio).stem().string() : utterances_[i].id;
    for (char& c : stem) c = c == '/' ? '_' : c;
    return fs::path(arguments_.output_dir) / (stem + "." + arguments_.output);
  }
  void score(const Utterance& said, const Transcript& heard) {
    if (said.text.empty()) return;
    errors_.add(said.text, heard.text, arguments_.normalize);
    ++references_;
  }
  std::string format(std::size_t i, const Transcript& made) const {
    if (arguments_.output == "srt") return to_srt(made.segments);
    if (arguments_.output == "vtt") return to_vtt(made.segments);
    if (arguments_.output == "txt") {
      const bool named = arguments_.output_dir.empty() && utterances_.size() > 1;
      return (named ? name(i) + "\t" : "") + made.text + "\n";
    }
    Json record{{"audio", utterances_[i].audio}, {"text", made.text}, {"duration", made.seconds}};
    if (!utterances_[i].id.empty()) record["id"] = utterances_[i].id;
    if (!made.language.empty()) record["language"] = made.language;
    if (!utterances_[i].text.empty()) record["reference"] = utterances_[i].text;
    record["segments"] = Json::array();
    for (std::size_t s = 0; s < made.segments.size(); ++s) {
      const Cue& cue = made.segments[s];
      const WindowScore& score = made.scores.at(s);
      record["segments"].push_back({{"start", cue.start},
                                    {"end", cue.end},
                                    {"text", cue.text},
                                    {"avg_logprob", score.avg_logprob},
                                    {"compression_ratio", score.compression_ratio},
                                    {"no_speech_prob", score.no_speech_prob ? Json(*score.no_speech_prob) : Json()},
                                    {"temperature", score.temperature}});
    }
    return record.dump() + "\n";
  }
  void flush() {
    for (auto first = waiting_.find(next_); first != waiting_.end(); first = waiting_.find(next_)) {
      fmt::print("{}", first->second);
      waiting_.erase(first);
      ++next_;
    }
    std::fflush(stdout);
  }

  const std::vector<Utterance>& utterances_;
  const Arguments& arguments_;
  std::map<std::size_t, std::string> waiting_;  // for those before them
  std::size_t next_ = 0;
  SpeechErrors errors_;
  std::int64_t references_ = 0;
};

// Chooses how many windows one text hears (all of the longest recording, as far as the model goes), and no more texts
// at once than there are to hear: a program is planned for all of them.
void fit_to_recordings(const Arguments& arguments, const Model& model, const std::vector<Utterance>& utterances,
                       TranscriberOptions& how) {
  const AudioInput input = model.audio().value();
  const double window = SpeechFeatures(input, 1, input.frames).window_seconds();
  const UtteranceReader reader;
  std::vector<double> windows;
  for (const Utterance& utterance : utterances) {
    try {
      const double seconds = reader.measure(utterance);
      windows.push_back(seconds < 0 ? 1e6 : std::max(1.0, std::ceil(seconds / window)));
    } catch (const Error&) {  // it is reported when it is read
    }
  }
  if (windows.empty()) return;
  if (input.audio_token >= 0 && arguments.output != "srt" && arguments.output != "vtt") {
    const std::int64_t places = std::max<std::int64_t>(1, input.frames / input.frames_per_token);
    const std::int64_t room = std::max<std::int64_t>(1, model.max_positions() / 2 / places);
    const double longest = *std::max_element(windows.begin(), windows.end());
    how.windows =
        static_cast<std::int64_t>(std::min({longest, static_cast<double>(kMostWindows), static_cast<double>(room)}));
  }
  double texts = 0;
  for (const double each : windows)
    texts += how.window_by_window() ? 1 : std::ceil(each / static_cast<double>(how.windows));
  how.batch = static_cast<std::int64_t>(std::min(static_cast<double>(how.batch), texts));
}

double number(const std::string& text, const char* name, const char* wanted) {
  if (const auto value = parse_real(text)) return *value;
  throw usage_error(fmt::format("`--{}` must be {}, not '{}'", name, wanted, text)).at("command line");
}

void take_threshold(const std::string& text, const char* name, std::optional<double>& threshold) {
  if (text.empty()) return;
  threshold.reset();
  if (text != "none") threshold = number(text, name, "a number or none");
}

// openai-whisper's ways for a Whisper, then what its generation_config.json says, then the command line. Other models
// say the likeliest unless the command line asks for more.
void choose_fallback(const Arguments& arguments, bool whisper, const Tokenizer& tokenizer, const ModelFolder& folder,
                     const Json& generation, TranscriberOptions& how) {
  const int best_of = static_cast<int>(how.fallback.best_of);
  const std::uint64_t seed = how.fallback.seed;
  if (whisper) {
    how.fallback = whisper_fallback();
    read_fallback(generation, (folder.folder() / "generation_config.json").string(), how.fallback);
    const auto place = generation.find("condition_on_prev_tokens");
    how.condition_on_prev = place != generation.end() && *place == Json(true);
  }
  how.fallback.best_of = best_of;
  how.fallback.seed = seed;
  const FallbackWords& given = arguments.fallback;
  if (!given.temperature.empty()) {
    how.fallback.temperatures.clear();
    std::stringstream words(given.temperature);
    for (std::string word; std::getline(words, word, ',');)
      how.fallback.temperatures.push_back(number(word, "temperature", "numbers such as 0,0.2,0.4"));
  }
  take_threshold(given.compression_ratio_threshold, "compression_ratio_threshold",
                 how.fallback.compression_ratio_threshold);
  take_threshold(given.logprob_threshold, "logprob_threshold", how.fallback.logprob_threshold);
  take_threshold(given.no_speech_threshold, "no_speech_threshold", how.fallback.no_speech_threshold);
  how.condition_on_prev = arguments.condition_on_prev.value_or(how.condition_on_prev);
  if (whisper && !no_speech_token(tokenizer)) {
    if (!given.no_speech_threshold.empty() && how.fallback.no_speech_threshold) {
      throw usage_error("the model's tokenizer has no token for silence, <|nospeech|> or <|nocaptions|>")
          .mend("leave --no_speech_threshold out: windows without speech cannot be told");
    }
    how.fallback.no_speech_threshold.reset();
  }
  const FallbackOptions& chosen = how.fallback;
  how.scores = arguments.output == "json" || chosen.best_of > 1 || chosen.compression_ratio_threshold ||
               chosen.logprob_threshold || chosen.no_speech_threshold;
}

int transcribe(Arguments arguments) {
  set_threads(arguments.threads);
  TextNormalization::named(arguments.normalize);
  const ModelAndAdapter folders = resolve_adapter(arguments.model, arguments.adapter);
  arguments.model = folders.model;
  arguments.adapter = folders.adapter;
  const ModelFolder folder(arguments.model);
  const std::string where = (folder.folder() / "config.json").string();
  std::unique_ptr<Model> model = make_model(folder.config(), where);
  if (!model->audio()) {
    throw usage_error(fmt::format("a {} model hears nothing", model->family()))
        .at(where)
        .mend("take a Whisper or GLM-ASR model, or: convoy generate");
  }
  if (!arguments.adapter.empty())
    model = add_lora(std::move(model), read_adapter_config(arguments.adapter), arguments.adapter);
  const fs::path words = arguments.tokenizer.empty() ? folder.folder() : fs::path(arguments.tokenizer);
  const auto tokenizer = load_tokenizer(words);
  const std::vector<Utterance> utterances = collect(arguments);
  Transcripts transcripts(utterances, arguments);
  TranscriberOptions& how = arguments.how;
  const WeightMap stored = match_folder(*model, folder);
  how.dtype = stored_dtype(stored);
  if (!arguments.dtype.empty()) {
    const auto named = parse_dtype(arguments.dtype);
    if (!named || !is_floating(*named))
      throw usage_error(fmt::format("'{}' is no dtype", arguments.dtype)).mend("take f32, bf16 or f16");
    how.dtype = *named;
  }
  const bool subtitles = arguments.output == "srt" || arguments.output == "vtt";
  how.timestamps = arguments.timestamps || (subtitles && !arguments.no_timestamps && model->audio()->audio_token < 0 &&
                                            TimestampTokens(*tokenizer).count > 0);
  const auto generation_file = folder.folder() / "generation_config.json";
  const Json generation = fs::exists(generation_file) ? read_json(generation_file) : folder.config();
  choose_fallback(arguments, model->audio()->audio_token < 0, *tokenizer, folder, generation, how);
  fit_to_recordings(arguments, *model, utterances, how);
  const std::unique_ptr<Device> device = make_device(arguments.device);
  Transcriber transcriber(*device, *model, *tokenizer, folder.config(), generation, where, how);
  load_weights(transcriber.store(), folder);
  if (!arguments.adapter.empty()) load_adapter(transcriber.store(), arguments.adapter);

  const auto begin = std::chrono::steady_clock::now();
  const UtteranceReader reader;
  std::vector<std::size_t> taken;  // by number of the transcript
  std::size_t place = 0, bad = 0;
  double heard = 0;
  const auto next = [&]() -> std::optional<Clip> {
    DecodeOptions decoding;
    decoding.sampling_rate = kSpeechRate;
    while (place < utterances.size()) {
      const std::size_t now = place++;
      try {
        Audio audio = reader.decode(utterances[now], decoding);
        if (audio.silent()) log_warning("{}: nothing but silence", utterances[now].audio);
        heard += audio.seconds();
        taken.push_back(now);
        return Clip{std::move(audio.samples), utterances[now].language};
      } catch (Error& error) {
        if (error.status() == Status::kInternal) throw;
        if (!arguments.skip_bad) {
          throw error.mend((error.remedy().empty() ? "" : error.remedy() + "; ") +
                           "--skip_bad leaves out recordings that cannot be read");
        }
        log_warning("left out: {}", error.what());
        ++bad;
        transcripts.skip(now);
      }
    }
    return std::nullopt;
  };
  transcriber.transcribe(next, [&](std::size_t index, const Transcript& made) { transcripts.add(taken[index], made); });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  transcripts.report();
  if (bad > 0) log_warning("{} of {} recordings could not be read and were left out", bad, utterances.size());
  if (arguments.stats) {
    fmt::print(stderr, "{:.1f} s of sound in {:.2f} s: {:.1f} times as fast; memory {}\n", heard, seconds.count(),
               heard / seconds.count(), human_bytes(transcriber.bytes()));
    const TranscriberCounts& counts = transcriber.counts();
    fmt::print(stderr, "{} windows, {} of them decoded again, {} without speech\n", counts.windows, counts.again,
               counts.silent);
  }
  return 0;
}

void add_fallback_options(CLI::App& app, Arguments& arguments) {
  TranscriberOptions& how = arguments.how;
  FallbackWords& words = arguments.fallback;
  app.add_option("--temperature", words.temperature,
                 "a window that fails a threshold is decoded again at the next of these; 0: the likeliest token "
                 "(default: generation_config.json's, else Whisper 0,0.2,0.4,0.6,0.8,1, GLM-ASR 0)");
  app.add_option("--compression_ratio_threshold,--compression-ratio-threshold", words.compression_ratio_threshold,
                 "a text whose bytes zlib makes fewer than by this factor repeats itself (default: Whisper 2.4); none");
  app.add_option("--logprob_threshold,--logprob-threshold", words.logprob_threshold,
                 "a text with a lower mean log-probability fails (default: Whisper -1); none");
  app.add_option("--no_speech_threshold,--no-speech-threshold", words.no_speech_threshold,
                 "Whisper: a window that fails --logprob_threshold and holds no speech with more than this probability "
                 "is left out (default: 0.6); none");
  app.add_option("--best_of,--best-of", how.fallback.best_of,
                 "texts drawn at temperatures above 0, of which the likeliest counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", how.fallback.seed, "of what is drawn at temperatures above 0")->capture_default_str();
  app.add_flag(
      "--condition_on_prev_tokens,!--no_condition_on_prev_tokens,--condition-on-prev-tokens,"
      "!--no-condition-on-prev-tokens",
      arguments.condition_on_prev, "Whisper: each window is told what was said before it");
  app.add_option("--initial_prompt,--initial-prompt", how.initial_prompt,
                 "Whisper: text that is told to a recording's first window, such as names and their spelling");
}

}  // namespace

int transcribe_command(const Words& words) {
  Arguments arguments;
  TranscriberOptions& how = arguments.how;
  CLI::App app("write down what is said in recordings", "transcribe");
  app.add_option("files", arguments.files,
                 "recordings, or manifests of them (.jsonl, Common Voice .tsv, LibriSpeech and Kaldi folders, .tar); "
                 "globs")
      ->required();
  app.add_option("-m,--model", arguments.model, "a folder with a Whisper or GLM-ASR model")->required();
  app.add_option("--adapter", arguments.adapter, "folder of a LoRA adapter of that model");
  app.add_option("-f,--output", arguments.output, "txt, srt, vtt or json (a line for each recording)")
      ->check(CLI::IsMember({"txt", "srt", "vtt", "json"}))
      ->capture_default_str();
  app.add_option("-o,--output_dir,--output-dir", arguments.output_dir,
                 "write a file for each recording into this folder");
  app.add_option("--language", how.language,
                 "Whisper: the language spoken, such as en (default: the manifest's, else the model tells); none: a "
                 "prompt without");
  app.add_option("--task", how.task, "Whisper: transcribe or translate (into English)")
      ->check(CLI::IsMember({"transcribe", "translate"}))
      ->capture_default_str();
  app.add_flag("--timestamps", arguments.timestamps,
               "Whisper: let the model say when (default for srt and vtt where its tokenizer has times)");
  app.add_flag("--no_timestamps,--no-timestamps", arguments.no_timestamps, "one segment for each window instead");
  app.add_option("-b,--batch_size,--batch-size", how.batch, "windows at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--num_beams,--num-beams", how.beams, "beams of a search; 1: always the likeliest token")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--length_penalty,--length-penalty", how.length_penalty, "of beam search: larger favours longer texts")
      ->capture_default_str();
  app.add_option("--max_new_tokens,--max-new-tokens", how.max_new_tokens, "of a window")->check(CLI::PositiveNumber);
  add_fallback_options(app, arguments);
  app.add_flag("--skip_bad,--skip-bad", arguments.skip_bad,
               "leave out recordings that cannot be read, instead of stopping at the first");
  app.add_option("--manifest_format,--manifest-format", arguments.manifest_format,
                 "what the files are: jsonl, common_voice, librispeech, kaldi or tar")
      ->capture_default_str();
  app.add_option("--normalize", arguments.normalize,
                 "before texts are compared for WER and CER: none, basic, words or chinese")
      ->capture_default_str();
  app.add_option("--metrics", arguments.metrics, "write WER and CER into this JSON file");
  app.add_option("--tokenizer", arguments.tokenizer, "a tokenizer's folder or file (default: the model's)");
  app.add_option("--dtype", arguments.dtype, "f32, bf16 or f16 (default: as stored)");
  app.add_option("--device", arguments.device, "cpu or cuda")->capture_default_str();
  app.add_option("--threads", arguments.threads, "threads (0 = all cores)");
  app.add_flag("--stats", arguments.stats, "speed and memory");
  if (!parse_words(app, words)) return 0;
  return transcribe(std::move(arguments));
}

}  // namespace convoy
