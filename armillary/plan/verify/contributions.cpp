// Sets of block classes as words of bits. Each reader has one array with the sets of all cells,
// made at its first contribution; a reader without an array has contributed nothing.
#include "armillary/plan/verify/contributions.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace armillary::plan::verifier {
namespace {

using Set = std::span<const std::uint64_t>;

/// The first class in a word that is not 0; `word` is its index in the set.
int first_of(std::uint64_t bits, std::size_t word) {
  return static_cast<int>(word * 64) + std::countr_zero(bits);
}

bool counts_nothing(Set set) {
  return std::all_of(set.begin(), set.end(), [](std::uint64_t word) { return word == 0; });
}

}  // namespace

// Arrays keep their memory for the next tile of the slot.
void Contributions::reset(int cells, std::size_t words) {
  cells_ = static_cast<std::size_t>(cells);
  words_ = words;
  for (std::vector<std::uint64_t>& sets : by_reader_) sets.clear();
}

std::span<std::uint64_t> Contributions::set(int cell, std::size_t reader) {
  while (by_reader_.size() <= reader) by_reader_.push_back({});
  std::vector<std::uint64_t>& sets = by_reader_[reader];
  if (sets.empty()) sets.resize(cells_ * words_);
  return {&sets[cell * words_], words_};
}

Set Contributions::set(int cell, std::size_t reader) const {
  if (reader >= by_reader_.size() || by_reader_[reader].empty()) return {};
  return {&by_reader_[reader][cell * words_], words_};
}

// Stops at the first word with a block that was there already; the plan is wrong then, and the set
// is not used any more.
int Contributions::add(int cell, int reader, const Bits& bits, ClassRange range) {
  const std::span<std::uint64_t> blocks = set(cell, static_cast<std::size_t>(reader));
  const auto first = static_cast<std::size_t>(range.begin) / 64;
  const auto last = static_cast<std::size_t>(range.end - 1) / 64;
  for (std::size_t w = first; w <= last; ++w) {
    std::uint64_t added = bits[w];
    if (w == first) added &= ~std::uint64_t{0} << (range.begin % 64);
    if (w == last) added &= ~std::uint64_t{0} >> (63 - (range.end - 1) % 64);
    if ((blocks[w] & added) != 0) return first_of(blocks[w] & added, w);
    blocks[w] |= added;
  }
  return -1;
}

bool Contributions::add(int cell, const Contributions& other, int its_cell) {
  for (std::size_t reader = 0; reader < other.by_reader_.size(); ++reader) {
    const Set more = other.set(its_cell, reader);
    if (more.empty()) continue;
    const std::span<std::uint64_t> blocks = set(cell, reader);
    for (std::size_t w = 0; w < words_; ++w) {
      if ((blocks[w] & more[w]) != 0) return false;
      blocks[w] |= more[w];
    }
  }
  return true;
}

void Contributions::clear(int cell) {
  for (std::size_t reader = 0; reader < by_reader_.size(); ++reader) {
    if (!by_reader_[reader].empty()) std::ranges::fill(set(cell, reader), 0);
  }
}

// A reader that only this side has must be cleared, too.
void Contributions::copy(int cell, const Contributions& other, int its_cell) {
  const std::size_t readers = std::max(by_reader_.size(), other.by_reader_.size());
  for (std::size_t reader = 0; reader < readers; ++reader) {
    const Set source = other.set(its_cell, reader);
    if (!source.empty()) {
      std::ranges::copy(source, set(cell, reader).begin());
    } else if (!std::as_const(*this).set(cell, reader).empty()) {
      std::ranges::fill(set(cell, reader), 0);
    }
  }
}

void Contributions::copy(int cell, const Contributions& other, int its_cell,
                         const Renumber& renumber) {
  clear(cell);
  for (std::size_t reader = 0; reader < other.by_reader_.size(); ++reader) {
    const Set source = other.set(its_cell, reader);
    if (!source.empty() && !counts_nothing(source)) renumber(source, set(cell, reader));
  }
}

// A missing array and an empty set are the same.
bool Contributions::equal(int cell, const Contributions& other, int its_cell) const {
  const std::size_t readers = std::max(by_reader_.size(), other.by_reader_.size());
  for (std::size_t reader = 0; reader < readers; ++reader) {
    const Set a = set(cell, reader);
    const Set b = other.set(its_cell, reader);
    const bool same = a.empty() || b.empty() ? counts_nothing(a) && counts_nothing(b)
                                             : std::equal(a.begin(), a.end(), b.begin());
    if (!same) return false;
  }
  return true;
}

int Contributions::missing(int cell, int reader, const Bits& required) const {
  const Set blocks = set(cell, static_cast<std::size_t>(reader));
  for (std::size_t w = 0; w < required.size(); ++w) {
    const std::uint64_t lacking = required[w] & ~(blocks.empty() ? 0 : blocks[w]);
    if (lacking != 0) return first_of(lacking, w);
  }
  return -1;
}

}  // namespace armillary::plan::verifier
