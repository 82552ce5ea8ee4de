#include "armillary/train/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// The same sequence for every index; a vocabulary of 10.
class OneSequence : public Data {
 public:
  explicit OneSequence(Sequence sequence) : sequence_(std::move(sequence)) {}
  std::int64_t vocab_size() const override { return 10; }
  Sequence at(std::int64_t /*index*/) const override { return sequence_; }

 private:
  Sequence sequence_;
};

TEST(Sequence, TargetsAreTheLabelsThatAreNotIgnored) {
  EXPECT_EQ((Sequence{.tokens = {1, 2, 3}, .labels = {0, kIgnoredLabel, 3}}).targets(), 2);
  EXPECT_EQ(Sequence{}.targets(), 0);
}

TEST(CheckedSequence, IsThatOfTheData) {
  const Sequence required{.tokens = {0, 9}, .labels = {9, kIgnoredLabel}, .documents = {1, 1}};
  const Sequence given = checked_sequence(OneSequence(required), 3, 2);
  EXPECT_EQ(given.tokens, required.tokens);
  EXPECT_EQ(given.labels, required.labels);
  EXPECT_EQ(given.documents, required.documents);
}

TEST(CheckedSequence, RefusesOtherLengthsAndWordsOfNoVocabulary) {
  const auto checks = [](const Sequence& sequence) {
    return [sequence] { checked_sequence(OneSequence(sequence), 3, 2); };
  };
  const auto refused = [](const std::string& reason) {
    return ThrowsMessage<InvalidArgument>(HasSubstr(reason));
  };
  EXPECT_THAT(checks({.tokens = {1, 2, 3}, .labels = {1, 2}, .documents = {2}}),
              refused("sequence 3 has 3 tokens, 2 labels and documents of 2 tokens"));
  EXPECT_THAT(checks({.tokens = {1, 2}, .labels = {1}, .documents = {2}}), refused("1 labels"));
  EXPECT_THAT(checks({.tokens = {1, 2}, .labels = {1, 2}, .documents = {2, 1}}),
              refused("documents of 3 tokens; training.seq_len 2 of each is required"));
  EXPECT_THAT(checks({.tokens = {1, 10}, .labels = {1, 2}, .documents = {2}}),
              refused("data: token 10 at position 1 of sequence 3; one at least 0 and below 10"));
  EXPECT_THAT(checks({.tokens = {-100, 1}, .labels = {1, 2}, .documents = {2}}),
              refused("token -100 at position 0"));
  EXPECT_THAT(checks({.tokens = {1, 2}, .labels = {-1, 2}, .documents = {2}}),
              refused("label -1 at position 0"));
}

TEST(SequenceMask, DocumentsAreThoseOfTheSequence) {
  const std::vector<std::int64_t> documents = {3, 1, 4};
  const auto lengths = plan::Lengths{8, 8};
  EXPECT_EQ(sequence_mask("documents", documents), plan::parse_mask("documents:3,1,4", lengths));
  EXPECT_EQ(sequence_mask("documents:within=window,left=1,right=0", documents),
            plan::parse_mask("documents:3,1,4,within=window,left=1,right=0", lengths));
  EXPECT_EQ(sequence_mask("causal", documents), plan::parse_mask("causal", lengths));
  EXPECT_EQ(sequence_mask("documents:5,3", documents), plan::parse_mask("documents:5,3", lengths));
  EXPECT_THAT([&] { sequence_mask("document", documents); },
              ThrowsMessage<InvalidArgument>(HasSubstr("documents")));
}

TEST(Gather, FollowsPositions) {
  const std::vector<std::int64_t> values = {10, 11, 12, 13};
  EXPECT_THAT(gather(values, std::vector<std::int64_t>{3, 0, 2}), ElementsAre(13, 10, 12));
  EXPECT_THAT(gather(values, std::vector<std::int64_t>{}), ElementsAre());
}

}  // namespace
}  // namespace armillary::train
