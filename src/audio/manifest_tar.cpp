// Tar shards in WebDataset's form. The archive's table is read here rather than by libarchive, which does not say where
// a member's bytes lie: they are decoded where they are, without unpacking.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "audio/manifest_parsers.h"

namespace convoy {
namespace {

constexpr std::uint64_t kBlock = 512;

Error damaged(const std::string& name, std::uint64_t at, std::string_view why) {
  return data_error(fmt::format("the tar file is damaged at byte {}: {}", at, why)).at(name).mend("fetch it again");
}

// A number of a header: octal digits, or with the highest bit set a big-endian one (GNU, for 8 GiB and more).
// False if it is neither.
bool header_number(std::string_view field, std::uint64_t& value) {
  value = 0;
  if ((static_cast<unsigned char>(field[0]) & 0x80U) != 0) {
    if ((static_cast<unsigned char>(field[0]) & 0x7fU) != 0) return false;
    for (const char c : field.substr(1)) {
      if ((value >> 55) != 0) return false;
      value = (value << 8) | static_cast<unsigned char>(c);
    }
    return true;
  }
  std::size_t i = field.find_first_not_of(' ');
  for (; i < field.size() && field[i] >= '0' && field[i] <= '7'; ++i)
    value = (value << 3) | std::uint64_t(field[i] - '0');
  return i >= field.size() || field[i] == '\0' || field[i] == ' ';
}

std::string_view text_field(std::string_view header, std::size_t at, std::size_t size) {
  const std::string_view field = header.substr(at, size);
  return field.substr(0, field.find('\0'));
}

bool checksum_fits(std::string_view header) {
  std::uint64_t stated = 0, sum = 0;
  if (!header_number(header.substr(148, 8), stated)) return false;
  for (std::size_t i = 0; i < kBlock; ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(header[i]);
  return sum == stated;
}

// What a pax header ("LENGTH KEY=VALUE\n" …) says of the next member.
void read_pax(std::string_view records, std::string& path, std::uint64_t& size, bool& has_size) {
  while (!records.empty()) {
    std::uint64_t length = 0;
    std::size_t i = 0;
    for (; i < records.size() && i < 9 && records[i] >= '0' && records[i] <= '9'; ++i)
      length = length * 10 + std::uint64_t(records[i] - '0');
    if (i == 0 || i >= records.size() || records[i] != ' ' || length <= i + 1 || length > records.size()) return;
    const std::string_view record = records.substr(i + 1, length - i - 2);
    records.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") path = value;
    if (key == "size" && value.size() <= 18 && value.find_first_not_of("0123456789") == std::string_view::npos &&
        !value.empty()) {
      size = std::stoull(std::string(value));
      has_size = true;
    }
  }
}

constexpr std::array<std::string_view, 10> kAudioExtensions = {"wav",  "flac", "mp3", "ogg", "oga",
                                                               "opus", "aiff", "aif", "au",  "caf"};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// WebDataset's key: the path up to the first dot of the file's name.
std::pair<std::string, std::string> split_key(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  const std::size_t dot = name.find('.', slash == std::string::npos ? 0 : slash + 1);
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), lower(name.substr(dot + 1))};
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// The members of one key.
struct Group {
  std::string key;
  const TarMember *audio = nullptr, *text = nullptr, *json = nullptr;
  bool twice = false, other = false;

  void add(const TarMember& member, const std::string& extension) {
    const bool is_audio =
        std::find(kAudioExtensions.begin(), kAudioExtensions.end(), extension) != kAudioExtensions.end();
    const TarMember** place = is_audio ? &audio : extension == "txt" ? &text : extension == "json" ? &json : nullptr;
    if (place == nullptr) {
      other = true;
      return;
    }
    twice = twice || *place != nullptr;
    *place = &member;
  }
};

void read_group(const Group& group, std::string_view bytes, const std::string& name, bool need_text,
                Utterance& utterance) {
  if (group.twice) throw data_error(fmt::format("'{}' has two members of the same kind", group.key));
  if (group.audio == nullptr)
    throw data_error(fmt::format("'{}' has no recording (wav, flac, mp3, ogg, opus)", group.key));
  if (group.audio->size == 0) throw data_error(fmt::format("the recording {} is empty", group.audio->name));
  const auto content = [&](const TarMember& member) { return bytes.substr(member.offset, member.size); };
  if (group.json != nullptr) {
    const bool text_there = group.text != nullptr || !need_text;
    parse_json_utterance(content(*group.json), false, {}, false, !text_there, utterance);
    utterance.start = utterance.seconds = 0;  // the member is already the part
  }
  if (group.text != nullptr) {
    const std::string_view text = trimmed(content(*group.text));
    require_valid_text(text);
    utterance.text = text;
  } else if (group.json == nullptr && need_text) {
    throw data_error(fmt::format("'{}' has no transcript (txt or json)", group.key));
  }
  utterance.audio = name;
  utterance.id = group.key;
  utterance.offset = group.audio->offset;
  utterance.size = group.audio->size;
}

}  // namespace

std::vector<TarMember> list_tar(std::string_view bytes, const std::string& name) {
  std::vector<TarMember> members;
  std::string next_path;  // from a header before the member's own
  std::uint64_t next_size = 0;
  bool has_size = false;
  std::uint64_t at = 0;
  while (at + kBlock <= bytes.size()) {
    const std::string_view header = bytes.substr(at, kBlock);
    if (header.find_first_not_of('\0') == std::string_view::npos) return members;
    if (!checksum_fits(header))
      throw damaged(name, at, at == 0 ? "this is no tar header" : "a header's checksum is wrong");
    std::uint64_t size = 0;
    if (!header_number(header.substr(124, 12), size)) throw damaged(name, at, "a member's size is no number");
    const char type = header[156];
    const bool describes_next = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    if (has_size && !describes_next) size = next_size;
    const std::uint64_t data = at + kBlock;
    if (size > bytes.size() - data) throw damaged(name, at, "the last member is cut short");
    const std::string_view content = bytes.substr(data, size);
    if (type == 'x') {
      read_pax(content, next_path, next_size, has_size);
    } else if (type == 'L') {
      next_path = content.substr(0, content.find('\0'));
    } else if (!describes_next) {
      if (type == '0' || type == '\0' || type == '7') {
        std::string path = next_path;
        if (path.empty()) {
          if (header.substr(257, 6) == std::string_view("ustar\0", 6)) path = text_field(header, 345, 155);
          if (!path.empty()) path += '/';
          path += text_field(header, 0, 100);
        }
        members.push_back({std::move(path), data, size});
      }
      next_path.clear();
      has_size = false;
    }
    at = data + (size + kBlock - 1) / kBlock * kBlock;
  }
  if (at < bytes.size()) throw damaged(name, at, "it ends within a header");
  return members;
}

void parse_tar(std::string_view bytes, const std::string& name, UtteranceSink& sink) {
  if (bytes.starts_with("\x1f\x8b") || bytes.starts_with("\x28\xb5\x2f\xfd")) {
    throw storage_error("a compressed tar file cannot be read at any place").at(name).mend("decompress it first");
  }
  const std::vector<TarMember> members = list_tar(bytes, name);
  Group group;
  const auto finish = [&] {
    if (group.audio == nullptr && group.text == nullptr && group.json == nullptr) return;  // a README and the like
    sink.add(fmt::format("{}: {}", name, group.key), [&](Utterance& utterance) {
      require_valid_text(group.key);
      read_group(group, bytes, name, sink.options().need_text, utterance);
    });
  };
  for (const TarMember& member : members) {
    auto [key, extension] = split_key(member.name);
    const std::size_t slash = member.name.rfind('/');
    if (member.name.compare(slash == std::string::npos ? 0 : slash + 1, 2, "._") == 0) continue;  // macOS's companions
    if (key != group.key) {
      finish();
      group = {};
      group.key = key;
    }
    group.add(member, extension);
  }
  finish();
}

}  // namespace convoy
