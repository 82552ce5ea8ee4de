// link_names.cpp: a name is taken apart once and put together for each place. Errors show the whole
// name, in which a fault of its braces is seen best.
#include "armillary/predict/sim/link_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"

namespace armillary::sim {
namespace {

constexpr IntegerRange kPositive{1, std::numeric_limits<int>::max()};

[[noreturn]] void refuse_placeholder(std::string_view where, std::string_view text) {
  fail<InvalidArgument>(
      "{}{} given; {{n}}, {{i}} or {{j}} is required between braces, with *NUMBER, /NUMBER "
      "and %NUMBER behind the letter",
      where, quote(text));
}

}  // namespace

LinkName::LinkName(std::string_view where, std::string_view text) {
  const std::string name = fmt::format("{}{}", where, quote(text));
  device_ = text == "device" || text == "device{i}" || text == "device{j}";
  second_ = text == "device{j}";
  // Piece by piece: text up to a brace, then the placeholder.
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t open = rest.find('{');
    NamePart piece{.text = std::string(rest.substr(0, open))};
    if (piece.text.find('}') != std::string::npos) refuse_placeholder(where, text);
    rest = open == std::string_view::npos ? "" : rest.substr(open + 1);
    if (open != std::string_view::npos) {
      const std::size_t close = rest.find('}');
      if (close == std::string_view::npos || close == 0) refuse_placeholder(where, text);
      std::string_view inside = rest.substr(0, close);
      rest = rest.substr(close + 1);
      piece.variable = inside[0];
      if (std::string_view("nij").find(piece.variable) == std::string_view::npos) {
        refuse_placeholder(where, text);
      }
      inside.remove_prefix(1);
      // The operations from the last to the first, so that each number ends the text.
      const auto take = [&](char sign, int& number) {
        const std::size_t at = inside.find(sign);
        if (at == std::string_view::npos) return;
        number = static_cast<int>(parse_integer(name, inside.substr(at + 1), kPositive));
        inside = inside.substr(0, at);
      };
      take('%', piece.modulus);
      take('/', piece.divisor);
      take('*', piece.factor);
      if (!inside.empty()) refuse_placeholder(where, text);
    }
    pieces_.push_back(std::move(piece));
  }
  if (pieces_.empty())
    fail<InvalidArgument>("{}'' given; the name of a switch, or device, is required", where);
}

std::string LinkName::at(const PlaceholderValues& place) const {
  std::string name;
  for (const NamePart& piece : pieces_) {
    name += piece.text;
    if (piece.variable == 0) continue;
    int value = piece.variable == 'n' ? place.n : piece.variable == 'i' ? place.i : place.j;
    // The order is that of the text: *, then /, then %.
    value = value * piece.factor / piece.divisor;
    if (piece.modulus > 0) value %= piece.modulus;
    name += std::to_string(value);
  }
  return name;
}

std::string LinkName::with_spacing(int factor) const {
  std::string text;
  for (const NamePart& piece : pieces_) {
    text += piece.text;
    if (piece.variable == 0) continue;
    // Nodes stay as they are, and a device is numbered anew; only switches keep their old names.
    const int times = piece.factor * (piece.variable == 'n' || is_device() ? 1 : factor);
    text += fmt::format("{{{}", piece.variable);
    if (times != 1) text += fmt::format("*{}", times);
    if (piece.divisor != 1) text += fmt::format("/{}", piece.divisor);
    if (piece.modulus != 0) text += fmt::format("%{}", piece.modulus);
    text += '}';
  }
  return text;
}

bool LinkName::uses(char variable) const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [&](const NamePart& piece) { return piece.variable == variable; });
}

}  // namespace armillary::sim
