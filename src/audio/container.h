// What the first and last bytes of a recording tell, beyond what libsndfile says. Internal to audio/.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace convoy {

// Throws a data error for well-known kinds of file that are not read (MP4, AAC, WebM, …) or are no sound at all (a web
// page, a Git LFS pointer), with what to do about it. Silent about everything else.
void require_known_container(std::span<const std::byte> bytes, const std::string& name);

// How much is missing at the end of a WAV or Ogg file ("the data chunk promises …"), for which libsndfile would just
// give less; "" if nothing is, or it cannot be told. WAV files written to a pipe state no length, which is all right.
std::string missing_end(std::span<const std::byte> bytes);

}  // namespace convoy
