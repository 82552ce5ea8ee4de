// vocabulary.h: tokens by id and ids by token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace armillary::tokenizer {

/// Number of a token.
using TokenId = std::int32_t;

/// Largest vocabulary that is read: some ten times that of any published model.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 22;

/// Tokens with numbers in [0, size()); a number may have no token.
class TokenVocabulary {
 public:
  /// @throws InvalidArgument for an id outside [0, kMostTokens), or one of another token; a token
  /// may have more than one id, and find() gives the first that was added.
  void add(std::int64_t id, std::string token);

  /// One more than the largest id.
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  bool has(std::int64_t id) const { return id >= 0 && id < size() && is_there_[at(id)]; }
  /// Requires has(id).
  const std::string& token(std::int64_t id) const { return tokens_[at(id)]; }
  std::optional<TokenId> find(std::string_view token) const;

 private:
  /// Hashes texts and views of them alike.
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  static std::size_t at(std::int64_t id) { return static_cast<std::size_t>(id); }

  std::vector<std::string> tokens_;
  std::vector<bool> is_there_;
  std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>> ids_;
};

}  // namespace armillary::tokenizer
