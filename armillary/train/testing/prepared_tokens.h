// prepared_tokens.h: a document as prepared tokens, for tests.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "armillary/text/corpus/prepare.h"
#include "armillary/text/tokenizer/huggingface.h"
#include "armillary/text/tokenizer/testing/small_tokenizers.h"

namespace armillary::train {

/// Prepares one document, root/one.txt, into a new folder root/name, which it returns. Tokens are
/// bytes, and 260 ends the document.
inline std::string prepare_tokens(const std::string& root, const std::string& name,
                                  const std::string& text, std::int64_t seq_len,
                                  corpus::PackingKind packing) {
  const std::string source = root + "/one.txt";
  std::ofstream(source) << text;
  const tokenizer::Tokenizer bytes(
      tokenizer::read_huggingface(tokenizer::byte_level_json(), "", "bytes.json"));
  corpus::prepare({.folder = root + "/" + name,
                   .sources = {{"one", source, 1}},
                   .documents = {},
                   .seq_len = seq_len,
                   .packing = packing,
                   .separator = "<|end|>"},
                  bytes);
  return root + "/" + name;
}

}  // namespace armillary::train
