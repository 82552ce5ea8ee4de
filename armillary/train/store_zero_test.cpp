// store_zero_test.cpp: stores whose ranks divide what they hold, against the store of one rank: who
// owns what, values when they are used, sums of gradients, and memory.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/model/testing/counting_allocator.h"
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
    ranges.reserve(shapes.size());
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
          train_on(store, mine, comm.rank() + 1, passes, {.sharded = &comm});
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

// Earlier passes are in the sum over copies too.
TEST(StoreZero, CopiesOfAShareAreSummedToo) {
  ThreeUnits model;
  for (const int passes : {1, 3}) {
    Store one(model, 7);
    train_on(one, model, passes * (1 + 2 + 3 + 4), 1);
    for (int zero = 0; zero <= 3; ++zero) {
      comm::run_ranks(4, [&](comm::Communicator& comm) {
        SCOPED_TRACE(testing::Message() << "stage " << zero << ", " << passes << " passes");
        const auto sharded = comm.split(comm.rank() / 2, comm.rank());
        const auto copies = comm.split(comm.rank() % 2, comm.rank());
        ThreeUnits mine;
        const Replicas replicas{.sharded = sharded.get(), .zero = zero, .copies = copies.get()};
        Store store(mine, 7, replicas);
        train_on(store, mine, comm.rank() + 1, passes, replicas);
        for (const Piece& piece : store.pieces()) {
          for (const Piece& whole : one.pieces()) {
            if (whole.name == piece.name) expect_part_of(piece, piece.gradient, whole.gradient);
          }
        }
      });
    }
  }
}

/// The middle unit leaves its bias out of all passes but the last, and its matrix out of all.
class SometimesUsed : public ThreeUnits {
 public:
  explicit SometimesUsed(int passes) : passes_(passes) {}
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs& inputs) override {
    if (unit != 1) return ThreeUnits::run(unit, weights, x, inputs);
    return ++pass_ == passes_ ? (x + weights.at("bias")).tanh() : x.tanh();
  }

 private:
  int passes_;
  int pass_ = 0;
};

TEST(StoreZero, AParameterThatIsUsedLateOrNotHasItsOwnGradientOrNone) {
  constexpr int kPasses = 3;
  SometimesUsed model(kPasses);
  Store one(model, 7);
  train_on(one, model, 2 * (1 + 2), kPasses);  // of two ranks
  for (const Piece& whole : one.pieces()) {
    const bool is_used = whole.name != "matrix";
    EXPECT_EQ(whole.gradient.abs().max().item<float>() > 0, is_used) << whole.name;
  }
  for (int zero = 0; zero <= 3; ++zero) {
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      SometimesUsed mine(kPasses);
      Store store(mine, 7, {.sharded = &comm, .zero = zero});
      train_on(store, mine, 2.0 * (comm.rank() + 1), kPasses, {.sharded = &comm});
      for (const Piece& piece : store.pieces()) {
        for (const Piece& whole : one.pieces()) {
          if (whole.name == piece.name) expect_part_of(piece, piece.gradient, whole.gradient);
        }
      }
    });
  }
}

// 29 ranks: more than there are elements, so some own nothing.
TEST(StoreZero, EmptySharesAreLegal) {
  ThreeUnits model;
  Store one(model, 7);
  train_on(one, model, 29, 1);
  for (int zero = 1; zero <= 3; ++zero) {
    std::vector<std::int64_t> owned(29);
    comm::run_ranks(29, [&](comm::Communicator& comm) {
      ThreeUnits mine;
      Store store(mine, 7, {.sharded = &comm, .zero = zero});
      train_on(store, mine, 1, 1, {.sharded = &comm});
      store.gather_values();
      for (const Piece& piece : store.pieces()) {
        owned[static_cast<std::size_t>(comm.rank())] += piece.value.numel();
        for (const Piece& whole : one.pieces()) {
          if (whole.name == piece.name) expect_part_of(piece, piece.gradient, whole.gradient);
        }
      }
    });
    EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), std::int64_t{0}), 28);
    EXPECT_GT(std::ranges::count(owned, std::int64_t{0}), 0) << zero;
  }
}

TEST(StoreZero, MemoryIsThatAtRestBehindAStepAndNoneBehindAThrow) {
  model::CountingAllocator& memory = model::CountingAllocator::instance();
  for (int zero = 0; zero <= 3; ++zero) {
    for (const bool fails : {false, true}) {
      const std::int64_t before = memory.live_bytes();
      const auto body = [&](comm::Communicator& comm) {
        ThreeUnits model;
        Store store(model, 7, {.sharded = &comm, .zero = zero});
        for (int step = 0; step < 2; ++step) {
          train_on(store, model, 1, 2, {.sharded = &comm});
          store.gather_values();
          // Both ranks are between two steps from the first barrier to the last.
          comm::barrier(comm);
          double rest = static_cast<double>(store.bytes_at_rest());
          const std::int64_t live = memory.live_bytes() - before;
          comm::barrier(comm);
          comm::all_reduce_sum(comm, std::span(&rest, 1));
          EXPECT_EQ(live, static_cast<std::int64_t>(rest)) << "stage " << zero;
        }
        if (!fails) return;
        store.use(0);
        store.prefetch(1);
        if (comm.rank() == 1) throw Error("between two units");
        comm::barrier(comm);
      };
      if (fails) {
        EXPECT_THROW(comm::run_ranks(2, body), Error);
      } else {
        comm::run_ranks(2, body);
      }
      EXPECT_EQ(memory.live_bytes(), before) << "stage " << zero;
    }
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
      if (zero == 0) {
        store.start_sum(0);
        store.start_gather_sum(0);
        store.finish_sums();
      }
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
