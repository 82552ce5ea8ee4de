// Each set describes the software that ran on its cluster. Numbers without a source beside them are
// fitted: they minimise the largest error of the rows that the set names.
#include "armillary/lab/validate/constants.h"

#include <algorithm>
#include <cctype>

namespace armillary::validate {
namespace {

// A100 by kernels that three sources publish: FlashAttention's charts, the README of USP with heads
// of 128, and that of Burst-Attention. Four numbers for the least mean of the sources' mean errors.
constexpr Constants::KernelShare kA100Forward{.full = 1.04, .causal = 0.97};
constexpr Constants::KernelShare kA100Backward{.full = 0.94, .causal = 1.01};
constexpr Constants::KernelShare kA100OfTable3{.full = 1.02, .causal = 0.82};
constexpr Constants::KernelShare kA800{.full = 1.06, .causal = 0.89};

// Megatron-LM, which overlaps sums and gathers only if asked to: two kernel rates, the sum, the
// rates of products and gradients, and the links of a group with a part of each node, for the
// smallest largest error on the rows that are named with the orders of the table; the two clusters
// have the same devices.
Constants megatron(const char* id, const char* preset) {
  return {.id = id,
          .preset = preset,
          .forward = kA800,
          .backward = kA800,
          .sum_bytes = 25,
          .step = {.matmul_share = 0.9,
                   .gradient_share = 0.55,
                   .part_node_links = 1,
                   .overlaps = false},
          .fitted = {"table5_30k_b16_tp1_*", "table5_30k_b16_tp8_u1_r1", "table6_64k_b1_tp1_*",
                     "table6_64k_b1_tp4_u2_r2", "table7_160k_b1_tp4_u2_r2"}};
}

}  // namespace

const std::vector<Constants>& all_constants() {
  static const std::vector<Constants> all{
      megatron("C5", "c5"),
      megatron("C5a", "c5a"),
      {.id = "C6",
       .preset = "c6",
       .forward = kA100Forward,
       .backward = kA100Backward,
       .fitted = {"fa2_a100_causal_2048", "fa2_a100_causal_8192",
                  "readme_128k_h8_kv8_d128_u8_zigzag", "readme_128k_h8_kv8_d128_u2_zigzag",
                  "readme_128k_h8_kv8_d128_u1_basic"}},
      // USP's table 3, whose kernels are a sixth slower than those of the other sources. Three
      // numbers (full, causal, sum), fitted on four of its 16 rows.
      {.id = "C6u",
       .preset = "c6",
       .forward = kA100OfTable3,
       .backward = kA100OfTable3,
       .sum_bytes = 30,
       .fitted = {"table3_32k_u8_r1_lb-ring", "table3_32k_u1_r8_*", "table3_128k_u2_r4_lb-ring"}},
      // Three numbers: the rate of the kernels and the loss by crowding, both in the preset, and
      // the sum.
      {.id = "C7",
       .preset = "c7",
       .sum_bytes = 34,
       .fitted = {"table4_128k_u1_r8_lb-ring", "table4_128k_u8_r1_lb-ring",
                  "table4_128k_u4_r2_lb-ring", "table4_8k_u1_r8_lb-ring"}},
      // Sums of the merges in the published timeline: 0.5 ms for 24.6 M elements of fp32.
      // The published timelines are of one GPU: it sends and receives half a partial output in the
      // end (25 MB in 1.3 ms; the port has 26 GB/s), and sends all of its queries in step 1 (half
      // of them would take less than they do): rank 2 of the program, 1 of the plan.
      // The rates of kernels and links in the preset, the slowdown and the sum are read off the
      // first three steps of that timeline; its totals are sums of these and of others, and the
      // ring has no number of its own.
      {.id = "C8", .preset = "c8", .sum_bytes = 10, .shown_rank = 1, .fitted = {"tokenring_step*"}},
      // FlashAttention 2: both rates forward and backward, and the unfused sum.
      {.id = "C11",
       .preset = "c11",
       .forward = {.full = 1.1, .causal = 0.93},
       .backward = {.full = 0.97, .causal = 0.82},
       .sum_bytes = 40,
       .fitted = {"h800_fwd_flash", "h800_fwd_ring", "h800_fwd_zigzag", "h800_fwd_stripe",
                  "h800_fwd_bwd_flash", "h800_fwd_bwd_ring"}},
      // Burst-Attention: the kernels of C6, on the same device.
      {.id = "C12",
       .preset = "c12",
       .forward = kA100Forward,
       .backward = kA100Backward,
       .fitted = {"burst_512k_fwd", "burst_512k_fwd_bwd"}},
      // One number: the sum that Transformer Engine's ring makes of partial outputs.
      {.id = "C13",
       .preset = "c13",
       .sum_bytes = 32,
       .fitted = {"causal_fwd_ring_p2p_*", "full_fwd_ring_p2p_*"}},
  };
  return all;
}

bool Constants::is_fitted_on(const std::string& row_id) const {
  return std::any_of(fitted.begin(), fitted.end(), [&](const std::string& name) {
    return name.back() == '*' ? row_id.starts_with(name.substr(0, name.size() - 1))
                              : row_id == name;
  });
}

Constants constants(const std::string& cluster_id) {
  for (const Constants& known : all_constants()) {
    if (known.id == cluster_id) return known;
  }
  if (cluster_id.ends_with(".toml")) return {.id = cluster_id, .preset = cluster_id};
  std::string preset = cluster_id;
  std::transform(preset.begin(), preset.end(), preset.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return {.id = cluster_id, .preset = preset};
}

sim::Cluster cluster(const Constants& constants) {
  sim::Cluster cluster = sim::load_cluster(constants.preset);
  for (sim::KernelCurve& curve : cluster.device.kernels) {
    const Constants::KernelShare& of_pass =
        curve.pass == plan::Pass::Forward ? constants.forward : constants.backward;
    const double share = curve.causal ? of_pass.causal : of_pass.full;
    curve.flops_per_s *= share;
    for (sim::RatePoint& point : curve.points) point.rate *= share;
  }
  return cluster;
}

}  // namespace armillary::validate
