// encode_frames.cpp: a program for tests/tokenizers/: ids, or the text of them, of texts on
// standard input.
//
//   encode_frames TOKENIZER ids|special|text    frames: u32 of bytes, a text   ->   u32 of bytes,
//   an answer: ids as i32, with the special ones that the tokenizer adds, or the text that ids
//   stand for
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/text/tokenizer/load_tokenizer.h"

namespace {

void write_frame(const void* bytes, std::size_t size) {
  const auto count = static_cast<std::uint32_t>(size);
  std::fwrite(&count, sizeof(count), 1, stdout);
  std::fwrite(bytes, 1, size, stdout);
}

void answer_all(const armillary::tokenizer::Tokenizer& tokenizer, std::string_view frames,
                std::string_view mode) {
  while (frames.size() >= sizeof(std::uint32_t)) {
    std::uint32_t size = 0;
    std::memcpy(&size, frames.data(), sizeof(size));
    const std::string_view text = frames.substr(sizeof(size), size);
    frames.remove_prefix(sizeof(size) + text.size());
    const auto ids = tokenizer.encode(text, mode == "special");
    if (mode == "text") {
      const std::string back = tokenizer.decode(ids);
      write_frame(back.data(), back.size());
    } else {
      write_frame(ids.data(), ids.size() * sizeof(ids[0]));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::invalid_argument("encode_frames TOKENIZER ids|special|text");
    const std::string frames{std::istreambuf_iterator<char>(std::cin), {}};
    answer_all(armillary::tokenizer::load_tokenizer(argv[1]), frames, argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
