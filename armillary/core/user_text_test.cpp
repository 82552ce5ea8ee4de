// user_text_test.cpp: text of users on its way into lines: UTF-8 that is checked to the byte,
// control characters, and long texts that are shortened.
#include "armillary/core/user_text.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "armillary/core/error.h"

namespace armillary {
namespace {

TEST(Printable, EscapesWhatATerminalObeysAndWhatIsNoUtf8) {
  EXPECT_EQ(printable("plain: grün, 語, \xF0\x9F\x99\x82"), "plain: grün, 語, \xF0\x9F\x99\x82");
  EXPECT_EQ(printable("\x1b[2J\t\x7f"), "\\x1b[2J\\x09\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J"),
            "\\xc2\\x9b2J")
      << "the escape of one character";
  EXPECT_EQ(printable("a\xFFz\xC3"), "a\\xffz\\xc3");
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("two\nlines"), "two\nlines");
  EXPECT_EQ(printable("two\xE2\x80\xA8lines\xE2\x80\xA9"), "two\\xe2\\x80\\xa8lines\\xe2\\x80\\xa9")
      << "separators of lines";
  EXPECT_EQ(printable(std::string(1, '\0')), "\\x00");
}

// Every result is UTF-8 and holds no control character but line ends, whatever the bytes.
TEST(Printable, IsPrintableForAllPairsOfBytes) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string pair{static_cast<char>(first), static_cast<char>(second)};
      const std::string text = printable(pair);
      ASSERT_FALSE(first_invalid_utf8(text)) << first << " " << second;
      ASSERT_EQ(printable(text), text) << first << " " << second;
    }
  }
}

TEST(Quote, LeavesOutTheMiddleOfLongTexts) {
  EXPECT_EQ(quote("casual"), "'casual'");
  EXPECT_EQ(quote("a\nb"), "'a\\x0ab'") << "one line";
  EXPECT_EQ(excerpt("a\nb"), "a\\x0ab");
  EXPECT_EQ(quote(std::string(255, 'a')), "'" + std::string(255, 'a') + "'");
  EXPECT_EQ(
      quote(std::string(100'000, 'a')),
      "'" + std::string(170, 'a') + ".. (99745 bytes left out) .." + std::string(85, 'a') + "'");
  // 169 letters and a character of three bytes: none of it is shown.
  EXPECT_EQ(excerpt(std::string(169, 'a') + "語" + std::string(100, 'b')),
            std::string(169, 'a') + ".. (18 bytes left out) .." + std::string(85, 'b'));
}

TEST(Shorten, LeavesOutTheMiddle) {
  EXPECT_EQ(shorten("abcdef", 6), "abcdef");
  EXPECT_EQ(shorten(std::string(10, 'a') + std::string(100, 'b') + "zzz", 9),
            "aaaaaa.. (104 bytes left out) ..zzz");
  EXPECT_EQ(shorten("abcdefg", 6), "abcd.. (1 byte left out) ..fg");
  for (std::size_t most = 3; most < 30; ++most) {
    EXPECT_FALSE(first_invalid_utf8(shorten("語語語語語語語語語語語語", most))) << most;
  }
}

TEST(ErrorText, HasNoWordOfTheStandardLibrary) {
  EXPECT_EQ(error_text(std::bad_alloc()), "out of memory");
  EXPECT_EQ(error_text(std::length_error("vector::_M_default_append")),
            "out of memory: a list that is longer than any memory");
  EXPECT_EQ(error_text(InvalidArgument("ring: world 0")), "ring: world 0");
  EXPECT_EQ(error_text(std::system_error(ENOSPC, std::generic_category(), "write")),
            "No space left on device");
  EXPECT_EQ(error_text(std::filesystem::filesystem_error(
                "cannot remove", "/a", std::make_error_code(std::errc::permission_denied))),
            "/a: Permission denied");
}

TEST(FirstInvalidUtf8, AcceptsTheEdgesAndRefusesWhatLiesBeyond) {
  for (const char* good :
       {"", "plain", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xE0\xBF\xBF", "\xED\x9F\xBF",
        "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(first_invalid_utf8(good), std::nullopt) << good;
  }
  for (const char* bad : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xC3"}) {
    EXPECT_EQ(first_invalid_utf8(std::string("ab") + bad), 2) << bad;
  }
}

/// Each sequence is cut short, and has each of its later bytes replaced by an ASCII byte.
TEST(FirstInvalidUtf8, RefusesSequencesWithoutTheirRest) {
  for (const std::string whole : {"\xC2\x80", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (std::size_t i = 1; i < whole.size(); ++i) {
      std::string broken = whole;
      broken[i] = 'x';
      EXPECT_EQ(first_invalid_utf8("ab" + broken), 2) << whole << " byte " << i;
      EXPECT_EQ(first_invalid_utf8("ab" + whole.substr(0, i)), 2) << whole << " cut at " << i;
    }
  }
}

}  // namespace
}  // namespace armillary
