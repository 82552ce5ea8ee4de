// tokenizer.h: text to ids and back, as the tokenizer of a published model does it.
//
//   text --added tokens--> parts --normalizer--> --pre-tokenizer--> words --BPE--> ids
//                            '-- an added token is its id                            |
//   text <--------------------- decoder <--------------- tokens <-------------------'
//
// A tokenizer is read from tokenizer.json of Hugging Face or from the metadata of a GGUF file
// (load_tokenizer.h). Ids are those of PyPI `tokenizers`, for byte-level BPE (GPT-2, Llama 3,
// SmolLM, Qwen) and BPE with byte fallback (Llama 2, Mistral). Chat templates are not read.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/text/tokenizer/added_tokens.h"
#include "armillary/text/tokenizer/bpe.h"
#include "armillary/text/tokenizer/decoder.h"
#include "armillary/text/tokenizer/normalizer.h"
#include "armillary/text/tokenizer/pre_tokenizer.h"
#include "armillary/text/tokenizer/vocabulary.h"

namespace armillary::tokenizer {

/// Tokens by their role; nothing if the files name none.
struct SpecialIds {
  std::optional<TokenId> begin;  ///< In front of a text.
  std::optional<TokenId> end;    ///< Behind a text or a document.
  std::optional<TokenId> padding;
  std::optional<TokenId> unknown;
};

/// Everything that a tokenizer is made of, as readers of files give it.
struct TokenizerParts {
  TokenVocabulary vocabulary;
  std::vector<BpeMerge> merges;
  BpeOptions model;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  std::vector<TokenId> before;  ///< Special ids in front of every text, and behind it.
  std::vector<TokenId> after;
  SpecialIds special;
  std::string origin;  ///< Path of the file.
  std::string digest;  ///< Hash of the parts that decide ids: 32 hexadecimal digits.
};

/// A tokenizer. Immutable. Threads: any number may call at the same time; each call takes working
/// memory from a pool, with the words that were met before.
class Tokenizer {
 public:
  /// @throws InvalidArgument if the parts do not fit together: as Bpe, an added token that is empty
  /// or has an id of another token.
  explicit Tokenizer(TokenizerParts parts);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) = delete;

  /// Ids of a text. U+FFFD stands for bytes that are no UTF-8, as Python's errors="replace".
  /// `with_special`: with the ids in front and behind that the tokenizer adds.
  /// @throws InvalidArgument for a text of 1 GiB or more, or as replaced() and SplitPattern::find.
  std::vector<TokenId> encode(std::string_view text, bool with_special = false) const;

  /// The same of many texts, on all cores. @throws as encode(), for the first that fails.
  std::vector<std::vector<TokenId>> encode_all(std::span<const std::string_view> texts,
                                               bool with_special = false) const;

  /// The text of ids, as UTF-8. An id without a token is nothing. `skip_special` leaves out special
  /// tokens.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  /// One more than the largest id, added tokens included.
  std::int64_t vocab_size() const { return parts_.vocabulary.size(); }
  const TokenVocabulary& vocabulary() const { return parts_.vocabulary; }
  const SpecialIds& special_ids() const { return parts_.special; }
  const std::string& origin() const { return parts_.origin; }
  const std::string& digest() const { return parts_.digest; }

 private:
  struct Scratch;
  class Borrowed;

  void encode_part(std::string_view text, bool is_first, std::vector<TokenId>& out,
                   Scratch& scratch) const;
  void encode_into(std::string_view text, std::vector<TokenId>& out, Scratch& scratch) const;

  TokenizerParts parts_;
  Bpe bpe_;
  AddedTokens in_text_;        ///< Looked for in the text as it is given.
  AddedTokens in_normalized_;  ///< Looked for behind the normalizer.
  std::vector<bool> is_special_;
  mutable std::unique_ptr<std::mutex> mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> pool_;
};

}  // namespace armillary::tokenizer
