#include "armillary/sim/link_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"

namespace armillary::sim {
namespace {

constexpr IntegerRange kPositive{1, std::numeric_limits<int>::max()};

[[noreturn]] void refuse_placeholder(std::string_view where, std::string_view text) {
  fail<InvalidArgument>(
      "{}'{}' given; {{n}}, {{i}} or {{j}} is required between braces, with /NUMBER "
      "and %NUMBER behind the letter",
      where, text);
}

}  // namespace

LinkName::LinkName(std::string_view where, std::string_view text) {
  device_ = text == "device" || text == "device{i}" || text == "device{j}";
  second_ = text == "device{j}";
  // Piece by piece: text up to a brace, then the placeholder.
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t open = rest.find('{');
    Piece piece{.text = std::string(rest.substr(0, open))};
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
      if (const std::size_t percent = inside.find('%'); percent != std::string_view::npos) {
        piece.modulus =
            static_cast<int>(parse_integer(where, inside.substr(percent + 1), kPositive));
        inside = inside.substr(0, percent);
      }
      if (!inside.empty()) {
        if (inside[0] != '/') refuse_placeholder(where, text);
        piece.divisor = static_cast<int>(parse_integer(where, inside.substr(1), kPositive));
      }
    }
    pieces_.push_back(std::move(piece));
  }
  if (pieces_.empty())
    fail<InvalidArgument>("{}'' given; the name of a switch, or device, is required", where);
}

std::string LinkName::at(const Place& place) const {
  std::string name;
  for (const Piece& piece : pieces_) {
    name += piece.text;
    if (piece.variable == 0) continue;
    int value = piece.variable == 'n' ? place.n : piece.variable == 'i' ? place.i : place.j;
    value /= piece.divisor;
    if (piece.modulus > 0) value %= piece.modulus;
    name += std::to_string(value);
  }
  return name;
}

bool LinkName::uses(char variable) const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [&](const Piece& piece) { return piece.variable == variable; });
}

}  // namespace armillary::sim
