// load_tokenizer.h: a tokenizer from a path.
#pragma once

#include <string>

#include "armillary/text/tokenizer/tokenizer.h"

namespace armillary::tokenizer {

/// Reads `path`: a GGUF file, a tokenizer.json, or a folder with one. tokenizer_config.json beside
/// it names special tokens. @throws IoError if a file cannot be read or has more than 512 MiB of
/// JSON; InvalidArgument as read_huggingface and read_gguf.
Tokenizer load_tokenizer(const std::string& path);

}  // namespace armillary::tokenizer
