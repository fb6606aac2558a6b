// Tar archives made for the tests.
#pragma once

#include <cstdio>
#include <string>

namespace convoy {

inline std::string tar_member(const std::string& name, const std::string& content, char type = '0',
                              const std::string& prefix = "") {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  char number[16];
  put(0, name.substr(0, 100));
  put(100, "0000644");
  std::snprintf(number, sizeof(number), "%011zo", content.size());
  put(124, number);
  put(136, "00000000000");
  header[156] = type;
  put(257, std::string("ustar\0", 6));
  put(263, "00");
  put(345, prefix);
  put(148, "        ");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(number, sizeof(number), "%06o", sum);
  put(148, std::string(number) + std::string("\0 ", 2));
  std::string padded = content;
  padded.resize((content.size() + 511) / 512 * 512);
  return header + padded;
}

inline std::string tar_end() {
  return std::string(1024, '\0');
}

// A pax record with its own length in front.
inline std::string pax_record(const std::string& key, const std::string& value) {
  const std::string body = " " + key + "=" + value + "\n";
  std::size_t length = body.size() + 1;
  while (std::to_string(length).size() + body.size() != length) ++length;
  return std::to_string(length) + body;
}

}  // namespace convoy
