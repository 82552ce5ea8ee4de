// The AMX kernels leave the tile configuration of the calling thread as it was.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/testing/dealt_attention.h"

#if defined(__x86_64__)

namespace armillary::kernel {
namespace {

/// The operand of ldtilecfg and sttilecfg: palette, start row, then bytes per row and rows, by
/// tile.
using TileConfig = std::array<std::uint8_t, 64>;

TileConfig config_at_hand() {
  alignas(64) TileConfig config{};
  asm volatile("sttilecfg %0" : "=m"(config));
  return config;
}

void configure(const TileConfig& tiles) {
  alignas(64) const TileConfig config = tiles;
  asm volatile("ldtilecfg %0" ::"m"(config));
}

void run_both_passes() {
  const plan::Mask mask = plan::parse_mask("causal", {.q = 70, .kv = 70});
  const Sequences x =
      random_sequences({.heads = 2, .kv_heads = 1, .head_dim = 48}, mask, at::kBFloat16, 3);
  const Deal deal{.q_blocks = {{plan::run_of({0, 70})}},
                  .k_blocks = {{plan::run_of({0, 70})}},
                  .q_heads = {{0, 2}}};
  dealt_attention(cpu_kernel("amx"), x, mask, deal, Score{.scale = 0.2});
}

class Amx : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = cpu::missing_for("amx");
    if (!missing.empty()) GTEST_SKIP() << "[SKIP] amx: " << missing;
    const auto is_amx = [](const cpu::IsaKernels* isa) {
      return std::string_view(isa->name) == "amx";
    };
    if (std::ranges::none_of(cpu::all_isas(), is_amx)) {
      GTEST_SKIP() << "[SKIP] amx is not compiled in, as with sanitizers";
    }
  }
  void TearDown() override {
    if (!IsSkipped()) asm volatile("tilerelease");
  }
};

TEST_F(Amx, TheConfigurationOfAnotherLibraryIsKept) {
  TileConfig theirs{};
  theirs[0] = 1;
  for (int tile = 0; tile < 3; ++tile) {
    theirs[16 + 2 * static_cast<std::size_t>(tile)] = 32;
    theirs[48 + static_cast<std::size_t>(tile)] = 7;
  }
  configure(theirs);
  ASSERT_EQ(config_at_hand(), theirs);
  run_both_passes();
  EXPECT_EQ(config_at_hand(), theirs);
}

TEST_F(Amx, NoConfigurationIsLeftWhereThereWasNone) {
  asm volatile("tilerelease");
  run_both_passes();
  EXPECT_EQ(config_at_hand(), TileConfig{});
}

// PyTorch multiplies bf16 with oneDNN, which configures tiles itself.
TEST_F(Amx, ProductsOfPyTorchBetweenCallsAreTheSame) {
  const at::Tensor a = at::ones({64, 96}, at::kBFloat16);
  const at::Tensor b = at::ones({96, 80}, at::kBFloat16);
  const at::Tensor before = at::matmul(a, b);
  run_both_passes();
  EXPECT_TRUE(at::equal(at::matmul(a, b), before));
  EXPECT_EQ(before.sum().item<double>(), 64.0 * 80 * 96);
}

}  // namespace
}  // namespace armillary::kernel

#endif
