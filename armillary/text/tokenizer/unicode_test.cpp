// unicode_test.cpp: categories, case and normal forms at their edges; broken UTF-8 as Python has
// it.
#include "armillary/text/tokenizer/unicode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "armillary/text/tokenizer/byte_alphabet.h"
#include "armillary/text/tokenizer/normal_form.h"

namespace armillary::tokenizer {
namespace {

using testing::ElementsAre;

bool is_of(std::uint32_t code_point, std::string_view category) {
  return (*kinds_of_category(category) >> kind_of_code_point(code_point) & 1U) != 0;
}

TEST(Unicode, CategoriesAreThoseOfUnicode16) {
  EXPECT_TRUE(is_of('a', "Ll"));
  EXPECT_TRUE(is_of(0x4E00, "Lo"));
  EXPECT_TRUE(is_of(0xD800, "Cs"));
  EXPECT_TRUE(is_of(0x10FFFF, "Cn"));
  EXPECT_TRUE(is_of('\n', "Cc"));
  // Unicode 15.1 and 16: the first and the last of a range, and their neighbours.
  EXPECT_TRUE(is_of(0x2EBF0, "Lo"));
  EXPECT_TRUE(is_of(0x2EE5D, "Lo"));
  EXPECT_TRUE(is_of(0x2EE5E, "Cn"));
  EXPECT_TRUE(is_of(0x2EBEF, "Cn"));
  int white = 0;
  int letters = 0;
  for (std::uint32_t c = 0; c < kCodePoints; ++c) {
    white += (white_space() >> kind_of_code_point(c) & 1U) != 0 ? 1 : 0;
    letters += is_of(c, "L") ? 1 : 0;
  }
  EXPECT_EQ(white, 25);
  EXPECT_EQ(letters, 141028);
  EXPECT_FALSE(kinds_of_category("X"));
  EXPECT_FALSE(kinds_of_category(""));
}

TEST(Unicode, CaseIgnoresTheLongSAndTheKelvinSign) {
  EXPECT_THAT(same_but_for_case('s'), ElementsAre('S', 's', 0x17F));
  EXPECT_THAT(same_but_for_case('K'), ElementsAre('K', 'k', 0x212A));
  EXPECT_THAT(same_but_for_case('1'), ElementsAre('1'));
}

TEST(Unicode, BrokenBytesAreReplacedAsPythonDoes) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_FALSE(with_replacements("a\xC3\xA9\xF0\x9F\x98\x80"));
  EXPECT_EQ(with_replacements("\xFF"), r);
  EXPECT_EQ(with_replacements("\xE2\x82"), r);  // one sequence, cut off
  EXPECT_EQ(with_replacements("\xE2\x82z"), r + "z");
  EXPECT_EQ(with_replacements("\xED\xA0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(with_replacements("\xF0\x80\x80"), r + r + r);  // overlong
  EXPECT_EQ(with_replacements("\xF4\x90"), r + r);          // above U+10FFFF
  EXPECT_EQ(with_replacements("a\xC0\xAFz\xF0\x9F\x98"), "a" + r + r + "z" + r);
}

TEST(Unicode, NormalFormsComposeAndLeaveWhatCameLater) {
  EXPECT_EQ(normal_form("e\xCC\x81", NormalForm::Nfc), "\xC3\xA9");
  EXPECT_EQ(normal_form("\xC3\xA9", NormalForm::Nfd), "e\xCC\x81");
  EXPECT_EQ(normal_form("\xEF\xAC\x81", NormalForm::Nfkc), "fi");
  EXPECT_EQ(normal_form("\xEF\xAC\x81", NormalForm::Nfc), "\xEF\xAC\x81");
  // U+32FF has a decomposition since Unicode 12.1.
  EXPECT_EQ(normal_form("\xE3\x8B\xBF", NormalForm::Nfkd), "\xE3\x8B\xBF");
  EXPECT_EQ(normal_form(std::string_view("a\0b\xC3\xA9", 5), NormalForm::Nfd),
            std::string("a\0be\xCC\x81", 6));
}

TEST(ByteAlphabet, IsABijection) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_code_point(letter, letter_of_byte(static_cast<unsigned char>(byte)));
    EXPECT_EQ(bytes_of_letters(letter), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(letter_of_byte(' '), 0x120U);
  EXPECT_FALSE(bytes_of_letters(" "));
  EXPECT_FALSE(bytes_of_letters("\xE2\x82\xAC"));
}

}  // namespace
}  // namespace armillary::tokenizer
