// unicode.cpp: a table of kinds in two stages, blocks of 256 code points that are stored once, made
// of utf8proc's categories and of the code points that later versions of Unicode have assigned.
#include "armillary/text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "armillary/core/user_text.h"

namespace armillary::tokenizer {
namespace {

/// Names of kinds: utf8proc's order of categories, and the last is ours.
constexpr std::array<std::string_view, kKinds> kKindNames{
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me",      "Nd", "Nl",
    "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",      "Sc", "Sk",
    "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "white Cc"};
constexpr int kWhiteControl = kKinds - 1;

/// Code points of one category.
struct CategoryRange {
  std::uint32_t first;
  std::uint32_t last;
  utf8proc_category_t category;
};

/// Code points that Unicode 15.1 and 16.0 assigned.
constexpr CategoryRange kLaterRanges[] = {
    {0x897, 0x897, UTF8PROC_CATEGORY_MN},     {0x1B4E, 0x1B4F, UTF8PROC_CATEGORY_PO},
    {0x1B7F, 0x1B7F, UTF8PROC_CATEGORY_PO},   {0x1C89, 0x1C89, UTF8PROC_CATEGORY_LU},
    {0x1C8A, 0x1C8A, UTF8PROC_CATEGORY_LL},   {0x2427, 0x2429, UTF8PROC_CATEGORY_SO},
    {0x2FFC, 0x2FFF, UTF8PROC_CATEGORY_SO},   {0x31E4, 0x31E5, UTF8PROC_CATEGORY_SO},
    {0x31EF, 0x31EF, UTF8PROC_CATEGORY_SO},   {0xA7CB, 0xA7CC, UTF8PROC_CATEGORY_LU},
    {0xA7CD, 0xA7CD, UTF8PROC_CATEGORY_LL},   {0xA7DA, 0xA7DA, UTF8PROC_CATEGORY_LU},
    {0xA7DB, 0xA7DB, UTF8PROC_CATEGORY_LL},   {0xA7DC, 0xA7DC, UTF8PROC_CATEGORY_LU},
    {0x105C0, 0x105F3, UTF8PROC_CATEGORY_LO}, {0x10D40, 0x10D49, UTF8PROC_CATEGORY_ND},
    {0x10D4A, 0x10D4D, UTF8PROC_CATEGORY_LO}, {0x10D4E, 0x10D4E, UTF8PROC_CATEGORY_LM},
    {0x10D4F, 0x10D4F, UTF8PROC_CATEGORY_LO}, {0x10D50, 0x10D65, UTF8PROC_CATEGORY_LU},
    {0x10D69, 0x10D6D, UTF8PROC_CATEGORY_MN}, {0x10D6E, 0x10D6E, UTF8PROC_CATEGORY_PD},
    {0x10D6F, 0x10D6F, UTF8PROC_CATEGORY_LM}, {0x10D70, 0x10D85, UTF8PROC_CATEGORY_LL},
    {0x10D8E, 0x10D8F, UTF8PROC_CATEGORY_SM}, {0x10EC2, 0x10EC4, UTF8PROC_CATEGORY_LO},
    {0x10EFC, 0x10EFC, UTF8PROC_CATEGORY_MN}, {0x11380, 0x11389, UTF8PROC_CATEGORY_LO},
    {0x1138B, 0x1138B, UTF8PROC_CATEGORY_LO}, {0x1138E, 0x1138E, UTF8PROC_CATEGORY_LO},
    {0x11390, 0x113B5, UTF8PROC_CATEGORY_LO}, {0x113B7, 0x113B7, UTF8PROC_CATEGORY_LO},
    {0x113B8, 0x113BA, UTF8PROC_CATEGORY_MC}, {0x113BB, 0x113C0, UTF8PROC_CATEGORY_MN},
    {0x113C2, 0x113C2, UTF8PROC_CATEGORY_MC}, {0x113C5, 0x113C5, UTF8PROC_CATEGORY_MC},
    {0x113C7, 0x113CA, UTF8PROC_CATEGORY_MC}, {0x113CC, 0x113CD, UTF8PROC_CATEGORY_MC},
    {0x113CE, 0x113CE, UTF8PROC_CATEGORY_MN}, {0x113CF, 0x113CF, UTF8PROC_CATEGORY_MC},
    {0x113D0, 0x113D0, UTF8PROC_CATEGORY_MN}, {0x113D1, 0x113D1, UTF8PROC_CATEGORY_LO},
    {0x113D2, 0x113D2, UTF8PROC_CATEGORY_MN}, {0x113D3, 0x113D3, UTF8PROC_CATEGORY_LO},
    {0x113D4, 0x113D5, UTF8PROC_CATEGORY_PO}, {0x113D7, 0x113D8, UTF8PROC_CATEGORY_PO},
    {0x113E1, 0x113E2, UTF8PROC_CATEGORY_MN}, {0x116D0, 0x116E3, UTF8PROC_CATEGORY_ND},
    {0x11BC0, 0x11BE0, UTF8PROC_CATEGORY_LO}, {0x11BE1, 0x11BE1, UTF8PROC_CATEGORY_PO},
    {0x11BF0, 0x11BF9, UTF8PROC_CATEGORY_ND}, {0x11F5A, 0x11F5A, UTF8PROC_CATEGORY_MN},
    {0x13460, 0x143FA, UTF8PROC_CATEGORY_LO}, {0x16100, 0x1611D, UTF8PROC_CATEGORY_LO},
    {0x1611E, 0x16129, UTF8PROC_CATEGORY_MN}, {0x1612A, 0x1612C, UTF8PROC_CATEGORY_MC},
    {0x1612D, 0x1612F, UTF8PROC_CATEGORY_MN}, {0x16130, 0x16139, UTF8PROC_CATEGORY_ND},
    {0x16D40, 0x16D42, UTF8PROC_CATEGORY_LM}, {0x16D43, 0x16D6A, UTF8PROC_CATEGORY_LO},
    {0x16D6B, 0x16D6C, UTF8PROC_CATEGORY_LM}, {0x16D6D, 0x16D6F, UTF8PROC_CATEGORY_PO},
    {0x16D70, 0x16D79, UTF8PROC_CATEGORY_ND}, {0x18CFF, 0x18CFF, UTF8PROC_CATEGORY_LO},
    {0x1CC00, 0x1CCEF, UTF8PROC_CATEGORY_SO}, {0x1CCF0, 0x1CCF9, UTF8PROC_CATEGORY_ND},
    {0x1CD00, 0x1CEB3, UTF8PROC_CATEGORY_SO}, {0x1E5D0, 0x1E5ED, UTF8PROC_CATEGORY_LO},
    {0x1E5EE, 0x1E5EF, UTF8PROC_CATEGORY_MN}, {0x1E5F0, 0x1E5F0, UTF8PROC_CATEGORY_LO},
    {0x1E5F1, 0x1E5FA, UTF8PROC_CATEGORY_ND}, {0x1E5FF, 0x1E5FF, UTF8PROC_CATEGORY_PO},
    {0x1F8B2, 0x1F8BB, UTF8PROC_CATEGORY_SO}, {0x1F8C0, 0x1F8C1, UTF8PROC_CATEGORY_SO},
    {0x1FA89, 0x1FA89, UTF8PROC_CATEGORY_SO}, {0x1FA8F, 0x1FA8F, UTF8PROC_CATEGORY_SO},
    {0x1FABE, 0x1FABE, UTF8PROC_CATEGORY_SO}, {0x1FAC6, 0x1FAC6, UTF8PROC_CATEGORY_SO},
    {0x1FADC, 0x1FADC, UTF8PROC_CATEGORY_SO}, {0x1FADF, 0x1FADF, UTF8PROC_CATEGORY_SO},
    {0x1FAE9, 0x1FAE9, UTF8PROC_CATEGORY_SO}, {0x1FBCB, 0x1FBEF, UTF8PROC_CATEGORY_SO},
    {0x2EBF0, 0x2EE5D, UTF8PROC_CATEGORY_LO},
};

/// The kinds of all code points.
class KindTable {
 public:
  KindTable() {
    std::map<std::array<std::uint8_t, kKindBlock>, std::uint16_t> places;
    for (std::uint32_t first = 0; first < kCodePoints; first += kKindBlock) {
      std::array<std::uint8_t, kKindBlock> block{};
      for (std::uint32_t i = 0; i < kKindBlock; ++i) block[i] = kind(first + i);
      const auto [place, is_new] =
          places.try_emplace(block, static_cast<std::uint16_t>(blocks_.size()));
      if (is_new) blocks_.push_back(block);
      index_[first / kKindBlock] = place->second;
    }
  }

  int block(std::uint32_t code_point) const { return index_[code_point / kKindBlock]; }
  int at(std::uint32_t code_point) const {
    return blocks_[index_[code_point / kKindBlock]][code_point % kKindBlock];
  }

 private:
  static std::uint8_t kind(std::uint32_t code_point) {
    const bool is_white = (code_point >= '\t' && code_point <= '\r') || code_point == 0x85U;
    if (is_white) return kWhiteControl;
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
    if (category != UTF8PROC_CATEGORY_CN) return static_cast<std::uint8_t>(category);
    const auto* const range =
        std::ranges::upper_bound(kLaterRanges, code_point, {}, &CategoryRange::first);
    const bool is_later = range != std::begin(kLaterRanges) && code_point <= range[-1].last;
    return static_cast<std::uint8_t>(is_later ? range[-1].category : UTF8PROC_CATEGORY_CN);
  }

  std::vector<std::array<std::uint8_t, kKindBlock>> blocks_;
  std::array<std::uint16_t, kCodePoints / kKindBlock> index_{};
};

const KindTable& kind_table() {
  static const KindTable table;
  return table;
}

/// Code points by the one that stands for all that differ in case.
using CaseClasses = std::unordered_map<std::uint32_t, std::vector<std::uint32_t>>;

/// One of all code points that differ in case alone.
std::uint32_t folded(std::uint32_t code_point) {
  return static_cast<std::uint32_t>(
      utf8proc_tolower(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point))));
}

CaseClasses case_classes() {
  CaseClasses classes;
  for (std::uint32_t c = 0; c < kCodePoints; ++c) {
    if (const std::uint32_t to = folded(c); to != c) classes[to].push_back(c);
  }
  for (auto& [to, others] : classes) {
    others.push_back(to);
    std::ranges::sort(others);
  }
  return classes;
}

/// Length of the part of `text` at `i` that U+FFFD replaces, for bytes that are no UTF-8.
std::size_t broken_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t j) -> unsigned {
    return j < text.size() ? static_cast<unsigned char>(text[j]) : 0U;
  };
  const unsigned lead = byte(i);
  if (lead < 0xC2U || lead > 0xF4U) return 1;
  // The second byte has a smaller range behind some lead bytes.
  const unsigned least = lead == 0xE0U ? 0xA0U : lead == 0xF0U ? 0x90U : 0x80U;
  const unsigned most = lead == 0xEDU ? 0x9FU : lead == 0xF4U ? 0x8FU : 0xBFU;
  if (byte(i + 1) < least || byte(i + 1) > most) return 1;
  const std::size_t length = lead < 0xE0U ? 2 : lead < 0xF0U ? 3 : 4;
  std::size_t good = 2;
  while (good < length && (byte(i + good) & 0xC0U) == 0x80U) ++good;
  return good;
}

}  // namespace

int kind_of_code_point(std::uint32_t code_point) {
  return kind_table().at(code_point);
}

int kind_block(std::uint32_t code_point) {
  return kind_table().block(code_point);
}

std::optional<KindSet> kinds_of_category(std::string_view name) {
  KindSet kinds = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    const std::string_view category =
        kind == kWhiteControl ? "Cc" : kKindNames[static_cast<std::size_t>(kind)];
    if (category == name || category.substr(0, 1) == name) kinds |= KindSet{1} << kind;
  }
  if (kinds == 0) return std::nullopt;
  return kinds;
}

KindSet white_space() {
  return *kinds_of_category("Z") | KindSet{1} << kWhiteControl;
}

std::vector<std::uint32_t> same_but_for_case(std::uint32_t code_point) {
  static const CaseClasses classes = case_classes();
  const auto place = classes.find(folded(code_point));
  return place == classes.end() ? std::vector{code_point} : place->second;
}

void append_code_point(std::string& out, std::uint32_t code_point) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    out.push_back(static_cast<char>(bytes[static_cast<std::size_t>(i)]));
  }
}

std::optional<std::string> with_replacements(std::string_view text) {
  auto broken = first_invalid_utf8(text);
  if (!broken) return std::nullopt;
  std::string whole;
  while (broken) {
    const auto at = static_cast<std::size_t>(*broken);
    whole += text.substr(0, at);
    whole += "\xEF\xBF\xBD";
    text.remove_prefix(at + std::min(broken_length(text, at), text.size() - at));
    broken = first_invalid_utf8(text);
  }
  return whole += text;
}

std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80U) ++i;
  return i;
}

}  // namespace armillary::tokenizer
