// huggingface.h: the parts of tokenizer.json, as PyPI `tokenizers` writes it.
#pragma once

#include <string>
#include <string_view>

#include "armillary/text/tokenizer/tokenizer.h"

namespace armillary::tokenizer {

/// Reads
///
///   model           BPE, without dropout, prefix and suffix
///   normalizer      NFC, NFD, NFKC, NFKD, Prepend, Replace of a text, Sequence
///   pre_tokenizer   ByteLevel, Split, Digits, Metaspace, Sequence
///   post_processor  TemplateProcessing of one text, ByteLevel, Sequence
///   decoder         ByteLevel, ByteFallback, Fuse, Strip, Metaspace, Replace of a text, Sequence
///   added_tokens    all but single words
///
/// `config` is the text of tokenizer_config.json, which names special tokens, or empty. `origin`
/// names the file in errors. @throws InvalidArgument that names the part that is not implemented,
/// or what is wrong with it.
TokenizerParts read_huggingface(std::string_view text, std::string_view config,
                                const std::string& origin);

}  // namespace armillary::tokenizer
