// packed_text_test.cpp: text as packed sequences: every token once an epoch, labels within
// documents, and an order that seed and epoch alone decide on every platform.
#include "armillary/train/packed_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/testing/sequences.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<std::string> kDocuments = {"abcdefg", "h", "ijk", "lmnopqrstuvw", "\xFFz"};
constexpr std::int64_t kTokens = 7 + 1 + 3 + 12 + 2 + 5;

PackedText pack(std::int64_t seq_len, std::int64_t seed = 0) {
  return {kDocuments, {.seq_len = seq_len, .seed = seed}};
}

TEST(PackedText, EveryTokenIsInOneSequenceOfAnEpoch) {
  const PackedText text = pack(4);
  EXPECT_EQ(text.tokens(), kTokens);
  ASSERT_EQ(text.sequences(), (kTokens - 1) / 4);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::map<std::int64_t, int> count;
    for (std::int64_t i = 0; i < text.sequences(); ++i) {
      for (const auto token : tokens_of(text.at(epoch * text.sequences() + i))) ++count[token];
    }
    // 30 tokens in packing order, of which the first 28 are in 7 sequences; all bytes differ.
    int total = 0;
    for (const auto& [token, n] : count) {
      total += n;
      EXPECT_LE(n, token == kSeparator ? 5 : 1) << "epoch " << epoch << " token " << token;
    }
    EXPECT_EQ(total, 28) << "epoch " << epoch;
  }
}

TEST(PackedText, LabelsAreTheNextTokenOfTheSameDocument) {
  for (const std::int64_t seq_len : {1, 2, 5, 29}) {
    const PackedText text = pack(seq_len);
    for (std::int64_t i = 0; i < text.sequences(); ++i) {
      const Sequence s = text.at(i);
      const Numbers tokens = tokens_of(s);
      const Numbers labels = labels_of(s);
      ASSERT_EQ(tokens.size(), static_cast<std::size_t>(seq_len));
      ASSERT_EQ(labels.size(), tokens.size());
      EXPECT_EQ(std::accumulate(s.documents.begin(), s.documents.end(), std::int64_t{0}), seq_len);
      std::int64_t ignored = 0;
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        EXPECT_EQ(labels[t] == model::kIgnoredLabel, tokens[t] == kSeparator)
            << "seq_len " << seq_len << " sequence " << i << " token " << t;
        ignored += labels[t] == model::kIgnoredLabel ? 1 : 0;
        const bool inside = tokens[t] != kSeparator && t + 1 < tokens.size();
        if (inside) {
          EXPECT_EQ(labels[t], tokens[t + 1]) << "sequence " << i << " token " << t;
        }
      }
      EXPECT_EQ(model::targets_of(s.fields), seq_len - ignored);
    }
  }
}

TEST(PackedText, DocumentsAreThePiecesBetweenSeparators) {
  const PackedText text = pack(29);
  ASSERT_EQ(text.sequences(), 1);
  const Sequence s = text.at(0);
  const Numbers tokens = tokens_of(s);
  std::int64_t end = 0;
  for (std::size_t d = 0; d < s.documents.size(); ++d) {
    const std::int64_t begin = end;
    end += s.documents[d];
    const bool last = d + 1 == s.documents.size();
    for (std::int64_t t = begin; t < end; ++t) {
      const bool separator = tokens[static_cast<std::size_t>(t)] == kSeparator;
      EXPECT_EQ(separator, !last && t == end - 1) << "document " << d << " token " << t;
    }
  }
  // All 30 tokens but the last, which is the separator of the last document.
  EXPECT_EQ(s.documents.size(), kDocuments.size());
}

TEST(PackedText, OrderDependsOnSeedAndEpochOnly) {
  const auto tokens = [](const PackedText& text, std::int64_t i) { return tokens_of(text.at(i)); };
  const PackedText text = pack(3, 5);
  std::vector<std::vector<std::int64_t>> epochs(2);
  bool seeds_differ = false;
  for (std::int64_t i = 0; i < 2 * text.sequences(); ++i) {
    EXPECT_EQ(tokens(text, i), tokens(pack(3, 5), i)) << i;
    seeds_differ |= tokens(text, i) != tokens(pack(3, 6), i);
    auto& epoch = epochs[static_cast<std::size_t>(i / text.sequences())];
    const auto sequence = tokens(text, i);
    epoch.insert(epoch.end(), sequence.begin(), sequence.end());
  }
  EXPECT_TRUE(seeds_differ);
  EXPECT_NE(epochs[0], epochs[1]);
  std::sort(epochs[0].begin(), epochs[0].end());
  std::sort(epochs[1].begin(), epochs[1].end());
  EXPECT_EQ(epochs[0], epochs[1]);
}

TEST(PackedText, TextShorterThanASequenceIsRefused) {
  EXPECT_THAT([] { pack(kTokens); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("5 documents with 30 tokens for training.seq_len 30"),
                        HasSubstr("nearest seq_len: 29"))));
}

TEST(Permutation, IsOneAndTheSameOnEveryPlatform) {
  EXPECT_THAT(permutation(0, 1), ElementsAre());
  auto order = permutation(1000, 42);
  EXPECT_EQ(order, permutation(1000, 42));
  EXPECT_NE(order, permutation(1000, 43));
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_THAT(permutation(6, 7), ElementsAre(5, 1, 4, 2, 0, 3));  // std::mt19937_64 is specified
}

/// Two documents, cut by hand; either may come first.
TEST(PackedText, TokensAreBytesAndASeparatorAfterEachDocument) {
  const PackedText text({"ab\xFF", "c"}, {.seq_len = 5, .seed = 0});
  ASSERT_EQ(text.tokens(), 6);
  const Sequence s = text.at(0);
  const Numbers tokens = tokens_of(s);
  const Numbers labels = labels_of(s);
  if (tokens[0] == 'a') {
    EXPECT_THAT(tokens, ElementsAre('a', 'b', 255, kSeparator, 'c'));
    EXPECT_THAT(labels, ElementsAre('b', 255, kSeparator, model::kIgnoredLabel, kSeparator));
    EXPECT_THAT(s.documents, ElementsAre(4, 1));
  } else {
    EXPECT_THAT(tokens, ElementsAre('c', kSeparator, 'a', 'b', 255));
    EXPECT_THAT(labels, ElementsAre(kSeparator, model::kIgnoredLabel, 'b', 255, kSeparator));
    EXPECT_THAT(s.documents, ElementsAre(2, 3));
  }
  EXPECT_EQ(model::targets_of(s.fields), 4);
}

/// One sequence holds all documents, so its tokens show their order.
TEST(PackedText, TheSeedDecidesTheOrderOfDocumentsWithAllItsBits) {
  std::set<std::vector<std::int64_t>> orders;
  for (const std::int64_t seed : {0, 1, 2, 3}) {
    orders.insert(tokens_of(pack(29, seed).at(0)));
    orders.insert(tokens_of(pack(29, seed + (std::int64_t{1} << 32)).at(0)));
  }
  EXPECT_GE(orders.size(), 7U) << "8 draws of 120 orders";
}

TEST(PackedText, PartsAreThoseOfTheSequence) {
  const PackedText text = pack(9);
  for (const std::int64_t index : {0, 2, 4}) {
    const Sequence whole = text.at(index);
    const SequenceParts parts = *text.parts(index);
    EXPECT_EQ(parts.documents, whole.documents);
    for (const Numbers& positions : {Numbers{0, 4, 8}, {8, 0, 5, 5}, {}, {3}}) {
      const Sequence part{.fields = parts.rows(positions), .documents = {}};
      Numbers tokens;
      Numbers labels;
      for (const std::int64_t position : positions) {
        tokens.push_back(tokens_of(whole)[position]);
        labels.push_back(labels_of(whole)[position]);
      }
      EXPECT_EQ(tokens_of(part), tokens);
      EXPECT_EQ(labels_of(part), labels);
    }
  }
}

TEST(PackedText, DigestsTellTextsAndSequences) {
  const PackedText text = pack(4);
  EXPECT_EQ(text.parts(1)->digest, pack(4).parts(1)->digest);
  EXPECT_NE(text.parts(1)->digest, text.parts(2)->digest);
  EXPECT_NE(text.parts(0)->digest, pack(5).parts(0)->digest);
  const PackedText other({"abcdefG", "h", "ijk", "lmnopqrstuvw", "\xFFz"}, {.seq_len = 4});
  for (std::int64_t i = 0; i < text.sequences(); ++i) {
    EXPECT_NE(text.parts(i)->digest, other.parts(i)->digest) << i;
  }
}

}  // namespace
}  // namespace armillary::train
