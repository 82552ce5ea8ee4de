// token_data_test.cpp: labels, documents and order of prepared tokens, whole and in parts; a recipe
// that names them.
#include "armillary/train/token_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/train/load_data.h"
#include "armillary/train/testing/prepared_tokens.h"
#include "armillary/train/testing/sequences.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kEndOfDocument = 260;  // <|end|>
constexpr std::int64_t kIgnored = model::kIgnoredLabel;

/// A folder with one document, prepared.
class TokenFolder : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string prepare(const std::string& text, std::int64_t seq_len, corpus::PackingKind packing) {
    return prepare_tokens(root_.string(), "tokens" + std::to_string(count_++), text, seq_len,
                          packing);
  }

  std::filesystem::path root_ = std::filesystem::temp_directory_path() /
                                (std::string("armillary_token_data_test_") +
                                 testing::UnitTest::GetInstance()->current_test_info()->name());
  int count_ = 0;
};

TEST_F(TokenFolder, PaddingIsADocumentWithoutLabels) {
  const TokenData data(prepare("abc", 6, corpus::PackingKind::BestFit), corpus::CorpusPart::Train,
                       1);
  EXPECT_EQ(data.vocab_size(), 262);
  EXPECT_EQ(data.sequences_per_epoch(), 1);
  const Sequence sequence =
      checked_sequence(data, 5, {.seq_len = 6, .fields = {"tokens", "labels"}});
  EXPECT_THAT(tokens_of(sequence),
              ElementsAre('a', 'b', 'c', kEndOfDocument, kEndOfDocument, kEndOfDocument));
  EXPECT_THAT(labels_of(sequence),
              ElementsAre('b', 'c', kEndOfDocument, kIgnored, kIgnored, kIgnored));
  EXPECT_THAT(sequence.documents, ElementsAre(4, 2));
}

TEST_F(TokenFolder, ACutDocumentHasTheTokenThatFollows) {
  const TokenData data(prepare("abcde", 4, corpus::PackingKind::Cut), corpus::CorpusPart::Train, 1);
  const Sequence sequence = data.at(0);  // "abcde<|end|>" has one sequence of 4 with a next token.
  EXPECT_THAT(tokens_of(sequence), ElementsAre('a', 'b', 'c', 'd'));
  EXPECT_THAT(labels_of(sequence), ElementsAre('b', 'c', 'd', 'e'));
  EXPECT_THAT(sequence.documents, ElementsAre(4));
}

TEST_F(TokenFolder, PartsAreThoseOfTheWholeSequence) {
  for (const corpus::PackingKind packing :
       {corpus::PackingKind::BestFit, corpus::PackingKind::Cut}) {
    const TokenData data(prepare("abcdefghij", 5, packing), corpus::CorpusPart::Train, 1);
    for (std::int64_t i = 0; i < data.sequences_per_epoch(); ++i) {
      const Sequence whole = data.at(i);
      const auto parts = data.parts(i);
      ASSERT_TRUE(parts);
      EXPECT_EQ(parts->documents, whole.documents);
      EXPECT_EQ(parts->digest, data.parts(i)->digest);
      if (i > 0) {
        EXPECT_NE(parts->digest, data.parts(i - 1)->digest);
      }
      const Numbers positions{0, 2, 4};
      const Sequence some{parts->rows(positions), {}};
      for (std::size_t j = 0; j < positions.size(); ++j) {
        const auto position = static_cast<std::size_t>(positions[j]);
        EXPECT_EQ(tokens_of(some)[j], tokens_of(whole)[position]);
        EXPECT_EQ(labels_of(some)[j], labels_of(whole)[position]);
      }
    }
  }
}

TEST_F(TokenFolder, DigestsTellTextsSeedsAndPlaces) {
  const auto digest = [&](const std::string& text, std::int64_t seed, std::int64_t index) {
    const TokenData data(prepare(text, 5, corpus::PackingKind::Cut), corpus::CorpusPart::Train,
                         seed);
    return data.parts(index)->digest;
  };
  const std::uint64_t one = digest("abcdefghijkl", 1, 0);
  EXPECT_NE(one, 0U);
  EXPECT_EQ(digest("abcdefghijkl", 1, 0), one) << "prepared once more";
  EXPECT_NE(digest("abcdefghijkL", 1, 0), one);
  EXPECT_NE(digest("abcdefghijkl", 2, 0), one);
  EXPECT_NE(digest("abcdefghijkl", 1, 1), one);
}

/// Tokens of other ranks are changed in the mapped file: a rank that read them would notice.
TEST_F(TokenFolder, PartsNeedNoTokenOfOtherRanks) {
  const std::string folder = prepare(std::string(60, 'a'), 50, corpus::PackingKind::Cut);
  const TokenData data(folder, corpus::CorpusPart::Train, 1);
  ASSERT_EQ(data.sequences_per_epoch(), 1);
  const Numbers mine{0, 1, 2, 47, 48, 49};
  const auto tokens_at = [&](const Numbers& positions) {
    return tokens_of(Sequence{data.parts(0)->rows(positions), {}});
  };
  const Numbers tokens = tokens_at(mine);
  const std::uint64_t digest = data.parts(0)->digest;
  std::fstream shard(folder + "/train-000-00000.tokens",
                     std::ios::in | std::ios::out | std::ios::binary);
  shard.seekp(std::streamoff{2 * 4});
  shard << std::string(std::size_t{2 * (47 - 4)}, '\0');
  shard.close();
  ASSERT_TRUE(shard.good());
  EXPECT_THAT(tokens_at({3, 4, 46, 47}), ElementsAre('a', 0, 0, 'a')) << "the file was changed";
  EXPECT_EQ(data.parts(0)->digest, digest);
  EXPECT_EQ(tokens_at(mine), tokens);
}

TEST_F(TokenFolder, ARecipeNamesIt) {
  TrainingOptions training;
  training.dataset_path = prepare("abcdefgh", 4, corpus::PackingKind::BestFit);
  training.seq_len = 4;
  const std::unique_ptr<Data> data = load_data(training);
  EXPECT_EQ(data->vocab_size(), 262);
  EXPECT_THAT(data->identity(), testing::Contains("packing = best_fit"));
  training.seq_len = 8;
  EXPECT_THAT([&] { load_data(training); },
              ThrowsMessage<InvalidArgument>(HasSubstr("whose sequences have 4 tokens")));
  training.dataset_path = (root_ / "one.txt").string();
  training.seq_len = 2;
  EXPECT_EQ(load_data(training)->vocab_size(), 257);
  EXPECT_TRUE(load_data(training)->identity().empty());
}

// The validation part of a folder, and all of a text.
TEST_F(TokenFolder, ValidationDataAreAPartOrText) {
  Recipe recipe;
  TrainingOptions& training = recipe.training;
  training.dataset_path = prepare("abcdef", 6, corpus::PackingKind::BestFit);
  training.seq_len = 6;
  EXPECT_EQ(load_validation_data(recipe), nullptr);
  training.validation_interval = 5;
  EXPECT_THAT([&] { load_validation_data(recipe); },
              ThrowsMessage<InvalidArgument>(HasSubstr("prepare it with --validation")));
  training.validation_path = (root_ / "one.txt").string();
  training.seq_len = 3;
  EXPECT_EQ(load_validation_data(recipe)->vocab_size(), 257);
  training.dataset_path = std::exchange(training.validation_path, "");
  EXPECT_THAT([&] { load_validation_data(recipe); },
              ThrowsMessage<InvalidArgument>(HasSubstr("training.validation_path is required")));
}

}  // namespace
}  // namespace armillary::train
