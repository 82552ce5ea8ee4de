// undeclared_test.cpp: models whose units, parameters and data do not fit each other, on all ranks
// or on one: every rank throws the same line before any tile moves.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/model/registry.h"
#include "armillary/runtime/testing/watched_communicator.h"
#include "armillary/train/testing/changed_decoder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

/// PackedText that says that it has a vocabulary of another size.
class OtherVocabulary : public PackedText {
 public:
  OtherVocabulary(PackedText text, std::int64_t size) : PackedText(std::move(text)), size_(size) {}
  std::int64_t vocab_size() const override { return size_; }

 private:
  std::int64_t size_;
};

/// A fault of three ranks, or of the only one that is named.
struct Fault {
  ChangeParameters change;
  std::int64_t vocab_size = kVocabSize;  ///< That of the data.
  int only = -1;
};

/// The line that each of three ranks throws.
std::string line_of_all_ranks(const Fault& fault) {
  std::vector<std::string> told(3);
  std::atomic<int> tiles = 0;
  const auto body = [&](comm::Communicator& inner) {
    runtime::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
      if (runtime::is_of_a_plan(inner, message)) ++tiles;
    });
    const Recipe recipe = small_recipe();
    const bool is_faulty = fault.only < 0 || fault.only == inner.rank();
    ChangedDecoder model(model::decoder_options(recipe.model).vocab_size(kVocabSize),
                         is_faulty ? fault.change : ChangeParameters());
    const OtherVocabulary data(words(recipe.training.seq_len),
                               is_faulty ? fault.vocab_size : kVocabSize);
    try {
      train(comm::Mesh(comm, {.cp = 3}), model, data, recipe, {});
    } catch (const InvalidArgument& error) {
      told[static_cast<std::size_t>(inner.rank())] = error.what();
      throw;
    }
  };
  EXPECT_THROW(comm::run_ranks(3, body, {.timeout_s = 20}), InvalidArgument);
  EXPECT_EQ(tiles, 0);
  EXPECT_EQ(told[1], told[0]);
  EXPECT_EQ(told[2], told[0]);
  return told[0];
}

void name_one_as_another(std::vector<model::Parameter>& all) {
  all[2].name = all[1].name;
}

TEST(Undeclared, ParametersOfOneNameAreRefusedOnEveryRank) {
  const std::string line =
      "model: two parameters have the name 'layers.0.attention_norm.weight'; a name each is "
      "required";
  EXPECT_EQ(line_of_all_ranks({.change = name_one_as_another}), line);
  EXPECT_EQ(line_of_all_ranks({.change = name_one_as_another, .only = 1}), "rank 1: " + line);
}

TEST(Undeclared, AVocabularyThatTheModelHasNotIsRefusedOnEveryRank) {
  const std::string line =
      "train: data with a vocabulary of 300; at most 257, the model's, is required";
  EXPECT_EQ(line_of_all_ranks({.vocab_size = 300}), line);
  EXPECT_EQ(line_of_all_ranks({.vocab_size = 300, .only = 2}), "rank 2: " + line);
}

TEST(Undeclared, UnitsOfParametersAreRefusedOnEveryRank) {
  const auto misspell = [](std::vector<model::Parameter>& all) { all.back().units = {"heads"}; };
  EXPECT_EQ(line_of_all_ranks({.change = misspell}),
            "model: parameter 'output.weight' is of unit 'heads', which is not declared; "
            "embedding, layers.0, layers.1 or head is required; nearest: head");
}

// The head uses the output matrix, which is declared for the embedding.
TEST(Undeclared, AUnitThatUsesWhatItDidNotDeclareIsRefusedOnEveryRank) {
  const auto misplace = [](std::vector<model::Parameter>& all) {
    all.back().units = {"embedding"};
  };
  EXPECT_EQ(line_of_all_ranks({.change = misplace}),
            "model: unit 'head' uses parameter 'output.weight', which is not declared for it; "
            "norm.weight is required");
}

TEST(Undeclared, PlacementsThatDoNotDivideAreRefusedOnEveryRank) {
  const auto coarsen = [](std::vector<model::Parameter>& all) { all.back().grain = 2; };
  const std::string line =
      "model: parameter 'output.weight' [257, 32], cut by vocabulary, has grains of 2; a divisor "
      "of 257 is required; nearest: 1";
  EXPECT_EQ(line_of_all_ranks({.change = coarsen}), line);
  EXPECT_EQ(line_of_all_ranks({.change = coarsen, .only = 0}), "rank 0: " + line);
}

}  // namespace
}  // namespace armillary::train
