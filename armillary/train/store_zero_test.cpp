// store_zero_test.cpp: stores whose ranks divide what they hold, against the store of one rank: who
// owns what, values when they are used, sums of gradients, and memory.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/train/store.h"
#include "armillary/train/testing/three_units.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::ThrowsMessage;

/// Expects a part of a piece to be what lies at its place in the whole.
void expect_part_of(const Piece& piece, const at::Tensor& part, const at::Tensor& whole) {
  at::Tensor expected = whole;
  for (std::size_t dim = 0; dim < piece.range.size.size(); ++dim) {
    expected = expected.narrow(static_cast<std::int64_t>(dim), piece.range.begin[dim],
                               piece.range.size[dim]);
  }
  EXPECT_TRUE(part.allclose(expected, 1e-5, 1e-6)) << piece.name;
}

TEST(StoreZero, SharesAreWholeRowsNearEqualParts) {
  const auto shares = [](const std::vector<model::Shape>& shapes, int ranks) {
    std::vector<model::GlobalRange> ranges;
    for (const model::Shape& shape : shapes) ranges.push_back(model::whole_of(shape));
    return shares_of(ranges, ranks);
  };
  EXPECT_THAT(shares({{4, 3}, {4}}, 1), ElementsAre(16));
  EXPECT_THAT(shares({{4, 3}, {4}}, 2), ElementsAre(9, 7));  // 8 is nearer to 9 than to 6
  EXPECT_THAT(shares({{4, 3}, {4}}, 4), ElementsAre(3, 6, 3, 4));
  EXPECT_THAT(shares({{2}}, 4), ElementsAre(0, 1, 0, 1));       // fewer than ranks
  EXPECT_THAT(shares({{1, 100}, {}}, 2), ElementsAre(100, 1));  // one row, and a scalar
  EXPECT_THAT(shares({}, 3), ElementsAre(0, 0, 0));
}

TEST(StoreZero, GradientsAreThoseOfOneRank) {
  ThreeUnits model;
  for (const int world : {2, 3, 4}) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const int passes : {1, 3}) {
        // Rank r has r + 1 times the loss, so the sum has 1 + 2 + .. times that of one rank.
        Store one(model, 7);
        train_on(one, model, passes * world * (world + 1) / 2.0, 1);
        comm::run_ranks(world, [&](comm::Communicator& comm) {
          SCOPED_TRACE(testing::Message() << world << " ranks, stage " << zero << ", " << passes);
          ThreeUnits mine;
          Store store(mine, 7, {.sharded = &comm, .zero = zero});
          EXPECT_EQ(store.digest(), one.digest());
          train_on(store, mine, comm.rank() + 1, passes);
          for (const Piece& piece : store.pieces()) {
            for (const Piece& whole : one.pieces()) {
              if (whole.name != piece.name) continue;
              expect_part_of(piece, piece.gradient, whole.gradient);
              expect_part_of(piece, piece.value, whole.value);
            }
          }
        });
      }
    }
  }
}

TEST(StoreZero, EachElementHasOneOwnerWhoseUpdateReachesAll) {
  for (int zero = 1; zero <= 3; ++zero) {
    std::vector<std::int64_t> owned(3);
    comm::run_ranks(3, [&](comm::Communicator& comm) {
      ThreeUnits model;
      Store store(model, 7, {.sharded = &comm, .zero = zero});
      {
        const at::NoGradGuard no_grad;
        for (const Piece& piece : store.pieces()) {
          piece.value.fill_(1 + comm.rank());
          owned[static_cast<std::size_t>(comm.rank())] += piece.value.numel();
        }
      }
      store.gather_values();
      // The sum of all values is that of ranks times what they own.
      double sum = 0;
      for (const int unit : {0, 1, 2}) {
        const model::Weights weights = store.use(unit);
        const auto names = unit == 0   ? std::vector{"table"}
                           : unit == 1 ? std::vector{"matrix", "bias"}
                                       : std::vector{"scale"};
        for (const char* name : names) sum += weights.at(name).sum().item<double>();
        store.release(unit);
      }
      comm::barrier(comm);
      EXPECT_EQ(sum, static_cast<double>(owned[0] + 2 * owned[1] + 3 * owned[2]));
    });
    EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), std::int64_t{0}), 15 + 9 + 3 + 1);
  }
}

TEST(StoreZero, BytesAtRestAreTheFormulas) {
  constexpr std::int64_t kParameters = 15 + 9 + 3 + 1;
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    for (int zero = 0; zero <= 3; ++zero) {
      const Store store(ThreeUnits(), 7, {.sharded = &comm, .zero = zero});
      std::int64_t own = 0;
      for (const Piece& piece : store.pieces()) own += piece.value.numel();
      if (zero == 0) {
        EXPECT_EQ(own, kParameters);
      }
      const std::int64_t whole[] = {8 * kParameters, 8 * kParameters, 4 * kParameters, 0};
      const std::int64_t shares[] = {8, 8, 12, 16};
      EXPECT_EQ(store.bytes_at_rest(), whole[zero] + shares[zero] * own) << zero;
    }
  });
}

TEST(StoreZero, CopiesOfAShareAreSummedToo) {
  ThreeUnits model;
  Store one(model, 7);
  train_on(one, model, 1 + 2 + 3 + 4, 1);
  for (int zero = 0; zero <= 3; ++zero) {
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const auto sharded = comm.split(comm.rank() / 2, comm.rank());
      const auto copies = comm.split(comm.rank() % 2, comm.rank());
      ThreeUnits mine;
      Store store(mine, 7, {.sharded = sharded.get(), .zero = zero, .copies = copies.get()});
      train_on(store, mine, comm.rank() + 1, 1);
      for (const Piece& piece : store.pieces()) {
        for (const Piece& whole : one.pieces()) {
          if (whole.name == piece.name) expect_part_of(piece, piece.gradient, whole.gradient);
        }
      }
    });
  }
}

// A weight that was given back is no memory of something else: reading it throws.
TEST(StoreZero, WeightsAreGoneAfterRelease) {
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    Store store(ThreeUnits(), 7, {.sharded = &comm, .zero = 3});
    const at::Tensor matrix = store.use(1).at("matrix");
    const at::Tensor copy = matrix.detach().clone();
    store.release(1);
    EXPECT_ANY_THROW((void)matrix.sum().item<float>());
    store.use(1);
    EXPECT_TRUE(at::equal(matrix, copy));
  });
}

TEST(StoreZero, WaitsForALateRankAreCounted) {
  for (const int zero : {0, 3}) {
    std::atomic<bool> waits{false};
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      Store store(ThreeUnits(), 7, {.sharded = &comm, .zero = zero});
      EXPECT_EQ(store.waited_s(), 0) << zero;
      if (comm.rank() == 0) waits = true;
      while (!waits) std::this_thread::yield();
      if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      // A gather, or the sum of a rank without backward.
      if (zero == 3) store.use(0);
      if (zero == 0) store.finish_gradients();
      if (comm.rank() == 0) {
        EXPECT_GT(store.waited_s(), 0.05) << zero;
      }
    });
  }
}

TEST(StoreZero, StagesThatDoNotExistAreRefused) {
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    EXPECT_THAT(
        [&] { Store(ThreeUnits(), 7, {.sharded = &comm, .zero = 4}); },
        ThrowsMessage<InvalidArgument>("store: ZeRO stage 4 given; one from 0 to 3 is required"));
  });
}

}  // namespace
}  // namespace armillary::train
