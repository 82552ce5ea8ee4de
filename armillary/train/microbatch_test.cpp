// microbatch_test.cpp: sequences of one pass as one: every token once over the ranks, positions
// from 0 in each sequence, masks block by block, and the digests that ranks compare.
#include "armillary/train/microbatch.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/testing/prepared_tokens.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/sequences.h"
#include "armillary/train/testing/small_training.h"
#include "armillary/train/token_data.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Recipe recipe_of_passes(std::int64_t seq_len, std::int64_t local, const std::string& layout) {
  Recipe recipe = small_recipe();
  recipe.training.seq_len = seq_len;
  recipe.training.local_batch_size = local;
  recipe.parallelism.layout = layout;
  return recipe;
}

/// The parts of all ranks, from sequence `first` on.
std::vector<Microbatch> microbatch_of_ranks(const Data& data, const Recipe& recipe,
                                            std::int64_t first, int world) {
  const std::unique_ptr<model::Model> model = make_model(recipe);
  std::vector<Microbatch> all;
  all.reserve(world);
  for (int rank = 0; rank < world; ++rank) {
    all.push_back(
        read_microbatch(data, first, *model, recipe, {model->cost().attention, rank, world}));
  }
  return all;
}

Numbers whole_numbers(const at::Tensor& values) {
  const at::Tensor flat = values.flatten().contiguous();
  const auto* const begin = flat.const_data_ptr<std::int64_t>();
  return {begin, begin + flat.numel()};
}

TEST(Microbatch, RanksHaveEveryTokenOfItsSequencesOnce) {
  constexpr std::int64_t kSeq = 13;
  const PackedText text = words(kSeq);
  for (const char* layout : {"contiguous", "zigzag", "striped:2", "balanced"}) {
    for (const std::int64_t local : {1, 2, 4}) {
      for (const int world : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{}, {} sequences, {} ranks", layout, local, world));
        // Pairs of position and token, of all sequences; and how often each is there.
        std::map<std::pair<std::int64_t, std::int64_t>, int> required;
        std::int64_t targets = 0;
        for (std::int64_t i = 5; i < 5 + local; ++i) {
          const Sequence whole = text.at(i);
          targets += model::targets_of(whole.fields);
          const Numbers tokens = tokens_of(whole);
          for (std::int64_t s = 0; s < kSeq; ++s) ++required[{s, tokens[s]}];
        }
        std::map<std::pair<std::int64_t, std::int64_t>, int> counts;
        const auto all = microbatch_of_ranks(text, recipe_of_passes(kSeq, local, layout), 5, world);
        for (const Microbatch& mine : all) {
          const Numbers positions = whole_numbers(mine.positions_L);
          const Numbers tokens = whole_numbers(mine.batch.at(model::kTokens));
          ASSERT_EQ(tokens.size(), positions.size());
          EXPECT_EQ(mine.batch.at(model::kLabels).sizes(), mine.batch.at(model::kTokens).sizes());
          EXPECT_EQ(mine.batch.at(model::kTokens).size(0), 1);
          for (std::size_t t = 0; t < tokens.size(); ++t) ++counts[{positions[t], tokens[t]}];
          targets -= mine.targets;
          EXPECT_EQ(mine.digest, all.front().digest);
          EXPECT_EQ(mine.problem, all.front().problem);
          EXPECT_EQ(mine.problem.mask.q_len(), local * kSeq);
        }
        EXPECT_EQ(counts, required);
        EXPECT_EQ(targets, 0);
      }
    }
  }
}

TEST(Microbatch, DigestsTellSequencesAndTheirOrder) {
  const PackedText text = words(13);
  const auto digest = [&](std::int64_t first, std::int64_t local) {
    return microbatch_of_ranks(text, recipe_of_passes(13, local, "zigzag"), first, 1)
        .front()
        .digest;
  };
  EXPECT_EQ(digest(0, 1), text.parts(0)->digest);
  EXPECT_EQ(digest(0, 2), digest(0, 2));
  EXPECT_NE(digest(0, 2), digest(0, 1));
  EXPECT_NE(digest(0, 2), digest(1, 2));
  EXPECT_NE(digest(0, 2), 0);
}

TEST(JoinedMask, ShowsThePairsOfEachSequenceAlone) {
  constexpr std::int64_t kSeq = 11;
  for (const char* text : {"causal", "full", "window:left=3,right=1", "prefix:4", "block_causal:3",
                           "documents:5,6", "documents:2,9,within=full"}) {
    const plan::Mask one = plan::parse_mask(text, {kSeq, kSeq});
    const plan::Mask other = plan::parse_mask("documents:4,7", {kSeq, kSeq});
    const plan::Mask joined = joined_mask(std::vector{one, other, one});
    for (std::int64_t q = 0; q < 3 * kSeq; ++q) {
      for (std::int64_t k = 0; k < 3 * kSeq; ++k) {
        const plan::Mask& its = q / kSeq == 1 ? other : one;
        const bool shown = q / kSeq == k / kSeq && its.visible(q % kSeq, k % kSeq);
        ASSERT_EQ(joined.visible(q, k), shown) << text << ' ' << q << ' ' << k;
      }
    }
    EXPECT_EQ(joined_mask(std::vector{one}), one);
  }
  const plan::Mask causal = plan::parse_mask("causal", {kSeq, kSeq});
  EXPECT_EQ(joined_mask(std::vector{causal, causal}),
            plan::parse_mask("documents:11,11", {2 * kSeq, 2 * kSeq}));
}

// Zigzag gives a rank a position and its mirror image: of any number of causal sequences, together
// they see as many keys as one whole sequence has.
TEST(JoinedMask, ZigzagBalancesAnyNumberOfCausalSequences) {
  constexpr std::int64_t kSeq = 120;
  for (const int local : {1, 2, 3, 4, 5}) {
    const plan::Mask causal = plan::parse_mask("causal", {kSeq, kSeq});
    const plan::Mask joined = joined_mask(std::vector(static_cast<std::size_t>(local), causal));
    for (const int world : {2, 3, 4, 5}) {
      const plan::Shards shards = plan::shards({plan::LayoutKind::Zigzag}, joined, world);
      for (const plan::Runs& mine : shards.q) {
        const auto area = static_cast<double>(
            joined.area(mine, {plan::run_of({.begin = 0, .end = local * kSeq})}));
        EXPECT_NEAR(area * world / static_cast<double>(joined.area()), 1, 0.02)
            << local << ' ' << world;
      }
    }
  }
}

/// Counts what is read of data; no sequence may be read whole.
class CountedData : public Data {
 public:
  explicit CountedData(const Data& data) : data_(data) {}
  std::int64_t vocab_size() const override { return data_.vocab_size(); }
  Sequence at(std::int64_t index) const override {
    fail<Error>("sequence {} is read whole", index);
  }
  std::optional<SequenceParts> parts(std::int64_t index) const override {
    SequenceParts parts = *data_.parts(index);
    parts.rows = [this, rows = parts.rows](std::span<const std::int64_t> positions) {
      tokens_ += static_cast<std::int64_t>(positions.size());
      return rows(positions);
    };
    return parts;
  }
  std::int64_t tokens() const { return tokens_; }

 private:
  const Data& data_;
  mutable std::atomic<std::int64_t> tokens_ = 0;
};

/// Sequences of 50 tokens.
void expect_own_tokens_only(const Data& all) {
  const auto recipe_of = [&](std::int64_t local) {
    Recipe recipe = recipe_of_passes(50, local, "zigzag");
    recipe.model.vocab_size = all.vocab_size();
    return recipe;
  };
  for (const std::int64_t local : {1, 2}) {
    for (int rank = 0; rank < 4; ++rank) {
      const CountedData data(all);
      const Recipe recipe = recipe_of(local);
      const std::unique_ptr<model::Model> model = make_model(recipe);
      const Microbatch mine =
          read_microbatch(data, 0, *model, recipe, {model->cost().attention, rank, 4});
      EXPECT_EQ(data.tokens(), mine.positions_L.numel());
      EXPECT_LE(data.tokens(), 50 * local / 4 + 2);
    }
  }
  // A whole run, whose ranks together read every token of its steps once.
  Recipe recipe = recipe_of(2);
  recipe.training.global_batch_size = 4;
  recipe.training.steps = 2;
  recipe.parallelism.context_parallel_degree = 3;
  const CountedData data(all);
  train(recipe, data, {});
  EXPECT_EQ(data.tokens(), 2 * 4 * 50);
}

// Rows are counted here; token_data_test.cpp has what parts() of prepared tokens reads beside them.
TEST(Microbatch, ARankReadsItsOwnTokensOnly) {
  expect_own_tokens_only(words(50));
  const ScratchFolder folder;
  const std::string tokens =
      prepare_tokens(folder.path(), "tokens", std::string(420, 'a'), 50, corpus::PackingKind::Cut);
  expect_own_tokens_only(TokenData(tokens, corpus::CorpusPart::Train, 3));
}

/// Parts that are not those of a sequence of two tokens.
class OwnParts : public Data {
 public:
  explicit OwnParts(SequenceParts parts) : parts_(std::move(parts)) {}
  std::int64_t vocab_size() const override { return 10; }
  Sequence at(std::int64_t /*index*/) const override { return {}; }
  std::optional<SequenceParts> parts(std::int64_t /*index*/) const override { return parts_; }

 private:
  SequenceParts parts_;
};

TEST(CheckedParts, RefuseWhatIsNotOfTheSequence) {
  const auto reads = [](const Numbers& documents, const Numbers& tokens) {
    return [documents, tokens] {
      const OwnParts data({.documents = documents, .digest = 1, .rows = [tokens](auto&&) {
                             return sequence_of(tokens, tokens, {}).fields;
                           }});
      const Numbers positions{1, 3};
      checked_parts(data, 7, {4, {model::kTokens}}).rows(positions);
    };
  };
  const auto refused = [](const std::string& reason) {
    return ThrowsMessage<InvalidArgument>(HasSubstr(reason));
  };
  reads({4}, {5, 6})();
  EXPECT_THAT(reads({3}, {5, 6}),
              refused("sequence 7 has documents of 3 tokens; training.seq_len 4 of each"));
  EXPECT_THAT(reads({4}, {5}),
              refused("field tokens of sequence 7 has 1 value for 2 positions; one each"));
  EXPECT_THAT(reads({4}, {5, 10}), refused("data: token 10 at position 3 of sequence 7"));
  const OwnParts nothing(
      {.documents = {4}, .digest = 1, .rows = [](auto&&) { return model::Fields(); }});
  EXPECT_THAT(
      [&] {
        checked_parts(nothing, 7, {4, {model::kTokens}}).rows({});
      },
      refused("sequence 7 has no fields; the field 'tokens'"));
}

TEST(Microbatch, RowsOfAnotherShapeDoNotGoInOnePass) {
  Recipe recipe = small_recipe();
  recipe.training.seq_len = 4;
  recipe.training.local_batch_size = 2;
  class Pictures : public Data {
   public:
    std::int64_t vocab_size() const override { return kVocabSize; }
    Sequence at(std::int64_t index) const override {
      Sequence sequence = sequence_of({1, 2, 3, 4}, {2, 3, 4, 5}, {4});
      sequence.fields.set("picture", at::zeros({4, 2 + index % 2}));
      return sequence;
    }
  };
  const std::unique_ptr<model::Model> model = make_model(recipe);
  EXPECT_THAT(
      [&] {
        read_microbatch(Pictures(), 2, *model, recipe, {.attention = model->cost().attention});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr(
          "data: field picture of sequences 2 and 3 has rows of [2] of Float and [3] of Float; "
          "equal ones are required in one pass; nearest: training.local_batch_size = 1")));
}

}  // namespace
}  // namespace armillary::train
