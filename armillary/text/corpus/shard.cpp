// shard.cpp: a shard is written from front to end in one pass, so that its lists, whose length is
// not known before, lie behind the tokens; both ends compute the same offsets from its shape.
#include "armillary/text/corpus/shard.h"

#include <cstring>
#include <span>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/io/content_hash.h"

namespace armillary::corpus {
namespace {

constexpr std::uint32_t kPaddingBit = std::uint32_t{1} << 31U;
constexpr std::size_t kWriteBytes = std::size_t{1} << 20;

/// First byte behind the tokens and their padding.
std::int64_t tokens_end(const ShardShape& shape) {
  // Below 2^62, which leaves room for the lists behind them.
  const std::int64_t bytes =
      checked_product("bytes of a shard",
                      {2, shape.sequences, shape.seq_len + 1, shape.token_bytes}) /
      2;
  return ceil_div(bytes, 4) * 4;
}

void append_token(std::string& buffer, std::int64_t token, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    buffer.push_back(static_cast<char>(static_cast<std::uint64_t>(token) >> (8 * i) & 0xFFU));
  }
}

}  // namespace

int token_bytes(std::int64_t vocab_size) {
  return vocab_size < 65536 ? 2 : 4;
}

std::int64_t ShardShape::bytes() const {
  return tokens_end(*this) + checked_product("bytes of a shard", {sequences + 1 + pieces, 4});
}

ShardWriter::ShardWriter(const std::string& path, std::int64_t seq_len, int token_bytes)
    : file_(io::real_file_system().create(path)),
      shape_{.seq_len = seq_len, .token_bytes = token_bytes} {}

void ShardWriter::add(const PackedSequence& sequence) {
  ARMILLARY_CHECK(static_cast<std::int64_t>(sequence.tokens.size()) == shape_.seq_len);
  for (const tokenizer::TokenId token : sequence.tokens) {
    append_token(buffer_, token, shape_.token_bytes);
  }
  append_token(buffer_, sequence.next, shape_.token_bytes);
  for (std::size_t i = 0; i < sequence.pieces.size(); ++i) {
    const bool is_padding = sequence.has_padding && i + 1 == sequence.pieces.size();
    pieces_.push_back(static_cast<std::uint32_t>(sequence.pieces[i]) |
                      (is_padding ? kPaddingBit : 0U));
  }
  firsts_.push_back(static_cast<std::uint32_t>(pieces_.size()));
  ++shape_.sequences;
  if (buffer_.size() < kWriteBytes) return;
  file_->write(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

ShardShape ShardWriter::finish() {
  shape_.pieces = static_cast<std::int64_t>(pieces_.size());
  const std::int64_t bytes = shape_.sequences * (shape_.seq_len + 1) * shape_.token_bytes;
  buffer_.append(static_cast<std::size_t>(tokens_end(shape_) - bytes), '\0');
  for (const std::uint32_t first : firsts_) append_token(buffer_, first, 4);
  for (const std::uint32_t piece : pieces_) append_token(buffer_, piece, 4);
  file_->write(std::as_bytes(std::span(buffer_)));
  file_->sync();
  file_.reset();
  return shape_;
}

tokenizer::TokenId MappedSequence::token(std::int64_t place) const {
  const std::byte* const begin = bytes.data() + place * token_bytes;
  if (token_bytes == 4) {
    std::int32_t value = 0;
    std::memcpy(&value, begin, sizeof(value));
    return value;
  }
  std::uint16_t value = 0;
  std::memcpy(&value, begin, sizeof(value));
  return value == 0xFFFFU ? kNothingFollows : value;
}

Shard::Shard(const std::string& path, ShardShape shape)
    : path_(path),
      shape_(shape),
      file_({.where = "corpus", .required = "a shard of `armillary data prepare`"}, path) {
  const auto size = static_cast<std::int64_t>(file_.bytes().size());
  if (size != shape.bytes()) {
    fail<IoError>("corpus: '{}' has {} bytes; {}, those of the index, are required", excerpt(path),
                  size, shape.bytes());
  }
  firsts_begin_ = tokens_end(shape);
  pieces_begin_ = firsts_begin_ + 4 * (shape.sequences + 1);
}

std::string Shard::hash() const {
  return io::content_hash(file_.bytes());
}

std::uint32_t Shard::word(std::int64_t byte) const {
  std::uint32_t value = 0;
  std::memcpy(&value, file_.bytes().data() + byte, sizeof(value));
  return value;
}

MappedSequence Shard::at(std::int64_t index) const {
  const std::int64_t bytes = (shape_.seq_len + 1) * shape_.token_bytes;
  MappedSequence sequence{.bytes = file_.bytes().subspan(static_cast<std::size_t>(index * bytes),
                                                         static_cast<std::size_t>(bytes)),
                          .token_bytes = shape_.token_bytes};
  const std::int64_t first = word(firsts_begin_ + 4 * index);
  const std::int64_t last = word(firsts_begin_ + 4 * (index + 1));
  std::int64_t sum = 0;
  bool fits = first < last && last <= shape_.pieces;
  for (std::int64_t i = first; fits && i < last; ++i) {
    const std::uint32_t piece = word(pieces_begin_ + 4 * i);
    sequence.pieces.push_back(piece & ~kPaddingBit);
    sequence.has_padding = (piece & kPaddingBit) != 0;
    sum += sequence.pieces.back();
    fits = sequence.pieces.back() > 0;
  }
  if (!fits || sum != shape_.seq_len) {
    fail<IoError>(
        "corpus: sequence {} of '{}' has pieces that do not fill it; a shard as it was "
        "written is required",
        index, excerpt(path_));
  }
  return sequence;
}

}  // namespace armillary::corpus
