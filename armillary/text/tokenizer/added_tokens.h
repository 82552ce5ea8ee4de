// added_tokens.h: tokens that are looked for in a text before anything else cuts it, such as
// `<|endoftext|>`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/text/tokenizer/split_pattern.h"
#include "armillary/text/tokenizer/vocabulary.h"

namespace armillary::tokenizer {

/// A token of its own, whatever the model would make of its text.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool is_special = false;     ///< Decoding may skip it.
  bool is_normalized = false;  ///< It is looked for in the normalized text.
  bool takes_left = false;     ///< With the white space in front of it.
  bool takes_right = false;    ///< With the white space behind it.
};

/// A part of a text: an added token, or what lies between two of them.
struct TextPart {
  TextSpan span;
  std::optional<TokenId> token;
};

/// A set of texts to look for. Threads: any.
class AddedTokens {
 public:
  /// Requires contents that are not empty; of equal ones the first counts.
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  bool empty() const { return tokens_.empty(); }

  /// Appends the parts of a text in their order: matches do not overlap, the leftmost counts, and
  /// of those that begin together the longest. Cost: O(text) for tokens that begin rarely, at most
  /// O(text x longest token).
  void split(std::string_view text, std::vector<TextPart>& parts) const;

 private:
  /// A node of the tree of contents. Children are few, so they are a list.
  struct ContentBranch {
    std::vector<std::pair<char, std::int32_t>> children;
    std::int32_t token = -1;  ///< Index of the content that ends here.
  };

  /// Index of the longest content at `at`; -1: none.
  std::int32_t match(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<ContentBranch> tree_;
  std::array<bool, 256> begins_{};  ///< Whether a content begins with the byte.
};

}  // namespace armillary::tokenizer
