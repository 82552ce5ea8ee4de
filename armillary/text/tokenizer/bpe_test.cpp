// bpe_test.cpp: the model against the definition: join the pair of least rank until none is left;
// unknown code points, and merges that do not fit.
#include "armillary/text/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A vocabulary of letters, and random merges of what is there.
struct RandomBpe {
  TokenVocabulary vocabulary;
  std::vector<BpeMerge> merges;

  explicit RandomBpe(unsigned seed, int count) {
    std::mt19937 random(seed);
    for (const std::string letter : {"a", "b", "c", "d"}) vocabulary.add(vocabulary.size(), letter);
    while (static_cast<int>(merges.size()) < count) {
      const auto left = static_cast<TokenId>(random() % vocabulary.size());
      const auto right = static_cast<TokenId>(random() % vocabulary.size());
      const std::string joined = vocabulary.token(left) + vocabulary.token(right);
      if (joined.size() > 6) continue;
      if (!vocabulary.find(joined)) vocabulary.add(vocabulary.size(), joined);
      const bool is_new = std::ranges::none_of(merges, [&](const BpeMerge& merge) {
        return merge.left == left && merge.right == right;
      });
      if (!is_new) continue;
      merges.push_back(
          {left, right, *vocabulary.find(joined), static_cast<std::int32_t>(merges.size())});
    }
  }

  std::vector<TokenId> by_definition(const std::string& word) const {
    std::vector<TokenId> ids;
    for (const char letter : word) ids.push_back(letter - 'a');
    for (const BpeMerge* best = nullptr;; best = nullptr) {
      std::size_t at = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        for (const BpeMerge& merge : merges) {
          if (merge.left != ids[i] || merge.right != ids[i + 1]) continue;
          if (best != nullptr && best->rank <= merge.rank) continue;
          best = &merge;
          at = i;
        }
      }
      if (best == nullptr) return ids;
      ids[at] = best->joined;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }
};

TEST(Bpe, JoinsShortAndLongWordsByDefinition) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const RandomBpe of(seed, 30);
    const Bpe bpe(of.vocabulary, of.merges, {});
    BpeScratch scratch;
    std::mt19937 random(seed);
    for (const int length : {1, 2, 3, 10, 40, 41, 127, 128, 129, 300}) {
      std::string word;
      for (int i = 0; i < length; ++i) word += static_cast<char>('a' + random() % 4);
      for (int again = 0; again < 2; ++again) {
        std::vector<TokenId> ids{-7};
        bpe.encode(word, ids, scratch);
        ids.erase(ids.begin());
        EXPECT_EQ(ids, of.by_definition(word)) << "seed " << seed << " word " << word;
      }
    }
  }
}

TEST(Bpe, ForgetsWordsWhenTheyAreMany) {
  const RandomBpe of(3, 30);
  const Bpe bpe(of.vocabulary, of.merges, {});
  BpeScratch scratch;
  std::mt19937 random(3);
  for (int i = 0; i < 80000; ++i) {
    std::string word;
    for (int j = 0; j < 12; ++j) word += static_cast<char>('a' + random() % 4);
    std::vector<TokenId> ids;
    bpe.encode(word, ids, scratch);
    if (i % 500 != 0) continue;
    EXPECT_EQ(ids, of.by_definition(word)) << word;
  }
}

TEST(Bpe, UnknownCodePointsAreFusedDroppedOrBytes) {
  TokenVocabulary vocabulary;
  for (const std::string token : {"?", "a", "<0xC3>", "<0xA9>"}) {
    vocabulary.add(vocabulary.size(), token);
  }
  const auto ids_of = [&](BpeOptions options, const std::string& word) {
    const Bpe bpe(vocabulary, {}, options);
    BpeScratch scratch;
    std::vector<TokenId> ids;
    bpe.encode(word, ids, scratch);
    return ids;
  };
  EXPECT_THAT(ids_of({}, "xay"), ElementsAre(1));
  EXPECT_THAT(ids_of({.unknown = 0}, "xyaz"), ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(ids_of({.unknown = 0, .fuses_unknown = true}, "xyaz"), ElementsAre(0, 1, 0));
  EXPECT_THAT(ids_of({.has_byte_fallback = true, .unknown = 0}, "a\xC3\xA9x"),
              ElementsAre(1, 2, 3, 0));
}

TEST(Bpe, RefusesMergesThatDoNotFit) {
  TokenVocabulary vocabulary;
  for (const std::string token : {"a", "b", "ab", ""}) vocabulary.add(vocabulary.size(), token);
  const auto refuses = [&](const BpeMerge& merge, const std::string& text) {
    EXPECT_THAT([&] { Bpe(vocabulary, {merge}, {}); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refuses({0, 1, 7}, "ids of tokens are required");
  refuses({0, 9, 2}, "ids of tokens are required");
  refuses({0, 0, 2}, "joins 'a' and 'a' to 'ab'");
  refuses({0, 3, 0}, "joins 'a' and '' to 'a'");  // A merge that ends where it began.
}

}  // namespace
}  // namespace armillary::tokenizer
