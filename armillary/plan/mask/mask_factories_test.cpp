// mask_factories_test.cpp: each named mask shows exactly the pairs of its predicate, counted one by
// one on small sizes, and refuses sizes that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "armillary/core/testing/expect_error.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::plan {
namespace {

using Predicate = std::function<bool(std::int64_t q, std::int64_t k)>;

/// The mask shows exactly the pairs of the predicate, and its area is their number.
void expect_mask(const Mask& mask, Lengths lengths, const Predicate& predicate) {
  ASSERT_EQ(mask.q_len(), lengths.q);
  ASSERT_EQ(mask.kv_len(), lengths.kv);
  std::int64_t area = 0;
  for (std::int64_t q = 0; q < lengths.q; ++q) {
    for (std::int64_t k = 0; k < lengths.kv; ++k) {
      ASSERT_EQ(mask.visible(q, k), predicate(q, k)) << "query " << q << ", key " << k;
      area += predicate(q, k) ? 1 : 0;
    }
  }
  ASSERT_EQ(mask.area(), area);
}

void expect_mask_for_all_lengths(const std::function<Mask(Lengths, Align)>& make,
                                 const std::function<bool(std::int64_t, std::int64_t)>& visible) {
  for (std::int64_t q_len = 0; q_len <= 7; ++q_len) {
    for (std::int64_t kv_len = 0; kv_len <= 7; ++kv_len) {
      for (const Align align : {Align::Start, Align::End}) {
        SCOPED_TRACE(testing::Message() << q_len << " queries, " << kv_len << " keys, align "
                                        << (align == Align::Start ? "start" : "end"));
        const std::int64_t shift = align == Align::Start ? 0 : kv_len - q_len;
        expect_mask(make({q_len, kv_len}, align), {q_len, kv_len},
                    [&](std::int64_t q, std::int64_t k) { return visible(k, k - q - shift); });
      }
    }
  }
}

TEST(MaskFactory, Full) {
  expect_mask_for_all_lengths([](Lengths lengths, Align) { return full_mask(lengths); },
                              [](std::int64_t, std::int64_t) { return true; });
}

TEST(MaskFactory, Causal) {
  expect_mask_for_all_lengths(causal_mask,
                              [](std::int64_t, std::int64_t ahead) { return ahead <= 0; });
}

TEST(MaskFactory, Window) {
  for (std::int64_t left = 0; left <= 3; ++left) {
    for (std::int64_t right = 0; right <= 3; ++right) {
      expect_mask_for_all_lengths(
          [&](Lengths lengths, Align align) {
            return window_mask(lengths, {left, right}, align);
          },
          [&](std::int64_t, std::int64_t ahead) { return -left <= ahead && ahead <= right; });
    }
  }
}

TEST(MaskFactory, WindowWiderThanEverythingIsFull) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(window_mask({5, 9}, {most, most}, Align::End), full_mask({5, 9}));
  EXPECT_EQ(window_mask({5, 5}, {most, 0}, Align::End), causal_mask({5, 5}, Align::Start));
}

TEST(MaskFactory, Prefix) {
  for (std::int64_t prefix = 0; prefix <= 7; ++prefix) {
    expect_mask_for_all_lengths(
        [&](Lengths lengths, Align align) {
          return prefix_mask(lengths, std::min(prefix, lengths.kv), align);
        },
        [&](std::int64_t k, std::int64_t ahead) { return k < prefix || ahead <= 0; });
  }
}

TEST(MaskFactory, BlockCausal) {
  for (std::int64_t length = 0; length <= 12; ++length) {
    for (std::int64_t block = 1; block <= 13; ++block) {
      SCOPED_TRACE(testing::Message() << length << " tokens, blocks of " << block);
      expect_mask(block_causal_mask({length, length}, block), {length, length},
                  [&](std::int64_t q, std::int64_t k) { return k / block <= q / block; });
    }
  }
}

RC_GTEST_PROP(MaskFactory, Documents, ()) {
  const auto length = rc::gen::resize(100, rc::gen::inRange<std::int64_t>(0, 6));
  const auto documents = *rc::gen::resize(8, rc::gen::container<std::vector<std::int64_t>>(length));
  std::vector<std::size_t> document_of;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    document_of.insert(document_of.end(), static_cast<std::size_t>(documents[i]), i);
  }
  const auto n = static_cast<std::int64_t>(document_of.size());
  const auto same = [&](std::int64_t q, std::int64_t k) {
    return document_of[q] == document_of[k];
  };
  expect_mask(documents_mask({n, n}, documents, Full{}), {n, n}, same);
  expect_mask(documents_mask({n, n}, documents), {n, n},
              [&](std::int64_t q, std::int64_t k) { return same(q, k) && k <= q; });
  expect_mask(
      documents_mask({n, n}, documents, Window{2, 1}), {n, n},
      [&](std::int64_t q, std::int64_t k) { return same(q, k) && q - 2 <= k && k <= q + 1; });
  RC_ASSERT(!testing::Test::HasFailure());
}

TEST(MaskFactory, RefusesBadSizes) {
  expect_error(
      "mask: 1 query and 9223372036854775807 keys given; lengths of 0 to 72057594037927936 are "
      "required",
      [] {
        causal_mask({1, std::numeric_limits<std::int64_t>::max()}, Align::End);
      });
  expect_error("mask window: left -1 and right 2 given; at least 0 is required", [] {
    window_mask({4, 4}, {-1, 2}, Align::Start);
  });
  expect_error("mask prefix: 9 of 8 keys given; 0 to 8 is required", [] {
    prefix_mask({4, 8}, 9, Align::Start);
  });
  expect_error("mask block_causal: block 0 of 4 tokens given; at least 1 is required", [] {
    block_causal_mask({4, 4}, 0);
  });
  expect_error("mask block_causal: block 255 of 1073741824 tokens given; at least 256 is required",
               [] {
                 block_causal_mask({1 << 30, 1 << 30}, 255);
               });
  expect_error("mask block_causal: 4 queries and 5 keys given; equal lengths are required", [] {
    block_causal_mask({4, 5}, 2);
  });
}

TEST(MaskFactory, RefusesDocumentsThatDoNotAddUp) {
  expect_error("mask documents: 4 queries and 5 keys given; equal lengths are required", [] {
    documents_mask({4, 5}, {4});
  });
  expect_error(
      "mask documents: lengths add up to 5, the sequence has 4 tokens; equal sums are required; "
      "nearest: 2 as the last",
      [] {
        documents_mask({4, 4}, {2, 3});
      });
  expect_error(
      "mask documents: a document of -1 tokens after 2 given; lengths of 0 and more that add up to "
      "4 are required",
      [] {
        documents_mask({4, 4}, {2, -1, 3});
      });
}

}  // namespace
}  // namespace armillary::plan
