// Tokenising whole sources, and keeping the result on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "data/encode.h"
#include "data/source.h"
#include "data/token_data.h"

namespace convoy {

// Identifies what a tokenisation results in: the content of the files (not their names or times), the tokenizer and
// every setting. Reads all files once.
std::uint64_t token_key(const SourceOptions& sources, const SampleEncoder& encoder);

// Reads and tokenises all samples on the compute pool, in order, and hands them to `writer` as they come. Samples
// without a target are counted and left out; so are samples that cannot be encoded, under skip_bad_samples.
DataReport tokenize(const SourceOptions& sources, const SampleEncoder& encoder, TokenWriter& writer);

// Tokenises into memory.
std::shared_ptr<const TokenData> tokenize_to_memory(const SourceOptions& sources, const SampleEncoder& encoder);

// Tokenises into the file `folder`/tokens-KEY.bin, or opens it when it is there and whole. A damaged one, or one of
// another version, is made anew with a line in the log. The file appears only when complete; of several processes that
// want it at once, one makes it and the others wait (where the file system has locks; else each makes its own and the
// last one stays).
std::shared_ptr<const TokenData> load_or_tokenize(const std::filesystem::path& folder, const SourceOptions& sources,
                                                  const SampleEncoder& encoder);

}  // namespace convoy
