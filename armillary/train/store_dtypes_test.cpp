// store_dtypes_test.cpp: stores of fp64, and of bf16 values with fp32 masters: memory, values that
// models see, gradients in the dtype of masters, and sums that travel in bf16.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/train/check_replicas.h"
#include "armillary/train/testing/three_units.h"

namespace armillary::train {
namespace {

constexpr Dtypes kFp64{at::kDouble, at::kDouble, at::kDouble};
constexpr Dtypes kBf16{at::kFloat, at::kBFloat16, at::kFloat};
constexpr Dtypes kBf16Sums{at::kFloat, at::kBFloat16, at::kBFloat16};

/// The gradients of all ranks by name and first row, after passes of which rank r has r + 1 times
/// the loss.
std::map<std::pair<std::string, std::int64_t>, at::Tensor> rows_of_gradients(int world, int zero,
                                                                             const Dtypes& dtypes,
                                                                             int passes = 1) {
  std::map<std::pair<std::string, std::int64_t>, at::Tensor> rows;
  comm::run_ranks(world, [&](comm::Communicator& comm) {
    ThreeUnits model;
    Store store(model, 7, {.sharded = &comm, .zero = zero}, dtypes);
    train_on(store, model, comm.rank() + 1, passes, {.sharded = &comm});
    // Ranks write one after the other.
    for (int rank = 0; rank < world; ++rank) {
      comm::barrier(comm);
      if (rank != comm.rank()) continue;
      for (const Piece& piece : store.pieces()) {
        const std::int64_t first = piece.range.begin.empty() ? 0 : piece.range.begin[0];
        const std::int64_t count = piece.range.size.empty() ? 1 : piece.range.size[0];
        const at::Tensor matrix = piece.gradient.reshape({count, -1});
        for (std::int64_t row = 0; row < count; ++row) {
          rows[{piece.name, first + row}] = matrix[row].clone();
        }
      }
    }
    comm::barrier(comm);
  });
  return rows;
}

TEST(StoreDtypes, BytesAtRestAreTheFormulas) {
  constexpr std::int64_t kParameters = 15 + 9 + 3 + 1;
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    for (int zero = 0; zero <= 3; ++zero) {
      const auto bytes = [&](const Dtypes& dtypes) {
        return Store(ThreeUnits(), 7, {.sharded = &comm, .zero = zero}, dtypes).bytes_at_rest();
      };
      const Store fp32(ThreeUnits(), 7, {.sharded = &comm, .zero = zero});
      std::int64_t own = 0;
      for (const Piece& piece : fp32.pieces()) own += piece.value.numel();
      EXPECT_EQ(bytes(kFp64), 2 * fp32.bytes_at_rest()) << zero;
      const std::int64_t values = zero == 3 ? 0 : 2 * kParameters;
      const std::int64_t gradients = 4 * (zero < 2 ? kParameters : own);
      EXPECT_EQ(bytes(kBf16), values + gradients + 12 * own) << zero;
      EXPECT_EQ(bytes(kBf16Sums), bytes(kBf16)) << zero;
    }
  });
}

TEST(StoreDtypes, StagesHaveTheSameBits) {
  for (const Dtypes& dtypes : {kFp64, kBf16, kBf16Sums}) {
    const auto zero0 = rows_of_gradients(3, 0, dtypes);
    EXPECT_EQ(zero0.size(), 5U + 3 + 3 + 1);
    for (int zero = 1; zero <= 3; ++zero) {
      const auto rows = rows_of_gradients(3, zero, dtypes);
      ASSERT_EQ(rows.size(), zero0.size());
      for (const auto& [place, row] : zero0) {
        EXPECT_EQ(row.scalar_type(), dtypes.master);
        EXPECT_TRUE(at::equal(rows.at(place), row)) << place.first << ' ' << place.second;
      }
    }
  }
}

// Stages 0 and 1 have one sum of all passes, the others a sum of each.
TEST(StoreDtypes, SumsOfSeveralPassesAddUp) {
  const auto wide = rows_of_gradients(3, 0, kBf16, 2);
  const auto zero2 = rows_of_gradients(3, 2, kBf16Sums, 2);
  for (int zero = 0; zero <= 3; ++zero) {
    const auto rows = rows_of_gradients(3, zero, kBf16Sums, 2);
    ASSERT_EQ(rows.size(), wide.size());
    for (const auto& [place, row] : wide) {
      EXPECT_TRUE(rows.at(place).allclose(row, 0.02, 1e-3)) << zero << ' ' << place.first;
      if (zero < 3) continue;
      EXPECT_TRUE(at::equal(rows.at(place), zero2.at(place))) << place.first;
    }
  }
}

TEST(StoreDtypes, SumsThatTravelInBf16AreRounded) {
  const auto wide = rows_of_gradients(2, 1, kBf16);
  double difference = 0;
  for (const auto& [place, row] : rows_of_gradients(2, 1, kBf16Sums)) {
    EXPECT_TRUE(at::equal(row, row.to(at::kBFloat16).to(at::kFloat))) << place.first;
    EXPECT_TRUE(row.allclose(wide.at(place), 0.02, 1e-3)) << place.first;
    difference += (row - wide.at(place)).abs().sum().item<double>();
  }
  EXPECT_GT(difference, 0);
}

/// Counts of tokens beside rows. The first of three replicas has two counts, the second one.
class CountedUnit : public ThreeUnits {
 public:
  std::vector<std::string> units() const override { return {"only"}; }
  std::vector<model::Parameter> parameters() const override {
    return {{.name = "counts", .shape = {3}, .units = {"only"}, .sign_rate = 0.01},
            {.name = "rows", .shape = {5}, .units = {"only"}}};
  }
};

/// Two passes, each with this count and rows that bf16 rounds to 1, and the sums of their
/// gradients.
void sum_counts(Store& store, double count, const Replicas& replicas) {
  store.zero_gradients();
  for (int pass = 1; pass <= 2; ++pass) {
    store.begin_backward(0);
    const model::Weights weights = store.use(0);
    (weights.at("counts") * count).sum().backward();
    (weights.at("rows") * (1 + 0x1p-10)).sum().backward();
    store.release(0);
    if (store.zero() >= 2 || pass == 2) store.start_sum(0);
  }
  if (store.zero() == 0) store.start_gather_sum(0);
  store.finish_sums();
  if (replicas.copies != nullptr) store.sum_share(0, *replicas.copies);
}

/// bf16 has 256 and 258, and above 512 every fourth number.
TEST(StoreDtypes, CountsOfTokensAreSummedWithoutRounding) {
  constexpr Dtypes kSums{at::kFloat, at::kFloat, at::kBFloat16};
  const auto expect_sums = [](const Store& store, double counts, double rows) {
    for (const Piece& piece : store.pieces()) {
      const double required = piece.sign_rate > 0 ? counts : rows;
      EXPECT_TRUE(piece.gradient.eq(required).all().item<bool>())
          << piece.name << ' ' << store.zero() << ' ' << piece.gradient;
    }
  };
  for (int zero = 0; zero <= 3; ++zero) {
    comm::run_ranks(3, [&](comm::Communicator& comm) {
      const Replicas replicas{.sharded = &comm, .zero = zero};
      Store store(CountedUnit(), 7, replicas, kSums);
      sum_counts(store, 257 + 2 * comm.rank(), replicas);  // 257, 259, 261
      expect_sums(store, 2 * 777, 6);
    });
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const auto sharded = comm.split(comm.rank() / 2, comm.rank());
      const auto copies = comm.split(comm.rank() % 2, comm.rank());
      const Replicas replicas{.sharded = sharded.get(), .zero = zero, .copies = copies.get()};
      Store store(CountedUnit(), 7, replicas, kSums);
      sum_counts(store, comm.rank() == 0 ? 257 : 258 + 2 * comm.rank(), replicas);
      expect_sums(store, 2 * (257 + 260 + 262 + 264), 8);
    });
  }
}

TEST(StoreDtypes, ModelsSeeMastersRounded) {
  for (int zero = 0; zero <= 3; ++zero) {
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      Store store(ThreeUnits(), 7, {.sharded = &comm, .zero = zero}, kBf16);
      const at::Tensor drawn = store.use(1).at("matrix").detach().clone();
      store.release(1);
      EXPECT_EQ(drawn.scalar_type(), at::kBFloat16);
      {
        const at::NoGradGuard no_grad;
        for (const Piece& piece : store.pieces()) piece.value.add_(0x1p-12);
      }
      store.gather_values();
      for (const Piece& piece : store.pieces()) EXPECT_EQ(piece.value.scalar_type(), at::kFloat);
      EXPECT_TRUE(store.use(1).at("matrix").allclose(drawn, 0.01, 1e-3));
      store.release(1);
      // Steps too small for bf16 add up in the masters.
      {
        const at::NoGradGuard no_grad;
        for (const Piece& piece : store.pieces()) piece.value.fill_(1);
        for (int i = 0; i < 16; ++i) {
          for (const Piece& piece : store.pieces()) piece.value.add_(0x1p-11);
        }
      }
      store.gather_values();
      EXPECT_TRUE(at::equal(store.use(1).at("matrix").detach(),
                            at::full({3, 3}, 1 + 0x1p-7, at::kBFloat16)));
      store.release(1);
      comm::barrier(comm);
    });
  }
}

// One master of the second copy of a share is changed by less than bf16 shows.
TEST(StoreDtypes, MastersOfCopiesAreCompared) {
  for (int zero = 0; zero <= 3; ++zero) {
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const auto sharded = comm.split(comm.rank() / 2, comm.rank());
      const auto copies = comm.split(comm.rank() % 2, comm.rank());
      const Replicas replicas{.sharded = sharded.get(), .zero = zero, .copies = copies.get()};
      Store store(ThreeUnits(), 7, replicas, kBf16);
      {
        const at::NoGradGuard no_grad;
        for (const Piece& piece : store.pieces()) piece.value.fill_(1);
        store.gather_values();
        expect_equal_replicas(comm, replicas, store, 1);
        if (comm.rank() / 2 == 1) {
          for (const Piece& piece : store.pieces()) piece.value.add_(0x1p-20);
        }
      }
      store.gather_values();
      EXPECT_THAT([&] { expect_equal_replicas(comm, replicas, store, 2); },
                  testing::ThrowsMessage<InvalidArgument>(
                      testing::HasSubstr("of rank 2 differs from that of rank 0 after step 2")))
          << zero;
    });
  }
}

/// A bias that all ranks along tp have, beside rows that 2 ranks cut unevenly, and so the shares of
/// the bias: of two replicas the first has 4 of 7 on rank 0 along tp and 5 on rank 1.
class UnevenUnit : public ThreeUnits {
 public:
  std::vector<std::string> units() const override { return {"only"}; }
  std::vector<model::Parameter> parameters() const override {
    return {{.name = "bias", .shape = {7}, .units = {"only"}},
            {.name = "table",
             .shape = {5, 1},
             .placement = model::TpSplit::Vocabulary,
             .units = {"only"}}};
  }
};

/// An element of the bias, on the ranks that own it along tp: rank = tp + 2 x replica.
struct OwnedElement {
  std::int64_t index = 0;
  int first = 0, second = 0;
};

/// Expects a change of it on the second of them to be told.
void expect_named_along_tp(int zero, const Dtypes& dtypes, const OwnedElement& element) {
  SCOPED_TRACE(testing::Message() << "stage " << zero << ", element " << element.index);
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    const auto sharded = comm.split(comm.rank() % 2, comm.rank());
    const auto tp = comm.split(comm.rank() / 2, comm.rank());
    const Replicas replicas{.sharded = sharded.get(), .zero = zero, .tp = tp.get()};
    Store store(UnevenUnit(), 7, replicas, dtypes);
    const at::NoGradGuard no_grad;
    for (const Piece& piece : store.pieces()) piece.value.fill_(1);
    store.gather_values();
    expect_equal_replicas(comm, replicas, store, 1);
    for (const Piece& piece : store.pieces()) {
      if (comm.rank() != element.second || piece.name != "bias") continue;
      piece.value.narrow(0, element.index - piece.range.begin[0], 1).add_(0x1p-20);
    }
    store.gather_values();
    EXPECT_THAT(
        [&] { expect_equal_replicas(comm, replicas, store, 2); },
        testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(
            "parameter bias of rank " + std::to_string(element.second) +
            " differs from that of rank " + std::to_string(element.first) + " after step 2")));
  });
}

TEST(StoreDtypes, SharesThatRanksAlongTpCutElsewhereAreCompared) {
  for (const OwnedElement& element : {OwnedElement{0, 0, 1}, {4, 2, 1}, {6, 2, 3}}) {
    for (int zero = 1; zero <= 3; ++zero) expect_named_along_tp(zero, kBf16, element);
    expect_named_along_tp(3, {}, element);
  }
}

/// Two gradients of bf16 whose sum bf16 cannot hold.
TEST(StoreDtypes, GradientsOfBf16ValuesAddUpInFp32) {
  Store store(ThreeUnits(), 7, {}, kBf16);
  store.zero_gradients();
  const at::Tensor scale = store.use(2).at("scale");
  (scale * 1.0).backward();
  (scale * 0x1p-10).backward();
  store.check_views();
  EXPECT_EQ(store.pieces().back().gradient.item<double>(), 1 + 0x1p-10);
}

TEST(StoreDtypes, Fp64HasTheValuesOfFp32) {
  const Store wide(ThreeUnits(), 7, {}, kFp64);
  const Store fp32(ThreeUnits(), 7);
  for (std::size_t i = 0; i < fp32.pieces().size(); ++i) {
    EXPECT_EQ(wide.pieces()[i].value.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(wide.pieces()[i].value, fp32.pieces()[i].value.to(at::kDouble)));
  }
}

}  // namespace
}  // namespace armillary::train
