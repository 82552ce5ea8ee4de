#include "armillary/plan/verify/counted.h"

#include <bit>

namespace armillary::plan::verifier {
namespace {

int first_of(std::uint64_t bits, std::size_t word) {
  return static_cast<int>(word * 64) + std::countr_zero(bits);
}

}  // namespace

/// Where the part of a reader begins, or would.
std::size_t Counted::find(std::uint64_t reader, std::size_t words) const {
  std::size_t at = 0;
  while (at < parts_.size() && parts_[at] < reader) at += words + 1;
  return at;
}

std::uint64_t* Counted::part(std::uint64_t reader, std::size_t words) {
  const std::size_t at = find(reader, words);
  if (at == parts_.size() || parts_[at] != reader) {
    words_ = words;
    parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(at), words + 1, 0);
    parts_[at] = reader;
  }
  return &parts_[at + 1];
}

int Counted::add(int reader, std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
  std::uint64_t* blocks = nullptr;
  for (std::size_t w = 0; w < a.size(); ++w) {
    const std::uint64_t added = a[w] & b[w];
    if (added == 0) continue;
    if (blocks == nullptr) blocks = part(static_cast<std::uint64_t>(reader), a.size());
    if ((blocks[w] & added) != 0) return first_of(blocks[w] & added, w);
    blocks[w] |= added;
  }
  return -1;
}

bool Counted::add(const Counted& more) {
  for (std::size_t at = 0; at < more.parts_.size(); at += more.words_ + 1) {
    const std::span blocks(&more.parts_[at + 1], more.words_);
    if (add(static_cast<int>(more.parts_[at]), blocks, blocks) >= 0) return false;
  }
  return true;
}

int Counted::missing(int reader, const Bits& required) const {
  const std::size_t at = find(static_cast<std::uint64_t>(reader), required.size());
  const bool any = at < parts_.size() && parts_[at] == static_cast<std::uint64_t>(reader);
  for (std::size_t w = 0; w < required.size(); ++w) {
    const std::uint64_t lacking = required[w] & ~(any ? parts_[at + 1 + w] : 0);
    if (lacking != 0) return first_of(lacking, w);
  }
  return -1;
}

}  // namespace armillary::plan::verifier
