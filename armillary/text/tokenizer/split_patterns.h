// split_patterns.h: the split patterns of published tokenizers.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "armillary/text/tokenizer/pre_tokenizer.h"

namespace armillary::tokenizer {

/// GPT-2's, which byte-level pre-tokenizers of tokenizer.json use unless they say otherwise.
extern const std::string_view kGpt2Pattern;

/// A kind of pre-tokenizer, by its name in GGUF (tokenizer.ggml.pre).
struct NamedPreTokenizer {
  std::string_view name;
  std::vector<std::string_view> patterns;  ///< Each cuts the pieces of the one before.
  bool ignores_merges = false;
  bool adds_begin = false;  ///< Unless the file says otherwise.
};

/// The kinds that are known.
const std::vector<NamedPreTokenizer>& named_pre_tokenizers();

/// A step that isolates the matches of a pattern.
SplitStep isolating(std::string_view pattern);

}  // namespace armillary::tokenizer
