// bpe.h: byte-pair encoding: the symbols of a word, joined pair by pair, the pair of least rank
// first and of equal ones the leftmost.
//
//   "lower":  l o w e r  --(e r)-->  l o w er  --(l o)-->  lo w er  --(lo w)-->  low er
//
// Paper: Sennrich et al. 2016, arXiv:1508.07909, section 3.2.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "armillary/text/tokenizer/vocabulary.h"

namespace armillary::tokenizer {

/// A pair of tokens that become one. Its place in a list is its rank, unless it says another.
struct BpeMerge {
  TokenId left = 0;
  TokenId right = 0;
  TokenId joined = 0;
  std::int32_t rank = 0;
};

struct BpeOptions {
  /// Words are bytes, and tokens are written in letters (byte_alphabet.h); else words are code
  /// points.
  bool is_byte_level = false;
  /// A code point that is no token becomes the tokens `<0x41>` of its bytes, if all are there.
  bool has_byte_fallback = false;
  /// The token of all else; nothing: it is dropped.
  std::optional<TokenId> unknown = std::nullopt;
  bool fuses_unknown = false;   ///< Neighbours without a token become one `unknown`.
  bool ignores_merges = false;  ///< A word that is a token is that token.
};

/// Ids of words that were met before.
class WordCache {
 public:
  struct Place {
    std::uint32_t hash = 0;
    std::uint32_t word_begin = 0;
    std::uint32_t word_size = 0;
    std::uint32_t ids_begin = 0;
    std::uint32_t ids_count = 0;  ///< 0: nothing is here.
  };

  WordCache() : places_(kPlaces) {}

  /// The place of the word, or the free one where it would be.
  Place& place_of(std::string_view word, std::uint32_t hash);
  /// Appends the ids of a place that is not free.
  void append(const Place& place, std::vector<TokenId>& out) const;
  /// Remembers the last `count` of `ids` for a word whose place is free. Forgets all if it is full.
  void add(Place& place, std::string_view word, std::uint32_t hash, const std::vector<TokenId>& ids,
           std::size_t count);

 private:
  static constexpr std::size_t kPlaces = std::size_t{1} << 16;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 22;

  std::vector<Place> places_;
  std::string words_;
  std::vector<TokenId> ids_;
  std::size_t count_ = 0;
};

/// Working memory of one thread.
struct BpeScratch {
  /// A symbol of a long word; a list, since they are joined anywhere.
  struct Symbol {
    TokenId id = 0;
    std::int32_t previous = -1;
    std::int32_t next = -1;
    bool is_joined = false;  ///< To the one before it, and gone.
  };
  struct MergeCandidate {
    std::int32_t rank = 0;
    std::int32_t at = 0;
    TokenId joined = 0;
  };

  WordCache cache;
  std::vector<TokenId> ids;
  std::vector<std::int32_t> ranks;
  std::vector<Symbol> symbols;
  std::vector<MergeCandidate> heap;
};

/// The model. Threads: any number, each with a scratch of its own.
class Bpe {
 public:
  /// @throws InvalidArgument if a merge names a token that is not there, or an empty one, or one
  /// whose text is not that of its parts.
  Bpe(const TokenVocabulary& vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options);

  const BpeOptions& options() const { return options_; }

  /// Appends the ids of a word: of bytes, or of UTF-8. Cost: O(n) for a word of the cache, else O(n
  /// log n) in its n bytes.
  void encode(std::string_view word, std::vector<TokenId>& out, BpeScratch& scratch) const;

 private:
  struct PairPlace {
    std::uint64_t pair = 0;
    std::int32_t rank = -1;  ///< -1: nothing is here.
    TokenId joined = 0;
  };

  void add_merge(const TokenVocabulary& vocabulary, const BpeMerge& merge);
  void prepare_code_points(const TokenVocabulary& vocabulary);
  /// Index in pairs_ of two tokens, or of the free place where they would be.
  std::size_t index_of_pair(TokenId left, TokenId right) const;
  const PairPlace& find_pair(TokenId left, TokenId right) const {
    return pairs_[index_of_pair(left, right)];
  }
  TokenId id_of_code_point(std::uint32_t code_point) const;
  void encode_cut(std::string_view text, std::vector<TokenId>& out, BpeScratch& scratch) const;
  void encode_cached(std::string_view word, std::vector<TokenId>& out, BpeScratch& scratch) const;
  void encode_new(std::string_view word, std::vector<TokenId>& out, BpeScratch& scratch) const;
  void symbols_of_bytes(std::string_view word, std::vector<TokenId>& ids) const;
  void symbols_of_code_points(std::string_view word, std::vector<TokenId>& ids) const;
  void add_unknown(bool& is_pending, std::vector<TokenId>& ids) const;
  void join_short(BpeScratch& scratch) const;
  void join_long(BpeScratch& scratch) const;

  BpeOptions options_;
  std::vector<PairPlace> pairs_;
  std::array<TokenId, 256> bytes_{};   ///< Token of each byte; -1: none.
  std::vector<TokenId> code_points_;   ///< Token of each code point; -1: none.
  bool is_cut_ = false;                ///< Texts are cut where no merge joins.
  std::vector<std::uint64_t> inside_;  ///< Sorted: neighbours in the text of a merged token.
  /// Tokens by the bytes of their words, for ignores_merges.
  std::unordered_map<std::string, TokenId> whole_words_;
};

}  // namespace armillary::tokenizer
