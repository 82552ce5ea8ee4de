// decoder.h: the text of tokens.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "armillary/text/tokenizer/normalizer.h"

namespace armillary::tokenizer {

/// Letters become bytes (byte_alphabet.h); a token with another code point stays. One text.
struct LettersToBytes {};
/// Tokens `<0x41>` become bytes; U+FFFD for each of some in a row that are no UTF-8.
struct BytesFromTokens {};
/// All tokens become one text.
struct FuseTokens {};
/// Removes `code_point` up to `start` times from the begin of every token, `stop` times from its
/// end.
struct StripToken {
  std::uint32_t code_point = 0;
  std::size_t start = 0;
  std::size_t stop = 0;
};
/// `mark` becomes a blank; in the first token it is removed if `prepends`.
struct MarksToBlanks {
  std::string mark;
  bool prepends = true;
};

using DecoderStep = std::variant<LettersToBytes, BytesFromTokens, FuseTokens, StripToken,
                                 MarksToBlanks, ReplaceText>;

/// The text of tokens, which is UTF-8: U+FFFD stands for bytes that are not. Without steps, tokens
/// are joined by blanks, as in PyPI `tokenizers`.
std::string decoded(std::vector<std::string> tokens, const std::vector<DecoderStep>& steps);

}  // namespace armillary::tokenizer
