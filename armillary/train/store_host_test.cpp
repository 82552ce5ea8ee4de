// store_host_test.cpp: state on the host passes through two buffers, whose memory is that of the
// states in them.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/testing/counting_allocator.h"
#include "armillary/train/store.h"
#include "armillary/train/testing/three_units.h"

namespace armillary::train {
namespace {

/// State of the units, two moments in fp32.
constexpr std::int64_t kFirst = std::int64_t{8} * 15;
constexpr std::int64_t kMiddle = std::int64_t{8} * 12;
constexpr std::int64_t kLast = 8;

/// Adds to the state of a unit as an update does.
void add_to_state(Store& store, int unit, int buffer) {
  for (const Piece& piece : store.staged_pieces(unit, buffer)) {
    piece.mean.add_(unit + 1);
    piece.square.add_(unit + 10);
  }
}

TEST(StoreHost, StatePassesThroughTwoBuffers) {
  model::CountingAllocator& memory = model::CountingAllocator::instance();
  Store store(ThreeUnits(), 7, {}, {}, {.on_host = true});
  EXPECT_EQ(store.bytes_on_host(), kFirst + kMiddle + kLast);
  EXPECT_EQ(store.bytes_at_rest(), store.bytes_on_host()) << "values and gradients have as many";
  for (int step = 1; step <= 2; ++step) {
    const std::int64_t live = memory.live_bytes();
    const std::int64_t peak = memory.peak_bytes([&] {
      store.start_fetch(0, 0);
      store.start_fetch(1, 1);
      add_to_state(store, 0, 0);
      store.start_move_back(0, 0);
      store.start_fetch(2, 0);
      add_to_state(store, 1, 1);
      store.start_move_back(1, 1);
      add_to_state(store, 2, 0);
      store.start_move_back(2, 0);
      store.finish_moves();
    });
    EXPECT_GE(peak, kFirst + kMiddle);
    EXPECT_LE(peak, kFirst + kMiddle + 64) << "numbers that are added";
    EXPECT_EQ(memory.live_bytes(), live);
    for (const Piece& piece : store.pieces()) {
      EXPECT_EQ(piece.mean.min().item<float>(), static_cast<float>(step * (piece.unit + 1)));
      EXPECT_EQ(piece.mean.max().item<float>(), static_cast<float>(step * (piece.unit + 1)));
      EXPECT_EQ(piece.square.max().item<float>(), static_cast<float>(step * (piece.unit + 10)));
    }
  }
  EXPECT_EQ(store.peak_bytes(), store.bytes_at_rest() + kFirst + kMiddle);
}

// The proof refuses such programs (plan/step/check_step.h); a store does too.
TEST(StoreHost, ABufferInUseIsNoOther) {
  Store store(ThreeUnits(), 7, {}, {}, {.on_host = true});
  store.start_fetch(0, 0);
  EXPECT_THROW(store.start_fetch(1, 0), InternalError);
  EXPECT_THROW((void)store.staged_pieces(1, 0), InternalError);
  EXPECT_THROW((void)store.staged_pieces(0, 1), InternalError);
  EXPECT_THROW(store.start_move_back(1, 0), InternalError);
  Store device(ThreeUnits(), 7);
  EXPECT_THROW(device.start_fetch(0, 0), InternalError);
  device.finish_moves();
}

TEST(StoreHost, ABufferOfAnotherUnitGivesNoValues) {
  Store store(ThreeUnits(), 7, {}, {.param = at::kBFloat16}, {.on_host = true});
  const at::Tensor before = store.use(1).at("matrix").detach().clone();
  const auto expect_refused = [&](int unit, int buffer, const char* text) {
    EXPECT_THAT([&] { store.place_staged(unit, buffer); },
                testing::ThrowsMessage<InternalError>(text));
  };
  store.start_fetch(0, 0);
  (void)store.staged_pieces(0, 0);
  expect_refused(1, 0, "store: buffer 0 with the state of unit 0; that of unit 1 is required");
  expect_refused(0, 1, "store: buffer 1 with the state of no unit; that of unit 0 is required");
  store.start_move_back(0, 0);
  expect_refused(0, 0, "store: buffer 0 with the state of no unit; that of unit 0 is required");
  store.finish_moves();
  EXPECT_TRUE(store.use(1).at("matrix").equal(before));
}

// Masters of bf16 values are with the moments; models have their values at once.
TEST(StoreHost, MastersInABufferGiveModelsTheirValues) {
  Store store(ThreeUnits(), 7, {}, {.param = at::kBFloat16}, {.on_host = true});
  store.start_fetch(1, 0);
  for (const Piece& piece : store.staged_pieces(1, 0)) piece.value.fill_(0.5);
  store.place_staged(1, 0);
  store.start_move_back(1, 0);
  store.start_gather_values(1);
  store.finish_moves();
  const at::Tensor matrix = store.use(1).at("matrix");
  EXPECT_EQ(matrix.min().item<float>(), 0.5F);
  for (const Piece& piece : store.pieces()) {
    if (piece.unit != 1) continue;
    EXPECT_EQ(piece.value.max().item<float>(), 0.5F);
  }
}

}  // namespace
}  // namespace armillary::train
