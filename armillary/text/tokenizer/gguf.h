// gguf.h: the parts of the tokenizer in a GGUF file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "armillary/text/tokenizer/tokenizer.h"

namespace armillary::tokenizer {

/// Reads tokenizer.ggml.model `gpt2`, byte-level BPE by merges with a pre-tokenizer of
/// named_pre_tokenizers(), and `llama`, BPE with byte fallback by the scores of tokens, as
/// SentencePiece has it. Control tokens and those of users are added tokens; control tokens are
/// special. @throws IoError as read_gguf_metadata (io/gguf.h); InvalidArgument for a value of
/// another kind, another model or pre-tokenizer by its name, and for tokens, scores or types that
/// do not fit together.
TokenizerParts read_gguf(std::span<const std::byte> file, const std::string& origin);

}  // namespace armillary::tokenizer
