// bpe.cpp: words are looked up among those met before; a new one is joined by scanning if it is
// short, with a heap of pairs if it is long. Both take the pair of least rank, leftmost first.
//
// A text without spaces between words, as byte-fallback tokenizers see it, is cut first between
// code points that lie side by side in no merged token: no merge ever crosses such a place, so the
// parts are encoded as if they were words.
#include "armillary/text/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/text/tokenizer/byte_alphabet.h"
#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {
namespace {

constexpr std::size_t kMostCachedBytes = 128;
/// Longest word that is joined by scanning.
constexpr std::size_t kMostScanned = 40;
constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();

std::uint64_t pair_of(std::uint32_t left, std::uint32_t right) {
  return std::uint64_t{left} << 32U | right;
}

std::uint64_t pair_of(TokenId left, TokenId right) {
  return pair_of(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right));
}

std::size_t spread(std::uint64_t pair) {
  pair ^= pair >> 29U;
  return static_cast<std::size_t>(pair * 0x9E3779B97F4A7C15U >> 20U);
}

/// Whether a heap gives `b` before `a`.
bool comes_later(const BpeScratch::MergeCandidate& a, const BpeScratch::MergeCandidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

WordCache::Place& WordCache::place_of(std::string_view word, std::uint32_t hash) {
  for (std::size_t i = hash % kPlaces;; i = (i + 1) % kPlaces) {
    Place& place = places_[i];
    if (place.ids_count == 0) return place;
    const bool is_it = place.hash == hash && place.word_size == word.size() &&
                       word == std::string_view(words_).substr(place.word_begin, place.word_size);
    if (is_it) return place;
  }
}

void WordCache::append(const Place& place, std::vector<TokenId>& out) const {
  const auto begin = ids_.begin() + place.ids_begin;
  out.insert(out.end(), begin, begin + place.ids_count);
}

void WordCache::add(Place& place, std::string_view word, std::uint32_t hash,
                    const std::vector<TokenId>& ids, std::size_t count) {
  if (count == 0) return;
  if (2 * ++count_ > kPlaces || words_.size() > kMostBytes) {
    std::ranges::fill(places_, Place());
    words_.clear();
    ids_.clear();
    count_ = 0;
    return;
  }
  place = {.hash = hash,
           .word_begin = static_cast<std::uint32_t>(words_.size()),
           .word_size = static_cast<std::uint32_t>(word.size()),
           .ids_begin = static_cast<std::uint32_t>(ids_.size()),
           .ids_count = static_cast<std::uint32_t>(count)};
  words_ += word;
  ids_.insert(ids_.end(), ids.end() - static_cast<std::ptrdiff_t>(count), ids.end());
}

Bpe::Bpe(const TokenVocabulary& vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options)
    : options_(options) {
  pairs_.resize(std::bit_ceil(2 * merges.size() + 2));
  for (const BpeMerge& merge : merges) add_merge(vocabulary, merge);
  bytes_.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    if (options_.is_byte_level) {
      append_code_point(token, letter_of_byte(static_cast<unsigned char>(byte)));
    } else if (options_.has_byte_fallback) {
      token = fmt::format("<0x{:02X}>", byte);
    }
    if (const auto id = vocabulary.find(token)) bytes_[static_cast<std::size_t>(byte)] = *id;
  }
  for (TokenId id = 0; options_.ignores_merges && id < vocabulary.size(); ++id) {
    if (!vocabulary.has(id)) continue;
    const std::string& token = vocabulary.token(id);
    const auto word = options_.is_byte_level ? bytes_of_letters(token) : std::optional(token);
    if (word && vocabulary.find(token) == id) whole_words_.try_emplace(*word, id);
  }
  if (options_.is_byte_level) return;
  prepare_code_points(vocabulary);
  // A token of a byte is not its text, so merges of it say nothing about neighbours in a text.
  const auto is_of_byte = [&](TokenId id) {
    return options_.has_byte_fallback && std::ranges::find(bytes_, id) != bytes_.end();
  };
  is_cut_ = !options_.ignores_merges && std::ranges::none_of(merges, [&](const BpeMerge& merge) {
    return is_of_byte(merge.left) || is_of_byte(merge.right);
  });
  for (const BpeMerge& merge : merges) {
    const std::string& token = vocabulary.token(merge.joined);
    std::size_t i = 0;
    std::uint32_t left = next_code_point(token, i);
    while (i < token.size()) {
      const std::uint32_t right = next_code_point(token, i);
      inside_.push_back(pair_of(left, right));
      left = right;
    }
  }
  std::ranges::sort(inside_);
  inside_.erase(std::unique(inside_.begin(), inside_.end()), inside_.end());
}

void Bpe::add_merge(const TokenVocabulary& vocabulary, const BpeMerge& merge) {
  const bool is_there =
      vocabulary.has(merge.left) && vocabulary.has(merge.right) && vocabulary.has(merge.joined);
  if (!is_there) {
    fail<InvalidArgument>(
        "tokenizer: merge {} joins ids {} and {} to {}; ids of tokens are required", merge.rank,
        merge.left, merge.right, merge.joined);
  }
  const std::string& left = vocabulary.token(merge.left);
  const std::string& right = vocabulary.token(merge.right);
  if (left.empty() || right.empty() || left + right != vocabulary.token(merge.joined)) {
    fail<InvalidArgument>(
        "tokenizer: merge {} joins {} and {} to {}; tokens that are not empty, and the token of "
        "both, are required",
        merge.rank, quote(left), quote(right), quote(vocabulary.token(merge.joined)));
  }
  // The last of equal pairs counts, as in PyPI tokenizers.
  pairs_[index_of_pair(merge.left, merge.right)] = {
      .pair = pair_of(merge.left, merge.right), .rank = merge.rank, .joined = merge.joined};
}

void Bpe::prepare_code_points(const TokenVocabulary& vocabulary) {
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.has(id) || vocabulary.token(id).empty()) continue;
    const std::string& token = vocabulary.token(id);
    std::size_t i = 0;
    const std::uint32_t code_point = next_code_point(token, i);
    if (i != token.size() || vocabulary.find(token) != id) continue;
    if (code_points_.size() <= code_point) code_points_.resize(code_point + 1, -1);
    code_points_[code_point] = id;
  }
}

std::size_t Bpe::index_of_pair(TokenId left, TokenId right) const {
  const std::uint64_t pair = pair_of(left, right);
  const std::size_t mask = pairs_.size() - 1;
  for (std::size_t i = spread(pair) & mask;; i = (i + 1) & mask) {
    if (pairs_[i].pair == pair || pairs_[i].rank < 0) return i;
  }
}

TokenId Bpe::id_of_code_point(std::uint32_t code_point) const {
  return code_point < code_points_.size() ? code_points_[code_point] : -1;
}

void Bpe::encode(std::string_view word, std::vector<TokenId>& out, BpeScratch& scratch) const {
  if (is_cut_) return encode_cut(word, out, scratch);
  encode_cached(word, out, scratch);
}

void Bpe::encode_cut(std::string_view text, std::vector<TokenId>& out, BpeScratch& scratch) const {
  std::size_t begin = 0;
  std::size_t i = 0;
  std::uint32_t left = 0;
  while (i < text.size()) {
    const std::size_t at = i;
    const std::uint32_t right = next_code_point(text, i);
    // Unknown code points may be fused with what is before them.
    const bool is_cut = at > begin && id_of_code_point(right) >= 0 &&
                        !std::ranges::binary_search(inside_, pair_of(left, right));
    if (is_cut) {
      encode_cached(text.substr(begin, at - begin), out, scratch);
      begin = at;
    }
    left = right;
  }
  encode_cached(text.substr(begin), out, scratch);
}

void Bpe::encode_cached(std::string_view word, std::vector<TokenId>& out,
                        BpeScratch& scratch) const {
  if (word.size() > kMostCachedBytes) return encode_new(word, out, scratch);
  const auto hash = static_cast<std::uint32_t>(std::hash<std::string_view>()(word));
  WordCache::Place& place = scratch.cache.place_of(word, hash);
  if (place.ids_count > 0) return scratch.cache.append(place, out);
  const std::size_t before = out.size();
  encode_new(word, out, scratch);
  scratch.cache.add(place, word, hash, out, out.size() - before);
}

void Bpe::encode_new(std::string_view word, std::vector<TokenId>& out, BpeScratch& scratch) const {
  if (options_.ignores_merges) {
    const auto whole = whole_words_.find(std::string(word));
    if (whole != whole_words_.end()) return out.push_back(whole->second);
  }
  scratch.ids.clear();
  if (options_.is_byte_level) {
    symbols_of_bytes(word, scratch.ids);
  } else {
    symbols_of_code_points(word, scratch.ids);
  }
  if (scratch.ids.size() <= kMostScanned) {
    join_short(scratch);
  } else {
    join_long(scratch);
  }
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

void Bpe::add_unknown(bool& is_pending, std::vector<TokenId>& ids) const {
  if (!options_.unknown) return;
  if (is_pending && !options_.fuses_unknown) ids.push_back(*options_.unknown);
  is_pending = true;
}

void Bpe::symbols_of_bytes(std::string_view word, std::vector<TokenId>& ids) const {
  bool is_unknown_pending = false;
  for (const char byte : word) {
    const TokenId id = bytes_[static_cast<unsigned char>(byte)];
    if (id < 0) {
      add_unknown(is_unknown_pending, ids);
      continue;
    }
    if (std::exchange(is_unknown_pending, false)) ids.push_back(*options_.unknown);
    ids.push_back(id);
  }
  if (is_unknown_pending) ids.push_back(*options_.unknown);
}

// An unknown code point is written when the next known one comes: tokens of bytes go before it, as
// in PyPI tokenizers.
void Bpe::symbols_of_code_points(std::string_view word, std::vector<TokenId>& ids) const {
  bool is_unknown_pending = false;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t begin = i;
    const TokenId id = id_of_code_point(next_code_point(word, i));
    if (id >= 0) {
      if (std::exchange(is_unknown_pending, false)) ids.push_back(*options_.unknown);
      ids.push_back(id);
      continue;
    }
    const std::string_view bytes = word.substr(begin, i - begin);
    const bool has_bytes = options_.has_byte_fallback && std::ranges::all_of(bytes, [&](char byte) {
                             return bytes_[static_cast<unsigned char>(byte)] >= 0;
                           });
    if (!has_bytes) {
      add_unknown(is_unknown_pending, ids);
      continue;
    }
    for (const char byte : bytes) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
  }
  if (is_unknown_pending) ids.push_back(*options_.unknown);
}

void Bpe::join_short(BpeScratch& scratch) const {
  std::vector<TokenId>& ids = scratch.ids;
  std::vector<std::int32_t>& ranks = scratch.ranks;  // Each symbol's with the next.
  const auto rank_at = [&](std::size_t i) {
    if (i + 1 >= ids.size()) return kNoRank;
    const PairPlace& place = find_pair(ids[i], ids[i + 1]);
    return place.rank < 0 ? kNoRank : place.rank;
  };
  ranks.resize(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ranks[i] = rank_at(i);
  while (ids.size() > 1) {
    const auto least = std::min_element(ranks.begin(), ranks.end());
    if (*least == kNoRank) return;
    const auto at = static_cast<std::size_t>(least - ranks.begin());
    ids[at] = find_pair(ids[at], ids[at + 1]).joined;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks[at] = rank_at(at);
    if (at > 0) ranks[at - 1] = rank_at(at - 1);
  }
}

void Bpe::join_long(BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  std::vector<BpeScratch::MergeCandidate>& heap = scratch.heap;
  const auto count = static_cast<std::int32_t>(scratch.ids.size());
  symbols.clear();
  heap.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    symbols.push_back({.id = scratch.ids[static_cast<std::size_t>(i)],
                       .previous = i - 1,
                       .next = i + 1 < count ? i + 1 : -1});
  }
  const auto symbol = [&](std::int32_t i) -> BpeScratch::Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  const auto add = [&](std::int32_t i) {
    if (i < 0 || symbol(i).next < 0) return false;
    const PairPlace& place = find_pair(symbol(i).id, symbol(symbol(i).next).id);
    if (place.rank < 0) return false;
    heap.push_back({.rank = place.rank, .at = i, .joined = place.joined});
    return true;
  };
  const auto push = [&](std::int32_t i) {
    if (add(i)) std::push_heap(heap.begin(), heap.end(), comes_later);
  };
  for (std::int32_t i = 0; i < count; ++i) add(i);
  std::make_heap(heap.begin(), heap.end(), comes_later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const BpeScratch::MergeCandidate top = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = symbol(top.at);
    if (left.is_joined || left.next < 0) continue;
    BpeScratch::Symbol& right = symbol(left.next);
    // The pair may have changed since it came into the heap.
    const PairPlace& place = find_pair(left.id, right.id);
    if (place.rank < 0 || place.joined != top.joined) continue;
    left.id = top.joined;
    right.is_joined = true;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = top.at;
    push(left.previous);
    push(top.at);
  }
  scratch.ids.clear();
  for (std::int32_t i = 0; i >= 0 && count > 0; i = symbol(i).next) {
    scratch.ids.push_back(symbol(i).id);
  }
}

}  // namespace armillary::tokenizer
