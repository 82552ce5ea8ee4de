// dit_kinds.h: the kinds of layers of a DiT (dit.h): how time and class change them, and how they
// read words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace armillary::model {

/// Scale, shift and gate of both branches of a layer.
enum class ModulationKind : std::uint8_t {
  Zero,    ///< A matrix of each layer: adaLN-zero (DiT, arXiv:2212.09748, section 3.2).
  Single,  ///< One for all, plus a table of each layer: adaLN-single (PixArt-alpha,
           ///< arXiv:2310.00426, section 2.3).
};
/// "zero" and "single", in the order of the enumerators.
const std::vector<std::string>& modulation_names();
/// @throws InvalidArgument with the nearest name, as words_kind().
ModulationKind modulation_kind(const std::string& name);

enum class WordsKind : std::uint8_t {
  Joint,  ///< Tokens in front of the patches.
  Cross,  ///< Keys and values of a cross-attention in each layer (PixArt-alpha).
};
/// "joint" and "cross", likewise.
const std::vector<std::string>& words_names();
WordsKind words_kind(const std::string& name);

}  // namespace armillary::model
