// The parts of a cluster in the order in which later ones need earlier ones: the device, cores that
// ranks share, links, interference, and last the overhead, which is what the others do not explain.
// Only times that all ranks know decide, so that processes measure the same.
#include "armillary/lab/calibrate/calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/threads.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/lab/bench/attention_case.h"
#include "armillary/lab/bench/peak.h"
#include "armillary/lab/calibrate/kernels.h"
#include "armillary/lab/calibrate/memory.h"
#include "armillary/lab/calibrate/messages.h"
#include "armillary/lab/calibrate/overhead.h"
#include "armillary/lab/calibrate/products.h"

namespace armillary::calibrate {
namespace {

/// Bytes that each rank sends to agree on a call, at most (attention/agreement.h).
constexpr double kAgreementBytes = 1536;

/// Tokens of kernel calls beside messages: about a millisecond each.
constexpr std::int64_t kBesideTokens = 512;

void check(const CalibrateCase& spec) {
  if (spec.world < 1 || spec.world > kMaxThreads || spec.ranks_per_node < 1 ||
      spec.world % spec.ranks_per_node != 0) {
    fail<InvalidArgument>(
        "calibrate: {}, {} on a node; 1 to {} ranks, a multiple of those on a node, are "
        "required",
        count_of(spec.world, "rank"), spec.ranks_per_node, kMaxThreads);
  }
  if (spec.dtypes.empty() || spec.head_dims.empty() || spec.heads < 1) {
    fail<InvalidArgument>(
        "calibrate: {}, {}, {}; at least 1 each is required", count_of(spec.dtypes.size(), "dtype"),
        count_of(spec.head_dims.size(), "head dim"), count_of(spec.heads, "head"));
  }
  for (const plan::Dtype dtype : spec.dtypes) bench::kernel_dtype(dtype);
  for (const int dim : spec.head_dims) {
    kernel::cpu_kernel().check("calibrate", {.head_dim = dim, .value_dim = dim});
  }
  if (spec.most_tokens < CurveCase{}.least_tokens) {
    fail<InvalidArgument>("calibrate: blocks of up to {}; at least {} are required",
                          count_of(spec.most_tokens, "token"), CurveCase{}.least_tokens);
  }
}

double memory_of_this_host() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

/// Kernels and memory of a rank while all ranks work.
sim::DeviceSpec measure_device(const CalibrateCase& spec, const bench::MakeRanks& make_ranks,
                               const Progress& progress) {
  const std::unique_ptr<bench::Ranks> ranks = make_ranks(spec.world, 0);
  const std::string isa = kernel::cpu::current_isa().name;
  sim::DeviceSpec device{.name = fmt::format("rank of {} on {}", spec.engine, isa)};
  progress("memory");
  device.memory_bytes = memory_of_this_host() / spec.ranks_per_node;
  device.memory = measure_memory(spec.dtypes.front(), *ranks, spec.world);
  // Other ops and sizes: a merge of tiles of middle size.
  const std::vector<sim::RatePoint>& merges = device.memory.front().points;
  device.memory_bytes_per_s = merges[merges.size() / 2].rate;
  device.mask_edges = true;
  for (const plan::Dtype dtype : spec.dtypes) {
    device.peak_flops_per_s =
        std::max(device.peak_flops_per_s, 1e9 * bench::peak_gflops(isa, dtype, 1, 0.1));
    for (const int head_dim : spec.head_dims) {
      progress(fmt::format("kernels, {}, head dim {}", to_string(dtype), head_dim));
      const CurveCase curve_case{.dtype = dtype,
                                 .head_dim = head_dim,
                                 .heads = spec.heads,
                                 .most_tokens = spec.most_tokens};
      for (sim::KernelCurve& curve : measure_kernels(curve_case, *ranks, spec.world)) {
        device.kernels.push_back(std::move(curve));
      }
    }
  }
  progress("matrix products");
  device.matmul_flops_per_s = measure_products(spec.dtypes, *ranks, spec.world);
  // The rate above may be that of fp32 too, where bf16 is emulated.
  if (spec.dtypes != std::vector{plan::Dtype::F32}) {
    device.matmul_fp32_flops_per_s = measure_products({plan::Dtype::F32}, *ranks, spec.world);
  }
  progress("accumulators");
  const double carry = measure_carry({.dtype = spec.dtypes.front(),
                                      .head_dim = spec.head_dims.front(),
                                      .heads = spec.heads,
                                      .most_tokens = spec.most_tokens},
                                     *ranks, spec.world);
  if (carry > 0) device.carry_bytes_per_s = carry;
  return device;
}

/// A link that has the rates of an exchange. Its capacity is what the longest message reached:
/// shorter ones may have passed by the buffers on their way.
sim::LinkRule link_of(const std::string& from, const std::string& to, const MessageRates& rates) {
  return {
      .from = from, .to = to, .bytes_per_s = rates.points.back().rate, .flow_rates = rates.points};
}

/// Links between ranks of a node, and between nodes, as far as there are any.
void measure_links(const CalibrateCase& spec, const bench::MakeRanks& make_ranks,
                   const Progress& progress, sim::Cluster& cluster) {
  if (spec.world == 1) return;
  const std::unique_ptr<bench::Ranks> ranks = make_ranks(spec.world, 0);
  const bool one_a_node = spec.ranks_per_node == 1;
  const std::string node = one_a_node ? "network" : "node{n}";
  progress(one_a_node ? "messages between nodes" : "messages within nodes");
  const ExchangeCase neighbours{.world = spec.world, .distance = 1};
  const MessageRates near = measure_messages(neighbours, *ranks);
  cluster.messages.latency_s = near.latency_s;
  cluster.links.push_back(link_of("device", node, near));
  if (one_a_node) cluster.links.back().burst_bytes = measure_burst(neighbours, near, *ranks);
  if (one_a_node || cluster.nodes == 1) return;
  progress("messages between nodes");
  const ExchangeCase nodes{.world = spec.world, .distance = spec.ranks_per_node};
  const MessageRates far = measure_messages(nodes, *ranks);
  sim::LinkRule& link = cluster.links.emplace_back(link_of(node, "network", far));
  link.burst_bytes = measure_burst(nodes, far, *ranks);
  // All ranks of a node sent at the same time, each at this rate.
  link.bytes_per_s *= spec.ranks_per_node;
  link.burst_bytes *= spec.ranks_per_node;
  link.latency_s = std::max(0.0, far.latency_s - near.latency_s) / 2;  // Two such links a route.
}

/// Messages beside each other, and the slowdown of kernels beside messages. Threads copy messages
/// themselves, one by one, between their ops.
void measure_interference(const CalibrateCase& spec, const bench::MakeRanks& make_ranks,
                          const Progress& progress, sim::Cluster& cluster) {
  if (spec.world == 1 || spec.engine == "threads") return;
  progress("messages and kernels beside messages");
  const std::unique_ptr<bench::Ranks> ranks = make_ranks(spec.world, 0);
  const BlockShape shape{.dtype = spec.dtypes.front(),
                         .head_dim = spec.head_dims.front(),
                         .heads = spec.heads,
                         .tokens = std::min(kBesideTokens, spec.most_tokens)};
  const int distance = cluster.nodes == 1 ? 1 : spec.ranks_per_node;
  const ExchangeCase exchange{.world = spec.world, .distance = distance};
  cluster.messages.in_order = measure_in_order(exchange, *ranks);
  cluster.device.slowdown = {1, measure_slowdown(exchange, shape, *ranks)};
}

/// Cores of all ranks: those of this node, of each node, unless the case knows better.
int cores_of(const CalibrateCase& spec) {
  if (spec.cores > 0) return spec.cores;
  const int here = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return here * spec.world / spec.ranks_per_node;
}

/// Ranks that shared fewer cores were slower than one that has a core.
void give_cores(int cores, sim::Cluster& cluster) {
  if (cluster.devices() <= cores) return;
  cluster.host.cores = cores;
  const double ranks_per_core = static_cast<double>(cluster.devices()) / cores;
  cluster.device.memory_bytes_per_s *= ranks_per_core;
  cluster.device.carry_bytes_per_s *= ranks_per_core;
  cluster.device.matmul_flops_per_s *= ranks_per_core;
  cluster.device.matmul_fp32_flops_per_s *= ranks_per_core;
  for (sim::MemoryCurve& curve : cluster.device.memory) {
    for (sim::RatePoint& point : curve.points) point.rate *= ranks_per_core;
  }
  for (sim::KernelCurve& curve : cluster.device.kernels) {
    for (sim::RatePoint& point : curve.points) point.rate *= ranks_per_core;
  }
}

}  // namespace

sim::Cluster calibrate(const CalibrateCase& spec, const bench::MakeRanks& make_ranks,
                       const Progress& told) {
  check(spec);
  const Progress progress = told ? told : [](const std::string&) {};
  const bool threads = spec.engine == "threads";
  sim::Cluster cluster{.name = spec.name,
                       .nodes = spec.world / spec.ranks_per_node,
                       .devices_per_node = spec.ranks_per_node};
  cluster.summary = fmt::format("measured by armillary calibrate: {}, {} a node, {}",
                                count_of(spec.world, "rank"), spec.ranks_per_node, spec.engine);
  cluster.device = measure_device(spec, make_ranks, progress);
  cluster.messages = {.serial = false, .zero_copy = threads};
  cluster.host = {.computes = true, .copies = threads};
  give_cores(cores_of(spec), cluster);
  measure_links(spec, make_ranks, progress, cluster);
  measure_interference(spec, make_ranks, progress, cluster);
  if (spec.world > 1) cluster.host.agreement_bytes = kAgreementBytes;
  progress("calls and ops");
  const Overhead overhead = measure_overhead(cluster, spec.dtypes.front(), make_ranks);
  cluster.device.launch_s = overhead.op_s;
  cluster.host.forward_s = overhead.forward_s;
  cluster.host.backward_s = overhead.backward_s;
  return cluster;
}

}  // namespace armillary::calibrate
