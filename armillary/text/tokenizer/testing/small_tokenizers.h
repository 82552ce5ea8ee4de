// small_tokenizers.h: small files of each kind of tokenizer, written by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace armillary::tokenizer {

/// tokenizer.json of a byte-level tokenizer: ids of bytes are their values, then merges of "the",
/// " the" and "it", and the added tokens <|end|> (special) and <tool>.
std::string byte_level_json();

/// tokenizer.json as Llama 2's: <unk>, <s>, </s>, the tokens of all bytes, then pieces with U+2581.
std::string byte_fallback_json();

/// The text with the first `from` replaced. Requires that it is there.
std::string with_change(std::string text, std::string_view from, std::string_view to);

/// A writer of the keys of a GGUF file.
class GgufWriter {
 public:
  GgufWriter& text(std::string_view key, std::string_view value);
  GgufWriter& number(std::string_view key, std::uint32_t value);
  GgufWriter& boolean(std::string_view key, bool value);
  GgufWriter& texts(std::string_view key, const std::vector<std::string>& values);
  GgufWriter& floats(std::string_view key, const std::vector<float>& values);
  GgufWriter& integers(std::string_view key, const std::vector<std::int32_t>& values);
  /// The file so far.
  std::string bytes() const;

 private:
  void begin(std::string_view key, std::uint32_t type);

  std::string keys_;
  std::uint64_t count_ = 0;
};

/// The GGUF of byte_level_json() and of byte_fallback_json().
std::string byte_level_gguf();
std::string byte_fallback_gguf();

}  // namespace armillary::tokenizer
