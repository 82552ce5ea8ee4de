// picture_data.cpp: values of a token are read from the mapped file when they are asked for, and
// noise, time and class are drawn by names of the sequence (model/named_random.h), so nothing is
// kept between sequences.
#include "armillary/train/picture_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
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
constexpr const char* kClassesName = "classes";

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

/// The classes of all pictures.
std::vector<std::int64_t> read_classes(const io::SafetensorsFile& file, std::int64_t count,
                                       std::int64_t n_classes) {
  const io::TensorInfo& info = file.info(kClassesName);
  if (info.dtype != io::TensorDtype::I64 || info.shape != std::vector<std::int64_t>{count}) {
    fail<InvalidArgument>("data: {} has classes {}; I64 [{}], one of each picture, is required",
                          excerpt(file.path()), tensor_text(info), count);
  }
  std::vector<std::int64_t> classes(static_cast<std::size_t>(count));
  std::memcpy(classes.data(), file.bytes(kClassesName).data(), classes.size() * sizeof(classes[0]));
  for (std::size_t i = 0; i < classes.size(); ++i) {
    if (classes[i] >= 0 && classes[i] < n_classes) continue;
    fail<InvalidArgument>(
        "data: {}: class {} of picture {}; one at least 0 and below {}, the model's n_classes, is "
        "required",
        excerpt(file.path()), classes[i], i, n_classes);
  }
  return classes;
}

}  // namespace

PictureData::PictureData(const std::string& path, const PictureOptions& options)
    : options_(options), file_(path) {
  const io::TensorInfo& info = file_.info(kPicturesName);
  check_pictures(path, info, options.shape);
  count_ = info.shape[0];
  is_bytes_ = info.dtype == io::TensorDtype::U8;
  pictures_ = file_.bytes(kPicturesName);
  classes_ = read_classes(file_, count_, options.n_classes);
  hash_ = io::content_hash(io::content_hash(pictures_) +
                           io::content_hash(std::as_bytes(std::span(classes_))));
}

Sequence PictureData::at(std::int64_t index) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(options_.shape.tokens()));
  std::iota(all.begin(), all.end(), 0);
  return {.fields = rows_of(picture_of(index), all), .documents = {options_.shape.tokens()}};
}

std::optional<SequenceParts> PictureData::parts(std::int64_t index) const {
  const LearnedPicture mine = picture_of(index);
  const std::string text = fmt::format("{} {} {} {} {}", io::content_hash(bytes_of(mine.picture)),
                                       mine.index, mine.label, mine.time, options_.seed);
  return SequenceParts{.documents = {options_.shape.tokens()},
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
  const bool is_dropped = numbers.uniform(1) < options_.class_dropout;
  result.label =
      is_dropped ? options_.n_classes : classes_[static_cast<std::size_t>(result.picture)];
  return result;
}

std::span<const std::byte> PictureData::bytes_of(std::int64_t picture) const {
  const std::size_t size = pictures_.size() / static_cast<std::size_t>(count_);
  return pictures_.subspan(static_cast<std::size_t>(picture) * size, size);
}

void PictureData::read_patch(std::int64_t picture, std::int64_t position, float* values) const {
  const model::PictureShape& shape = options_.shape;
  const std::byte* const bytes = bytes_of(picture).data();
  const std::int64_t row = position / shape.columns() * shape.patch;
  const std::int64_t column = position % shape.columns() * shape.patch;
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
  const at::Tensor patches_LC = at::empty({length, width}, at::kFloat);
  const at::Tensor noise_LC = at::empty({length, width}, at::kFloat);
  const model::NamedRandom noise(options_.seed, fmt::format("noise of sequence {}", learned.index));
  auto* patch = patches_LC.mutable_data_ptr<float>();
  auto* noise_row = noise_LC.mutable_data_ptr<float>();
  for (const std::int64_t position : positions) {
    read_patch(learned.picture, position, patch);
    noise.fill_normal(position * width, {noise_row, static_cast<std::size_t>(width)});
    patch += width;
    noise_row += width;
  }
  return {{model::kPatches, patches_LC},
          {model::kNoise, noise_LC},
          {model::kTimes, at::full({length}, learned.time, at::kDouble)},
          {model::kClasses, at::full({length}, learned.label, at::kLong)}};
}

}  // namespace armillary::train
