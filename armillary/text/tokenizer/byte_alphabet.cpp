#include "armillary/text/tokenizer/byte_alphabet.h"

#include <array>

#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {
namespace {

constexpr std::uint32_t kLetters = 0x100 + 68;  ///< One more than the largest.

/// Both directions.
struct ByteAlphabet {
  std::array<std::uint32_t, 256> letters{};
  std::array<int, kLetters> bytes{};

  constexpr ByteAlphabet() {
    bytes.fill(-1);
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool is_printable =
          (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      letters[byte] = is_printable ? byte : next++;
      bytes[letters[byte]] = static_cast<int>(byte);
    }
  }
};
constexpr ByteAlphabet kByteAlphabet;

}  // namespace

std::uint32_t letter_of_byte(unsigned char byte) {
  return kByteAlphabet.letters[byte];
}

std::optional<std::string> bytes_of_letters(std::string_view letters) {
  std::string bytes;
  for (std::size_t i = 0; i < letters.size();) {
    const std::uint32_t letter = next_code_point(letters, i);
    if (letter >= kLetters || kByteAlphabet.bytes[letter] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteAlphabet.bytes[letter]));
  }
  return bytes;
}

}  // namespace armillary::tokenizer
