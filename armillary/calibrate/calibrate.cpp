// The parts of a cluster in the order in which later ones need earlier ones: the device, cores that
// ranks share, links, interference, and last the overhead, which is what the others do not explain.
// Only times that all ranks know decide, so that processes measure the same.
#include "armillary/calibrate/calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "armillary/bench/attention_case.h"
#include "armillary/bench/peak.h"
#include "armillary/calibrate/kernels.h"
#include "armillary/calibrate/memory.h"
#include "armillary/calibrate/messages.h"
#include "armillary/calibrate/overhead.h"
#include "armillary/calibrate/products.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/threads.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_kernel.h"

namespace armillary::calibrate {
namespace {

/// Bytes that each rank sends to agree on a call, at most (attention/agreement.h).
constexpr double kAgreementBytes = 1536;

/// Tokens of kernel calls beside messages: about a millisecond each.
constexpr std::int64_t kBesideTokens = 512;

void check(const CalibrateCase& given) {
  if (given.world < 1 || given.world > kMaxThreads || given.ranks_per_node < 1 ||
      given.world % given.ranks_per_node != 0) {
    fail<InvalidArgument>(
        "calibrate: {}, {} on a node; 1 to {} ranks, a multiple of those on a node, are "
        "required",
        count_of(given.world, "rank"), given.ranks_per_node, kMaxThreads);
  }
  if (given.dtypes.empty() || given.head_dims.empty() || given.heads < 1) {
    fail<InvalidArgument>("calibrate: {}, {}, {}; at least 1 each is required",
                          count_of(given.dtypes.size(), "dtype"),
                          count_of(given.head_dims.size(), "head dim"),
                          count_of(given.heads, "head"));
  }
  for (const plan::Dtype dtype : given.dtypes) bench::kernel_dtype(dtype);
  for (const int dim : given.head_dims) {
    kernel::cpu_kernel().check("calibrate", {.head_dim = dim, .value_dim = dim});
  }
  if (given.most_tokens < CurveCase{}.least_tokens) {
    fail<InvalidArgument>("calibrate: blocks of up to {}; at least {} are required",
                          count_of(given.most_tokens, "token"), CurveCase{}.least_tokens);
  }
}

double memory_of_this_host() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

/// Kernels and memory of a rank while all ranks work.
sim::Device measure_device(const CalibrateCase& given, const bench::MakeRanks& make_ranks,
                           const Progress& progress) {
  const std::unique_ptr<bench::Ranks> ranks = make_ranks(given.world, 0);
  const std::string isa = kernel::cpu::current_isa().name;
  sim::Device device{.name = fmt::format("rank of {} on {}", given.engine, isa)};
  progress("memory");
  device.memory_bytes = memory_of_this_host() / given.ranks_per_node;
  device.memory = measure_memory(given.dtypes.front(), *ranks, given.world);
  // Other ops and sizes: a merge of tiles of middle size.
  const std::vector<sim::RatePoint>& merges = device.memory.front().points;
  device.memory_bytes_per_s = merges[merges.size() / 2].rate;
  device.mask_edges = true;
  for (const plan::Dtype dtype : given.dtypes) {
    device.peak_flops_per_s =
        std::max(device.peak_flops_per_s, 1e9 * bench::peak_gflops(isa, dtype, 1, 0.1));
    for (const int head_dim : given.head_dims) {
      progress(fmt::format("kernels, {}, head dim {}", to_string(dtype), head_dim));
      const CurveCase curve_case{.dtype = dtype,
                                 .head_dim = head_dim,
                                 .heads = given.heads,
                                 .most_tokens = given.most_tokens};
      for (sim::KernelCurve& curve : measure_kernels(curve_case, *ranks, given.world)) {
        device.kernels.push_back(std::move(curve));
      }
    }
  }
  progress("matrix products");
  device.matmul_flops_per_s = measure_products(given.dtypes, *ranks, given.world);
  progress("accumulators");
  const double carry = measure_carry({.dtype = given.dtypes.front(),
                                      .head_dim = given.head_dims.front(),
                                      .heads = given.heads,
                                      .most_tokens = given.most_tokens},
                                     *ranks, given.world);
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
void measure_links(const CalibrateCase& given, const bench::MakeRanks& make_ranks,
                   const Progress& progress, sim::Cluster& cluster) {
  if (given.world == 1) return;
  const std::unique_ptr<bench::Ranks> ranks = make_ranks(given.world, 0);
  const bool one_a_node = given.ranks_per_node == 1;
  const std::string node = one_a_node ? "network" : "node{n}";
  progress(one_a_node ? "messages between nodes" : "messages within nodes");
  const ExchangeCase neighbours{.world = given.world, .distance = 1};
  const MessageRates near = measure_messages(neighbours, *ranks);
  cluster.messages.latency_s = near.latency_s;
  cluster.links.push_back(link_of("device", node, near));
  if (one_a_node) cluster.links.back().burst_bytes = measure_burst(neighbours, near, *ranks);
  if (one_a_node || cluster.nodes == 1) return;
  progress("messages between nodes");
  const ExchangeCase nodes{.world = given.world, .distance = given.ranks_per_node};
  const MessageRates far = measure_messages(nodes, *ranks);
  sim::LinkRule& link = cluster.links.emplace_back(link_of(node, "network", far));
  link.burst_bytes = measure_burst(nodes, far, *ranks);
  // All ranks of a node sent at the same time, each at this rate.
  link.bytes_per_s *= given.ranks_per_node;
  link.burst_bytes *= given.ranks_per_node;
  link.latency_s = std::max(0.0, far.latency_s - near.latency_s) / 2;  // Two such links a route.
}

/// Messages beside each other, and the slowdown of kernels beside messages. Threads copy messages
/// themselves, one by one, between their ops.
void measure_interference(const CalibrateCase& given, const bench::MakeRanks& make_ranks,
                          const Progress& progress, sim::Cluster& cluster) {
  if (given.world == 1 || given.engine == "threads") return;
  progress("messages and kernels beside messages");
  const std::unique_ptr<bench::Ranks> ranks = make_ranks(given.world, 0);
  const BlockShape shape{.dtype = given.dtypes.front(),
                         .head_dim = given.head_dims.front(),
                         .heads = given.heads,
                         .tokens = std::min(kBesideTokens, given.most_tokens)};
  const int distance = cluster.nodes == 1 ? 1 : given.ranks_per_node;
  const ExchangeCase exchange{.world = given.world, .distance = distance};
  cluster.messages.in_order = measure_in_order(exchange, *ranks);
  cluster.device.slowdown = {1, measure_slowdown(exchange, shape, *ranks)};
}

/// Cores of all ranks: those of this node, of each node, unless the case knows better.
int cores_of(const CalibrateCase& given) {
  if (given.cores > 0) return given.cores;
  const int here = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return here * given.world / given.ranks_per_node;
}

/// Ranks that shared fewer cores were slower than one that has a core.
void give_cores(int cores, sim::Cluster& cluster) {
  if (cluster.devices() <= cores) return;
  cluster.host.cores = cores;
  const double ranks_per_core = static_cast<double>(cluster.devices()) / cores;
  cluster.device.memory_bytes_per_s *= ranks_per_core;
  cluster.device.carry_bytes_per_s *= ranks_per_core;
  cluster.device.matmul_flops_per_s *= ranks_per_core;
  for (sim::MemoryCurve& curve : cluster.device.memory) {
    for (sim::RatePoint& point : curve.points) point.rate *= ranks_per_core;
  }
  for (sim::KernelCurve& curve : cluster.device.kernels) {
    for (sim::RatePoint& point : curve.points) point.rate *= ranks_per_core;
  }
}

}  // namespace

sim::Cluster calibrate(const CalibrateCase& given, const bench::MakeRanks& make_ranks,
                       const Progress& told) {
  check(given);
  const Progress progress = told ? told : [](const std::string&) {};
  const bool threads = given.engine == "threads";
  sim::Cluster cluster{.name = given.name,
                       .nodes = given.world / given.ranks_per_node,
                       .devices_per_node = given.ranks_per_node};
  cluster.summary = fmt::format("measured by armillary calibrate: {}, {} a node, {}",
                                count_of(given.world, "rank"), given.ranks_per_node, given.engine);
  cluster.device = measure_device(given, make_ranks, progress);
  cluster.messages = {.serial = false, .zero_copy = threads};
  cluster.host = {.computes = true, .copies = threads};
  give_cores(cores_of(given), cluster);
  measure_links(given, make_ranks, progress, cluster);
  measure_interference(given, make_ranks, progress, cluster);
  if (given.world > 1) cluster.host.agreement_bytes = kAgreementBytes;
  progress("calls and ops");
  const Overhead overhead = measure_overhead(cluster, given.dtypes.front(), make_ranks);
  cluster.device.launch_s = overhead.op_s;
  cluster.host.forward_s = overhead.forward_s;
  cluster.host.backward_s = overhead.backward_s;
  return cluster;
}

}  // namespace armillary::calibrate
