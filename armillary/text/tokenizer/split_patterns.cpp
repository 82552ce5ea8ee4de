// Patterns as their authors published them, in the syntax of pattern_tree.h: lookarounds aside, the
// choices of llama.cpp's `llm_tokenizer_bpe` (MIT) under the same names.
#include "armillary/text/tokenizer/split_patterns.h"

#include <memory>
#include <string>

namespace armillary::tokenizer {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kOneNumber = R"(\p{N})";

}  // namespace

const std::vector<NamedPreTokenizer>& named_pre_tokenizers() {
  static const std::vector<NamedPreTokenizer> all{
      {"gpt-2", {kGpt2Pattern}},
      {"mpt", {kGpt2Pattern}},
      {"olmo", {kGpt2Pattern}},
      {"smollm", {kOneNumber, kGpt2Pattern}},
      {"starcoder", {kOneNumber, kGpt2Pattern}},
      {"refact", {kOneNumber, kGpt2Pattern}},
      {"command-r", {kOneNumber, kGpt2Pattern}},
      {"llama-bpe", {kLlama3Pattern}, true, true},
      {"llama-v3", {kLlama3Pattern}, true, true},
      {"llama3", {kLlama3Pattern}, true, true},
      {"dbrx", {kLlama3Pattern}},
      {"smaug-bpe", {kLlama3Pattern}},
      {"qwen2", {kQwen2Pattern}},
      {"deepseek-r1-qwen", {kQwen2Pattern}},
      {"stablelm2", {kQwen2Pattern}},
      {"tekken", {kTekkenPattern}, true, true},
      {"gpt-4o", {kGpt4oPattern}},
      {"llama4", {kGpt4oPattern}},
  };
  return all;
}

SplitStep isolating(std::string_view pattern) {
  return {.pattern = std::make_shared<SplitPattern>(std::string(pattern))};
}

}  // namespace armillary::tokenizer
