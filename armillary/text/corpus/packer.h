// packer.h: documents of any length as sequences of one length.
//
//   cut        |doc 1 ..<sep>|doc 2 ..<sep>|doc 3 ..      documents one after the other
//              |-- sequence 0 --|-- sequence 1 --|        cut wherever a sequence ends
//   best_fit   |doc 1 ..<sep>|doc 3 ..<sep>|padding|      whole documents, each in the fullest
//              |doc 2 ..........................<sep>|    sequence that has room for it
//
// A document that is longer than a sequence is cut into whole sequences and a rest in both.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "armillary/text/tokenizer/vocabulary.h"

namespace armillary::corpus {

enum class PackingKind : std::uint8_t { Cut, BestFit };

std::string_view to_string(PackingKind kind);  ///< "cut", "best_fit"

struct PackerOptions {
  std::int64_t seq_len = 0;  ///< At least 1.
  PackingKind kind = PackingKind::BestFit;
  tokenizer::TokenId separator = 0;  ///< Behind each document.
  std::uint64_t seed = 0;            ///< Order of the documents of a window.
  /// Tokens that are held to be packed together.
  std::int64_t window_tokens = std::int64_t{1} << 24;
};

/// No token follows: the document ends.
inline constexpr tokenizer::TokenId kNothingFollows = -1;

/// One sequence.
struct PackedSequence {
  std::vector<tokenizer::TokenId> tokens = {};  ///< seq_len of them.
  /// The token behind the last one in its document, or kNothingFollows.
  tokenizer::TokenId next = kNothingFollows;
  std::vector<std::int64_t> pieces =
      {};                    ///< Lengths of documents, or parts of them; they sum to seq_len.
  bool has_padding = false;  ///< The last piece is none: tokens that stand for nothing.
};

/// The fate of the documents.
struct PackerCounts {
  std::int64_t documents = 0;  ///< With at least one token.
  std::int64_t empty = 0;      ///< Documents without any, left out.
  std::int64_t tokens = 0;     ///< Those of documents, with a separator each.
  std::int64_t sequences = 0;
  std::int64_t cuts = 0;     ///< Places where a document was cut.
  std::int64_t padding = 0;  ///< Tokens that stand for nothing.
  std::int64_t dropped = 0;  ///< Tokens at the end that fill no sequence; of `cut` alone.
};

/// Packs documents window by window; within one their order is drawn by the seed. The sequences
/// depend on options and documents alone. Memory: two windows.
class Packer {
 public:
  Packer(PackerOptions options, std::function<void(const PackedSequence&)> emit);

  /// Takes the tokens of a document, without a separator.
  void add(std::vector<tokenizer::TokenId> document);
  /// Packs what is left. Nothing may be added behind it.
  void finish();

  const PackerCounts& counts() const { return counts_; }

 private:
  using Tokens = std::vector<tokenizer::TokenId>;

  void pack_window();
  void cut(std::vector<Tokens> documents);
  void fit(std::vector<Tokens> documents);
  void give(const PackedSequence& sequence);

  PackerOptions options_;
  std::function<void(const PackedSequence&)> emit_;
  PackerCounts counts_;
  std::vector<Tokens> window_;
  std::int64_t window_tokens_ = 0;
  std::uint64_t windows_ = 0;
  Tokens stream_;                  ///< For `cut`: tokens that no sequence has yet,
  std::vector<std::size_t> ends_;  ///< and where documents in it end.
};

}  // namespace armillary::corpus
