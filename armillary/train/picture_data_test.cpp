// picture_data_test.cpp: sequences depend on file, seed and number alone; parts are slices of the
// whole; files that are not pictures of the model's are refused by name.
#include "armillary/train/picture_data.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/dit_options.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/load_data.h"
#include "armillary/train/testing/picture_file.h"
#include "armillary/train/testing/scratch_folder.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class PictureDataTest : public testing::Test {
 protected:
  PictureDataTest() : path_(folder_.path("pictures.safetensors")) {
    recipe_.training.dataset_path = path_;
    shape_ = model::dit_options(recipe_.model).picture;
    write_pictures(path_, shape_, 7, 3);
  }
  PictureData data(std::int64_t seed = 1, double dropout = 0.3) const {
    return {path_, {.shape = shape_, .n_classes = 3, .class_dropout = dropout, .seed = seed}};
  }

  const ScratchFolder folder_;
  std::string path_;
  Recipe recipe_ = small_dit_recipe();
  model::PictureShape shape_;
};

TEST_F(PictureDataTest, PartsAreSlicesOfTheWhole) {
  const PictureData pictures = data();
  const std::vector<std::int64_t> positions{1, 2, 7, 14};
  for (const std::int64_t index : {0, 6, 7, 1000}) {
    const Sequence whole = pictures.at(index);
    const SequenceParts parts = *pictures.parts(index);
    EXPECT_EQ(parts.documents, whole.documents);
    const model::Fields rows = parts.rows(positions);
    for (const auto& [name, values] : whole.fields) {
      EXPECT_TRUE(
          at::equal(rows.at(name), values.index_select(0, at::tensor(positions, at::kLong))))
          << name << " of " << index;
    }
  }
}

TEST_F(PictureDataTest, DependsOnSeedAndNumberAlone) {
  const PictureData pictures = data();
  for (const std::int64_t index : {0, 8}) {
    EXPECT_EQ(hash_of(pictures.at(index)), hash_of(data().at(index)));
    EXPECT_NE(hash_of(pictures.at(index)), hash_of(data(2).at(index)));
    EXPECT_NE(hash_of(pictures.at(index)), hash_of(pictures.at(index + 7)));
    EXPECT_EQ(pictures.parts(index)->digest, data().parts(index)->digest);
    EXPECT_NE(pictures.parts(index)->digest, data(2).parts(index)->digest);
  }
}

TEST_F(PictureDataTest, AnEpochHasEachPictureOnceWithItsClass) {
  const PictureData pictures = data(1, 0);
  ASSERT_EQ(pictures.sequences_per_epoch(), 7);
  std::set<std::vector<float>> beginnings;
  for (std::int64_t index = 14; index < 21; ++index) {
    const Sequence sequence = pictures.at(index);
    const at::Tensor patches = sequence.fields.at(model::kPatches).contiguous();
    EXPECT_GE(patches.min().item<float>(), -1);
    EXPECT_LE(patches.max().item<float>(), 1);
    // Byte 0 of picture i is 37 i, and its class i % 3.
    const auto first =
        static_cast<std::int64_t>(std::lround((patches[0][0].item<float>() + 1) * 127.5F));
    std::int64_t picture = 0;
    while (picture * 37 % 256 != first) ++picture;
    EXPECT_EQ(sequence.fields.at(model::kClasses)[3].item<std::int64_t>(), picture % 3);
    beginnings.insert({patches.const_data_ptr<float>(), patches.const_data_ptr<float>() + 8});
  }
  EXPECT_EQ(beginnings.size(), 7U);
}

TEST_F(PictureDataTest, WordsStandInFrontOfThePatches) {
  const Recipe text = small_text_dit_recipe();
  PictureOptions options = picture_options(text);
  for (const double dropout : {0.0, 0.999999}) {
    options.class_dropout = dropout;
    const Sequence with_text = PictureData(path_, options).at(3);
    EXPECT_EQ(with_text.documents, std::vector<std::int64_t>{20});
    const Sequence without = data(options.seed, dropout).at(3);
    const at::Tensor words = with_text.fields.at(model::kText);
    for (const char* field : {model::kPatches, model::kNoise}) {
      const at::Tensor values = with_text.fields.at(field);
      EXPECT_TRUE(at::equal(values.narrow(0, 5, 15), without.fields.at(field))) << field;
      EXPECT_EQ(values.narrow(0, 0, 5).abs().max().item<float>(), 0) << field;
    }
    EXPECT_EQ(words.narrow(0, 5, 15).eq(model::kPatchOfPicture).sum().item<std::int64_t>(), 15);
    EXPECT_EQ(words.narrow(0, 0, 5).eq(7).sum().item<std::int64_t>(), dropout > 0 ? 5 : 0);
  }
}

TEST_F(PictureDataTest, WordsOfCrossAttentionAreThoseOfEveryToken) {
  PictureOptions cross = picture_options(small_cross_dit_recipe());
  PictureOptions joint = picture_options(small_text_dit_recipe());
  for (const double dropout : {0.0, 0.999999}) {
    cross.class_dropout = joint.class_dropout = dropout;
    const PictureData pictures(path_, cross);
    const Sequence sequence = pictures.at(3);
    EXPECT_EQ(sequence.documents, std::vector<std::int64_t>{15});
    EXPECT_FALSE(sequence.fields.contains(model::kText));
    const at::Tensor words_LT = sequence.fields.at(model::kWords);
    ASSERT_EQ(words_LT.sizes(), (std::vector<std::int64_t>{15, 5}));
    const Sequence in_front = PictureData(path_, joint).at(3);
    for (const std::int64_t token : {0, 14}) {
      EXPECT_TRUE(at::equal(words_LT[token], in_front.fields.at(model::kText).narrow(0, 0, 5)));
    }
    EXPECT_EQ(words_LT.eq(7).all().item<bool>(), dropout > 0);
    EXPECT_TRUE(at::equal(sequence.fields.at(model::kPatches),
                          in_front.fields.at(model::kPatches).narrow(0, 5, 15)));
    const model::Fields rows = pictures.parts(3)->rows(std::vector<std::int64_t>{2, 9});
    EXPECT_TRUE(at::equal(rows.at(model::kWords), words_LT.narrow(0, 0, 2)));
  }
}

TEST_F(PictureDataTest, ClassesAreDroppedAsOftenAsAsked) {
  const PictureData pictures = data();
  int dropped = 0;
  double times = 0;
  constexpr int kSequences = 2000;
  for (std::int64_t index = 0; index < kSequences; ++index) {
    const model::Fields fields = pictures.parts(index)->rows(std::vector<std::int64_t>{0});
    dropped += fields.at(model::kClasses).item<std::int64_t>() == 3 ? 1 : 0;
    times += fields.at(model::kTimes).item<double>();
  }
  EXPECT_NEAR(dropped, 0.3 * kSequences, 6 * 20.5);
  EXPECT_NEAR(times / kSequences, 0.5, 6 * 0.2887 / std::sqrt(kSequences));
}

TEST_F(PictureDataTest, AreThoseOfTheRecipe) {
  EXPECT_EQ(load_data(recipe_)->sequences_per_epoch(), 7);
  recipe_.training.dataset_path = "";
  EXPECT_THAT([&] { load_data(recipe_); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a .safetensors file of pictures")));
}

TEST_F(PictureDataTest, ValidationReadsAFileOfItsOwn) {
  EXPECT_EQ(load_validation_data(recipe_), nullptr);
  recipe_.training.validation_interval = 2;
  EXPECT_THAT([&] { load_validation_data(recipe_); },
              ThrowsMessage<InvalidArgument>(HasSubstr("which is pictures without a validation "
                                                       "part; training.validation_path is "
                                                       "required")));
  recipe_.training.validation_path = path_;
  recipe_.training.dataset_path = "";
  EXPECT_EQ(load_validation_data(recipe_)->sequences_per_epoch(), 7);
}

TEST_F(PictureDataTest, OtherFilesAreRefusedByName) {
  const auto refused = [&](const model::PictureShape& shape, std::int64_t n_classes,
                           const std::string& text) {
    EXPECT_THAT(([&] { PictureData(path_, {.shape = shape, .n_classes = n_classes}); }),
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  model::PictureShape wide = shape_;
  wide.width = 12;
  refused(wide, 3, "has pictures U8 [7, 6, 10, 2]; U8 or F32 [n, 6, 12, 2]");
  refused(shape_, 2, "classes has 2 at 2; one at least 0 and below 2, the model's n_classes");
  EXPECT_THROW(PictureData(folder_.path("none"), {.shape = shape_}), IoError);
}

}  // namespace
}  // namespace armillary::train
