// shard.h: a file of packed sequences of one length, and its reader, which maps it.
//
//   tokens    sequences x (seq_len + 1) numbers; the last of each is the token that follows
//             it in its document, or the largest number there is
//   padding   zeros, to a multiple of 4 bytes
//   firsts    sequences + 1 x u32: number of the first piece of each sequence, and of all pieces
//   pieces    u32 each: length of a piece; the highest bit: it is padding
//
// Numbers are little-endian, of 2 bytes if the vocabulary has less than 65,536 tokens, else 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/io/file_system.h"
#include "armillary/io/mapped_file.h"
#include "armillary/text/corpus/packer.h"

namespace armillary::corpus {

/// Bytes of a token in the shards of a vocabulary.
int token_bytes(std::int64_t vocab_size);

/// The shape of a shard; it decides the size of its file.
struct ShardShape {
  std::int64_t seq_len = 0;
  std::int64_t sequences = 0;
  std::int64_t pieces = 0;
  int token_bytes = 2;

  /// @throws InvalidArgument if the size does not fit in 64 bits.
  std::int64_t bytes() const;
};

/// Writes a shard. Tokens go to the file at once, the rest is kept until the end.
class ShardWriter {
 public:
  /// @throws IoError as io::FileSystem.
  ShardWriter(const std::string& path, std::int64_t seq_len, int token_bytes);

  /// Requires a sequence of seq_len.
  void add(const PackedSequence& sequence);
  std::int64_t sequences() const { return shape_.sequences; }
  /// Writes what was kept and syncs the file.
  ShardShape finish();

 private:
  std::unique_ptr<io::OutputFile> file_;
  ShardShape shape_;
  std::string buffer_;
  std::vector<std::uint32_t> firsts_{0};
  std::vector<std::uint32_t> pieces_;
};

/// A sequence in a mapped shard, which must outlive it.
struct MappedSequence {
  std::span<const std::byte> bytes;  ///< Its tokens and the one that follows, of token_bytes each.
  int token_bytes = 2;
  std::vector<std::int64_t> pieces = {};  ///< As PackedSequence::pieces.
  bool has_padding = false;               ///< As PackedSequence::has_padding.
  /// In a Corpus the hash that the index has of its shard, and its number there.
  std::string origin = {};

  /// The token at a place; at seq_len, behind the last, as PackedSequence::next. Requires
  /// 0 <= place <= seq_len.
  tokenizer::TokenId token(std::int64_t place) const;
};

/// A shard, mapped. Threads: any number may read.
class Shard {
 public:
  /// @throws IoError if the file cannot be read, or has not the size of its shape.
  Shard(const std::string& path, ShardShape shape);

  const ShardShape& shape() const { return shape_; }
  /// Hash of the whole file (io/content_hash.h). Cost: one read of it.
  std::string hash() const;
  /// Reads the pieces alone. Requires 0 <= index < sequences. @throws IoError if the pieces are not
  /// those of a sequence.
  MappedSequence at(std::int64_t index) const;

 private:
  std::uint32_t word(std::int64_t byte) const;

  std::string path_;
  ShardShape shape_;
  io::MappedFile file_;
  std::int64_t firsts_begin_ = 0;
  std::int64_t pieces_begin_ = 0;
};

}  // namespace armillary::corpus
