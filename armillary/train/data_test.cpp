// data_test.cpp: sequences that are refused for their fields, lengths or words, and the rows of a
// rank.
#include "armillary/train/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/testing/sequences.h"

namespace armillary::train {
namespace {

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
  EXPECT_EQ(model::targets_of(sequence_of({1, 2, 3}, {0, model::kIgnoredLabel, 3}, {3}).fields), 2);
  EXPECT_EQ(model::targets_of({{"latents", at::zeros({5, 2})}}), 5);
  EXPECT_EQ(model::targets_of({}), 0);
}

TEST(CheckedSequence, IsThatOfTheData) {
  const Sequence required = sequence_of({0, 9}, {9, model::kIgnoredLabel}, {1, 1});
  const Sequence sequence =
      checked_sequence(OneSequence(required), 3, {2, {model::kTokens, model::kLabels}});
  EXPECT_EQ(tokens_of(sequence), tokens_of(required));
  EXPECT_EQ(labels_of(sequence), labels_of(required));
  EXPECT_EQ(sequence.documents, required.documents);
}

TEST(CheckedSequence, RefusesOtherLengthsAndWordsOfNoVocabulary) {
  const auto checks = [](const Sequence& sequence) {
    return [sequence] { checked_sequence(OneSequence(sequence), 3, {2, {model::kTokens}}); };
  };
  const auto refused = [](const std::string& reason) {
    return ThrowsMessage<InvalidArgument>(HasSubstr(reason));
  };
  EXPECT_THAT(checks(sequence_of({1, 2, 3}, {1, 2}, {2})),
              refused("sequence 3 has 3 tokens, 2 labels and documents of 2 tokens"));
  EXPECT_THAT(checks(sequence_of({1, 2}, {1}, {2})), refused("1 labels"));
  EXPECT_THAT(checks(sequence_of({1, 2}, {1, 2}, {2, 1})),
              refused("documents of 3 tokens; training.seq_len 2 of each is required"));
  EXPECT_THAT(checks(sequence_of({1, 10}, {1, 2}, {2})),
              refused("data: token 10 at position 1 of sequence 3; one at least 0 and below 10"));
  EXPECT_THAT(checks(sequence_of({-100, 1}, {1, 2}, {2})), refused("token -100 at position 0"));
  EXPECT_THAT(checks(sequence_of({1, 2}, {-1, 2}, {2})), refused("label -1 at position 0"));
}

TEST(SequenceMask, DocumentsAreThoseOfTheSequence) {
  const std::vector<std::int64_t> documents = {3, 1, 4};
  const auto lengths = plan::Lengths{8, 8};
  EXPECT_EQ(sequence_mask("documents", documents), plan::parse_mask("documents:3,1,4", lengths));
  EXPECT_EQ(sequence_mask("documents:within=window,left=1,right=0", documents),
            plan::parse_mask("documents:3,1,4,within=window,left=1,right=0", lengths));
  EXPECT_EQ(sequence_mask("causal", documents), plan::parse_mask("causal", lengths));
  EXPECT_TRUE(reads_documents("documents"));
  EXPECT_TRUE(reads_documents("documents:within=full"));
  EXPECT_FALSE(reads_documents("documents:5,3"));
  EXPECT_FALSE(reads_documents("causal"));
  EXPECT_EQ(sequence_mask("documents:5,3", documents), plan::parse_mask("documents:5,3", lengths));
  EXPECT_THAT([&] { sequence_mask("document", documents); },
              ThrowsMessage<InvalidArgument>(HasSubstr("documents")));
}

TEST(CheckedSequence, NamesTheFieldThatTheModelReadsAndTheDataLack) {
  const OneSequence data(sequence_of({1, 2}, {1, 2}, {2}));
  EXPECT_THAT(
      [&] {
        checked_sequence(data, 3, {2, {model::kTokens, "latents"}});
      },
      ThrowsMessage<InvalidArgument>("data: sequence 3 has fields tokens, labels; the field "
                                     "'latents', which the model reads, is required"));
}

// Fields of any kind travel along the tokens; only words have a vocabulary.
TEST(CheckedSequence, TakesFieldsOfAnyKind) {
  const Sequence required{.fields = {{"latents", at::ones({2, 4})}, {"times", at::zeros({2})}},
                          .documents = {2}};
  const Sequence sequence = checked_sequence(OneSequence(required), 0, {2, {"latents", "times"}});
  EXPECT_TRUE(at::equal(sequence.fields.at("latents"), at::ones({2, 4})));
  EXPECT_THAT([&] { (void)sequence.fields.at("noise"); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("field 'noise' is read; one of latents or times is required")));
}

TEST(RowsOf, FollowPositions) {
  const model::Fields fields{{"a", at::tensor({10, 11, 12, 13}, at::kLong)},
                             {"b", at::arange(8, at::kFloat).view({4, 2})}};
  const model::Fields rows = model::rows_of(fields, at::tensor({3, 0}, at::kLong));
  EXPECT_TRUE(at::equal(rows.at("a"), at::tensor({13, 10}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::equal(rows.at("b"), at::tensor({6.F, 7.F, 0.F, 1.F}).view({1, 2, 2})));
  EXPECT_EQ(model::rows_of(fields, at::empty({0}, at::kLong)).at("b").sizes(),
            (at::IntArrayRef{1, 0, 2}));
}

}  // namespace
}  // namespace armillary::train
