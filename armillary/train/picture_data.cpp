// picture_data.cpp: values of a token are read from the mapped file when they are asked for, and
// noise, time and class are drawn by names of the sequence (model/named_random.h), so nothing is
// kept between sequences.
#include "armillary/train/picture_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/io/content_hash.h"
#include "armillary/model/named_random.h"
#include "armillary/text/corpus/keyed_permutation.h"

namespace armillary::train {
namespace {

constexpr const char* kPicturesName = "pictures";

/// "F32 [10, 8, 8, 1]".
std::string tensor_text(const io::TensorInfo& info) {
  return fmt::format("{} [{}]", io::to_string(info.dtype), fmt::join(info.shape, ", "));
}

/// Refuses pictures of another shape or dtype.
void check_pictures(const std::string& path, const io::TensorInfo& info,
                    const model::PictureShape& shape) {
  const bool has_dtype = info.dtype == io::TensorDtype::U8 || info.dtype == io::TensorDtype::F32;
  const bool has_shape = info.shape.size() == 4 && info.shape[0] > 0 &&
                         info.shape[1] == shape.height && info.shape[2] == shape.width &&
                         info.shape[3] == shape.channels;
  if (has_dtype && has_shape) return;
  fail<InvalidArgument>(
      "data: {} has pictures {}; U8 or F32 [n, {}, {}, {}], the model's image_height, image_width "
      "and channels, is required",
      excerpt(path), tensor_text(info), shape.height, shape.width, shape.channels);
}

/// Numbers of a tensor, which must be of this shape, each below a bound.
struct NumberField {
  const char* name;
  std::vector<std::int64_t> shape;
  std::int64_t below;
  const char* key;  ///< The model's, of that bound.
};

std::vector<std::int64_t> read_numbers(const io::SafetensorsFile& file, const NumberField& field) {
  const io::TensorInfo& info = file.info(field.name);
  if (info.dtype != io::TensorDtype::I64 || info.shape != field.shape) {
    fail<InvalidArgument>("data: {} has {} {}; I64 [{}] is required", excerpt(file.path()),
                          field.name, tensor_text(info), fmt::join(field.shape, ", "));
  }
  const auto bytes = file.bytes(field.name);
  std::vector<std::int64_t> numbers(bytes.size() / sizeof(std::int64_t));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= 0 && numbers[i] < field.below) continue;
    fail<InvalidArgument>(
        "data: {}: {} has {} at {}; one at least 0 and below {}, the model's {}, is required",
        excerpt(file.path()), field.name, numbers[i], i, field.below, field.key);
  }
  return numbers;
}

}  // namespace

PictureData::PictureData(const std::string& path, const PictureOptions& options)
    : options_(options), file_(path) {
  const io::TensorInfo& info = file_.info(kPicturesName);
  check_pictures(path, info, options.shape);
  count_ = info.shape[0];
  is_bytes_ = info.dtype == io::TensorDtype::U8;
  pictures_ = file_.bytes(kPicturesName);
  classes_ = read_numbers(file_, {"classes", {count_}, options.n_classes, "n_classes"});
  if (options.text_tokens > 0) {
    words_ = read_numbers(
        file_, {"text", {count_, options.text_tokens}, options.vocab_size, "vocab_size"});
  }
  hash_ = io::content_hash(io::content_hash(pictures_) +
                           io::content_hash(std::as_bytes(std::span(classes_))) +
                           io::content_hash(std::as_bytes(std::span(words_))));
}

Sequence PictureData::at(std::int64_t index) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(tokens()));
  std::iota(all.begin(), all.end(), 0);
  return {.fields = rows_of(picture_of(index), all), .documents = {tokens()}};
}

std::optional<SequenceParts> PictureData::parts(std::int64_t index) const {
  const LearnedPicture mine = picture_of(index);
  std::string text = fmt::format("{} {} {} {} {}", io::content_hash(bytes_of(mine.picture)),
                                 mine.index, class_of(mine), mine.time, options_.seed);
  for (std::int64_t i = 0; i < options_.text_tokens; ++i) {
    text += fmt::format(" {}", word_of(mine, i));
  }
  return SequenceParts{.documents = {tokens()},
                       .digest = std::stoull(io::content_hash(text).substr(0, 16), nullptr, 16) | 1,
                       .rows = [this, mine](std::span<const std::int64_t> positions) {
                         return rows_of(mine, positions);
                       }};
}

std::vector<std::string> PictureData::identity() const {
  return {"pictures of hash = " + hash_};
}

PictureData::LearnedPicture PictureData::picture_of(std::int64_t index) const {
  const std::int64_t epoch = index / count_;
  const corpus::KeyedPermutation order(static_cast<std::uint64_t>(count_),
                                       corpus::mixed_key({static_cast<std::uint64_t>(options_.seed),
                                                          static_cast<std::uint64_t>(epoch)}));
  LearnedPicture result{.index = index};
  result.picture = static_cast<std::int64_t>(order.at(static_cast<std::uint64_t>(index % count_)));
  const model::NamedRandom numbers(options_.seed,
                                   fmt::format("time and class of sequence {}", index));
  result.time = numbers.uniform(0);
  result.is_told = numbers.uniform(1) >= options_.class_dropout;
  return result;
}

std::int64_t PictureData::class_of(const LearnedPicture& learned) const {
  return learned.is_told ? classes_[static_cast<std::size_t>(learned.picture)] : options_.n_classes;
}

std::int64_t PictureData::word_of(const LearnedPicture& learned, std::int64_t position) const {
  if (!learned.is_told) return options_.vocab_size;
  return words_[static_cast<std::size_t>(learned.picture * options_.text_tokens + position)];
}

std::span<const std::byte> PictureData::bytes_of(std::int64_t picture) const {
  const std::size_t size = pictures_.size() / static_cast<std::size_t>(count_);
  return pictures_.subspan(static_cast<std::size_t>(picture) * size, size);
}

void PictureData::read_patch(std::int64_t picture, std::int64_t place, float* values) const {
  const model::PictureShape& shape = options_.shape;
  const std::byte* const bytes = bytes_of(picture).data();
  const std::int64_t row = place / shape.columns() * shape.patch;
  const std::int64_t column = place % shape.columns() * shape.patch;
  const std::int64_t width = shape.patch * shape.channels;  // of a row of the patch
  for (std::int64_t y = 0; y < shape.patch; ++y) {
    const std::int64_t first = ((row + y) * shape.width + column) * shape.channels;
    for (std::int64_t i = 0; i < width; ++i, ++values) {
      if (is_bytes_) {
        *values = static_cast<float>(bytes[first + i]) / 127.5F - 1;
      } else {
        std::memcpy(values, bytes + (first + i) * static_cast<std::int64_t>(sizeof(float)),
                    sizeof(float));
      }
    }
  }
}

model::Fields PictureData::rows_of(const LearnedPicture& learned,
                                   std::span<const std::int64_t> positions) const {
  const auto length = static_cast<std::int64_t>(positions.size());
  const std::int64_t width = options_.shape.patch_values();
  const at::Tensor patches_LC = at::zeros({length, width}, at::kFloat);
  const at::Tensor noise_LC = at::zeros({length, width}, at::kFloat);
  const at::Tensor text_L = at::full({length}, model::kPatchOfPicture, at::kLong);
  const model::NamedRandom noise(options_.seed, fmt::format("noise of sequence {}", learned.index));
  auto* patch = patches_LC.mutable_data_ptr<float>();
  auto* noise_row = noise_LC.mutable_data_ptr<float>();
  auto* word = text_L.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t position : positions) {
    const std::int64_t place = position - words_in_front();
    if (place < 0) {
      *word = word_of(learned, position);
    } else {
      read_patch(learned.picture, place, patch);
      noise.fill_normal(place * width, {noise_row, static_cast<std::size_t>(width)});
    }
    patch += width;
    noise_row += width;
    ++word;
  }
  model::Fields fields{{model::kPatches, patches_LC},
                       {model::kNoise, noise_LC},
                       {model::kTimes, at::full({length}, learned.time, at::kDouble)},
                       {model::kClasses, at::full({length}, class_of(learned), at::kLong)}};
  if (words_in_front() > 0) fields.set(model::kText, text_L);
  if (options_.text_tokens > words_in_front()) {
    std::vector<std::int64_t> words;
    for (std::int64_t i = 0; i < options_.text_tokens; ++i) words.push_back(word_of(learned, i));
    fields.set(model::kWords, at::tensor(words, at::kLong).expand({length, options_.text_tokens}));
  }
  return fields;
}

}  // namespace armillary::train
