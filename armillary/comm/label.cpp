#include "armillary/comm/label.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace armillary::comm {

Label label_of(std::string_view text) {
  Label label;
  const std::size_t most = label.text.size() - 1;
  if (text.size() <= most) {
    std::ranges::copy(text, label.text.begin());
    return label;
  }
  // FNV-1a: the same on every machine.
  std::uint32_t hash = 2166136261U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  const std::string end = fmt::format("..#{:08x}", hash);
  std::ranges::copy(text.substr(0, most - end.size()), label.text.begin());
  std::ranges::copy(end, label.text.begin() + static_cast<std::ptrdiff_t>(most - end.size()));
  return label;
}

bool is_same(const Label* a, const Label* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return *a == *b;
}

std::string difference_text(int rank_a, const Label* a, int rank_b, const Label* b) {
  if (rank_b < rank_a) return difference_text(rank_b, b, rank_a, a);
  // Bytes of another process may have no end.
  const auto call = [](const Label* label) {
    if (label == nullptr) return std::string("a function that is not a collective");
    return std::string(label->text.begin(), std::ranges::find(label->text, '\0'));
  };
  return fmt::format("rank {} calls {}, rank {} calls {}; the same call is required on all ranks",
                     rank_a, call(a), rank_b, call(b));
}

}  // namespace armillary::comm
