// picture_data.h: pictures in a file as training data of a DiT (model/dit.h): patches, noise, a
// time and a class, or none. Noise, time and whether the class is told are drawn by (seed, number
// of the sequence): the same on any mesh and after a resume.
//
//   F.safetensors   pictures   U8 (0 to 255 becomes -1 to 1) or F32, [n, height, width, channels]
//                   classes    I64, [n]
//                   text       I64, [n, text_tokens], for a model with text
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "armillary/io/safetensors.h"
#include "armillary/model/dit_kinds.h"
#include "armillary/model/picture.h"
#include "armillary/train/data.h"

namespace armillary::train {

struct PictureOptions {
  model::PictureShape shape;
  std::int64_t n_classes = 1;
  std::int64_t text_tokens = 0;  ///< Words of a picture.
  std::int64_t vocab_size = 0;   ///< Words that there are.
  model::WordsKind words = model::WordsKind::Joint;
  double class_dropout = 0;  ///< Chance that neither is told: n_classes, vocab_size are.
  std::int64_t seed = 0;     ///< Decides the order and what is drawn.
};

/// (1) Epoch e has sequences e n to (e + 1) n - 1, each picture once, in an order of its own.
/// (2) A rank draws the noise of its own tokens alone.
class PictureData : public Data {
 public:
  /// Reads the file once, for its hash. @throws IoError as io::SafetensorsFile; InvalidArgument
  /// unless it has pictures of this shape, each with one of the classes, and with its words.
  PictureData(const std::string& path, const PictureOptions& options);

  std::int64_t vocab_size() const override { return 0; }
  std::int64_t sequences_per_epoch() const override { return count_; }
  Sequence at(std::int64_t index) const override;
  std::optional<SequenceParts> parts(std::int64_t index) const override;
  std::vector<std::string> identity() const override;

 private:
  /// A picture as one sequence learns it.
  struct LearnedPicture {
    std::int64_t index = 0;    ///< Number of the sequence.
    std::int64_t picture = 0;  ///< Its place in the file.
    bool is_told = true;       ///< Its class and its words are.
    double time = 0;
  };
  LearnedPicture picture_of(std::int64_t index) const;
  std::span<const std::byte> bytes_of(std::int64_t picture) const;
  /// Words in front of the patches.
  std::int64_t words_in_front() const {
    return options_.words == model::WordsKind::Joint ? options_.text_tokens : 0;
  }
  std::int64_t tokens() const { return words_in_front() + options_.shape.tokens(); }
  std::int64_t class_of(const LearnedPicture& learned) const;
  /// The word at this place of the text.
  std::int64_t word_of(const LearnedPicture& learned, std::int64_t position) const;
  /// Writes the values of a patch, by its place in the picture.
  void read_patch(std::int64_t picture, std::int64_t place, float* values) const;
  model::Fields rows_of(const LearnedPicture& learned,
                        std::span<const std::int64_t> positions) const;

  PictureOptions options_;
  io::SafetensorsFile file_;
  std::int64_t count_ = 0;  ///< Pictures.
  bool is_bytes_ = false;   ///< U8.
  std::span<const std::byte> pictures_;
  std::vector<std::int64_t> classes_;
  std::vector<std::int64_t> words_;  ///< Picture by picture.
  std::string hash_;
};

}  // namespace armillary::train
