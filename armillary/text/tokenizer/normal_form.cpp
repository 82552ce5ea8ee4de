// normal_form.cpp: utf8proc's normal forms, of the parts of a text between code points that stay.
#include "armillary/text/tokenizer/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "armillary/core/error.h"
#include "armillary/text/tokenizer/code_point_set.h"
#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {
namespace {

/// Code points with another normal form, or another combining class, in utf8proc 2.8 (Unicode 15).
constexpr CodePointRange kLaterForms[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

bool stays(std::uint32_t code_point) {
  const auto* const range =
      std::ranges::upper_bound(kLaterForms, code_point, {}, &CodePointRange::first);
  return range != std::begin(kLaterForms) && code_point <= range[-1].last;
}

utf8proc_option_t utf8proc_options(NormalForm form) {
  int options = UTF8PROC_STABLE;
  const bool composes = form == NormalForm::Nfc || form == NormalForm::Nfkc;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::Nfkc || form == NormalForm::Nfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

void append_normal_form(std::string& out, std::string_view text, NormalForm form) {
  if (ascii_prefix(text) == text.size()) {
    out += text;
    return;
  }
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped, utf8proc_options(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0) {
    fail<InvalidArgument>(
        "tokenizer: a text of {} bytes cannot be normalized ({}); a shorter one "
        "is required",
        text.size(), utf8proc_errmsg(length));
  }
  out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length));
}

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t at = i;
    if (!stays(next_code_point(text, i))) continue;
    append_normal_form(out, text.substr(begin, at - begin), form);
    out += text.substr(at, i - at);
    begin = i;
  }
  append_normal_form(out, text.substr(begin), form);
  return out;
}

}  // namespace armillary::tokenizer
