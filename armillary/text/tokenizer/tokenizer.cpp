// tokenizer.cpp: the road of a text through its parts. Nothing is copied where nothing changes: the
// words of an ASCII text are views of it.
#include "armillary/text/tokenizer/tokenizer.h"

#include <functional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/parallel_for.h"
#include "armillary/core/user_text.h"

namespace armillary::tokenizer {
namespace {

/// Longest text of an added token: each place of a text is compared with as much.
constexpr std::size_t kMostAddedBytes = 1024;

/// The added tokens that are looked for before the normalizer, or behind it, there with normalized
/// contents.
std::vector<AddedToken> tokens_behind(const TokenizerParts& parts, bool is_normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : parts.added) {
    if (token.is_normalized != is_normalized) continue;
    if (is_normalized) token.content = normalized(token.content, parts.normalizer);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

/// The parts, with added tokens in the vocabulary.
TokenizerParts checked_parts(TokenizerParts parts) {
  for (const AddedToken& token : parts.added) {
    if (token.content.empty()) {
      fail<InvalidArgument>("tokenizer: added token {} is empty; one with a text is required",
                            token.id);
    }
    if (token.content.size() > kMostAddedBytes) {
      fail<InvalidArgument>("tokenizer: added token {} has {} bytes; at most {} are required",
                            token.id, token.content.size(), kMostAddedBytes);
    }
    const auto other = parts.vocabulary.find(token.content);
    if (other && *other != token.id) {
      fail<InvalidArgument>(
          "tokenizer: added token {} has id {}; {}, that of the model, is required",
          quote(token.content), token.id, *other);
    }
    parts.vocabulary.add(token.id, token.content);
  }
  return parts;
}

}  // namespace

struct Tokenizer::Scratch {
  BpeScratch bpe;
  PreTokenizerScratch pre_tokenizer;
  std::vector<TextPart> parts;
  std::vector<TextPart> normalized_parts;
};

/// Working memory that goes back to the pool.
class Tokenizer::Borrowed {
 public:
  explicit Borrowed(const Tokenizer& of) : of_(of) {
    const std::lock_guard lock(*of_.mutex_);
    if (of_.pool_.empty()) {
      scratch_ = std::make_unique<Scratch>();
    } else {
      scratch_ = std::move(of_.pool_.back());
      of_.pool_.pop_back();
    }
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    const std::lock_guard lock(*of_.mutex_);
    of_.pool_.push_back(std::move(scratch_));
  }

  Scratch& scratch() { return *scratch_; }

 private:
  const Tokenizer& of_;
  std::unique_ptr<Scratch> scratch_;
};

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(checked_parts(std::move(parts))),
      bpe_(parts_.vocabulary, parts_.merges, parts_.model),
      in_text_(tokens_behind(parts_, false)),
      in_normalized_(tokens_behind(parts_, true)),
      is_special_(static_cast<std::size_t>(parts_.vocabulary.size())),
      mutex_(std::make_unique<std::mutex>()) {
  parts_.merges = {};
  for (const AddedToken& token : parts_.added) {
    if (token.is_special) is_special_[static_cast<std::size_t>(token.id)] = true;
  }
  for (const std::vector<TokenId>* ids : {&parts_.before, &parts_.after}) {
    for (const TokenId id : *ids) {
      if (parts_.vocabulary.has(id)) continue;
      fail<InvalidArgument>("tokenizer: the post-processor adds id {}; one of a token is required",
                            id);
    }
  }
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool with_special) const {
  std::vector<TokenId> ids;
  if (with_special) ids = parts_.before;
  Borrowed borrowed(*this);
  encode_into(text, ids, borrowed.scratch());
  if (with_special) ids.insert(ids.end(), parts_.after.begin(), parts_.after.end());
  return ids;
}

std::vector<std::vector<TokenId>> Tokenizer::encode_all(std::span<const std::string_view> texts,
                                                        bool with_special) const {
  std::vector<std::vector<TokenId>> all(texts.size());
  parallel_for(static_cast<int>(texts.size()), [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    all[at] = encode(texts[at], with_special);
  });
  return all;
}

void Tokenizer::encode_into(std::string_view text, std::vector<TokenId>& out,
                            Scratch& scratch) const {
  if (text.size() >= kMostTextBytes) {
    fail<InvalidArgument>("tokenizer: a text of {} bytes; less than {} is required", text.size(),
                          kMostTextBytes);
  }
  const auto whole = with_replacements(text);
  if (whole) text = *whole;
  if (in_text_.empty()) return encode_part(text, true, out, scratch);
  scratch.parts.clear();
  in_text_.split(text, scratch.parts);
  for (const TextPart& part : scratch.parts) {
    if (part.token) {
      out.push_back(*part.token);
    } else {
      encode_part(text.substr(part.span.begin, part.span.end - part.span.begin),
                  part.span.begin == 0, out, scratch);
    }
  }
}

void Tokenizer::encode_part(std::string_view text, bool is_first, std::vector<TokenId>& out,
                            Scratch& scratch) const {
  std::string changed;
  if (!parts_.normalizer.empty()) {
    changed = normalized(text, parts_.normalizer);
    text = changed;
  }
  const std::function<void(std::string_view)> emit = [&](std::string_view word) {
    bpe_.encode(word, out, scratch.bpe);
  };
  if (in_normalized_.empty()) {
    return pre_tokenize(text, is_first, parts_.pre_tokenizer, scratch.pre_tokenizer, emit);
  }
  scratch.normalized_parts.clear();
  in_normalized_.split(text, scratch.normalized_parts);
  for (const TextPart& part : scratch.normalized_parts) {
    if (part.token) {
      out.push_back(*part.token);
    } else {
      pre_tokenize(text.substr(part.span.begin, part.span.end - part.span.begin),
                   is_first && part.span.begin == 0, parts_.pre_tokenizer, scratch.pre_tokenizer,
                   emit);
    }
  }
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const TokenId id : ids) {
    if (!parts_.vocabulary.has(id)) continue;
    if (skip_special && is_special_[static_cast<std::size_t>(id)]) continue;
    tokens.push_back(parts_.vocabulary.token(id));
  }
  return decoded(std::move(tokens), parts_.decoder);
}

}  // namespace armillary::tokenizer
