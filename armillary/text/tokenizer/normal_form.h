// normal_form.h: normal forms of Unicode text, as PyPI `tokenizers` 0.23 has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace armillary::tokenizer {

/// A normal form of Unicode (annex 15).
enum class NormalForm : std::uint8_t { Nfc, Nfd, Nfkc, Nfkd };

/// The normal form of UTF-8. Code points that Unicode has assigned, or given a decomposition, after
/// version 10 stay as they are, as there: ids are those with which models were trained. ASCII costs
/// one pass. @throws InvalidArgument if it gets too large.
std::string normal_form(std::string_view text, NormalForm form);

}  // namespace armillary::tokenizer
