#include "armillary/text/tokenizer/vocabulary.h"

#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::tokenizer {

void TokenVocabulary::add(std::int64_t id, std::string token) {
  if (id < 0 || id >= kMostTokens) {
    fail<InvalidArgument>("tokenizer: token {} has id {}; one at least 0 and below {} is required",
                          quote(token), id, kMostTokens);
  }
  if (has(id)) {
    if (tokens_[at(id)] == token) return;
    fail<InvalidArgument>("tokenizer: id {} is of {} and of {}; one token for each is required", id,
                          quote(tokens_[at(id)]), quote(token));
  }
  if (id >= size()) {
    tokens_.resize(at(id) + 1);
    is_there_.resize(at(id) + 1);
  }
  ids_.try_emplace(token, static_cast<TokenId>(id));
  tokens_[at(id)] = std::move(token);
  is_there_[at(id)] = true;
}

std::optional<TokenId> TokenVocabulary::find(std::string_view token) const {
  const auto place = ids_.find(token);
  if (place == ids_.end()) return std::nullopt;
  return place->second;
}

}  // namespace armillary::tokenizer
