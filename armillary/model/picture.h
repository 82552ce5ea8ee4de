// picture.h: pictures as sequences of patches, row by row (ViT, arXiv:2010.11929), and their fixed
// positions.
//
//   picture [height, width, channels] --> patches [tokens, patch x patch x channels]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace armillary::model {

// Fields (fields.h) of a picture that is mixed with noise.
inline constexpr const char* kPatches = "patches";  ///< Floating, [.., values of a patch].
inline constexpr const char* kNoise = "noise";      ///< Like patches, normal.
/// fp64, from 0, the picture, to 1, noise: the same at all tokens of a sequence.
inline constexpr const char* kTimes = "times";
inline constexpr const char* kClasses = "classes";  ///< int64, likewise; n_classes: none is told.
/// int64, if words are joint: the word of a token, vocab_size if none is told, or kPatchOfPicture.
inline constexpr const char* kText = "text";
inline constexpr std::int64_t kPatchOfPicture = -1;
/// int64, [.., text_tokens], if there is cross-attention: all words of the token's picture.
inline constexpr const char* kWords = "words";

struct PictureShape {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::int64_t patch = 1;  ///< Divides height and width.

  std::int64_t rows() const { return height / patch; }
  std::int64_t columns() const { return width / patch; }
  std::int64_t tokens() const { return rows() * columns(); }
  std::int64_t patch_values() const { return patch * patch * channels; }
  std::int64_t values() const { return height * width * channels; }
};

/// Patches of a picture; each has its values row by row, all channels of a pixel together. And
/// back.
at::Tensor patches_of(const at::Tensor& picture_HWC, const PictureShape& shape);
at::Tensor picture_of(const at::Tensor& patches_SC, const PictureShape& shape);

/// sin and cos of `places` over periods from 2 pi to 20000 pi, `count` of each: [N, count]. fp64.
struct Waves {
  at::Tensor sin_NC;
  at::Tensor cos_NC;
};
Waves waves_at(const at::Tensor& places_N, std::int64_t count);

/// Waves of the column in the first half of the dims, then of the row: DiT's positions. fp64, [L,
/// dim]; dim is a multiple of 4.
at::Tensor sin_cos_positions(const at::Tensor& positions_L, const PictureShape& shape,
                             std::int64_t dim);

}  // namespace armillary::model
