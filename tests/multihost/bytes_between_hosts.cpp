// One rank under mpirun, on hosts that are network namespaces: runs attention over all ranks and
// counts the bytes that leave its host, beside those that the plan sends to other hosts.
//
//   bytes_between_hosts TOKENS RANKS_A_HOST STRATEGY..
//
// Rank 0 prints a JSON object for each strategy: planned_bytes, what the plans of all passes send
// between hosts; given_bytes, what the ranks gave to the engine for other hosts; wire_bytes, what
// the interfaces of all hosts sent. The network must carry nothing else.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <span>
#include <string>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/mpi.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/runtime/testing/watched_communicator.h"

namespace armillary {
namespace {

constexpr int kRepeats = 4;

/// Bytes that the interface of this host has sent so far.
std::int64_t sent_by_host() {
  std::int64_t bytes = 0;
  std::ifstream("/sys/class/net/net0/statistics/tx_bytes") >> bytes;
  return bytes;
}

/// Bytes that one rank's programs send to ranks of other hosts, forward and backward, as
/// `armillary plan --compare --ranks-per-node` counts them.
std::int64_t planned_bytes(const plan::Planner& planner, int rank, int a_host) {
  std::int64_t bytes = 0;
  for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
    const plan::RankProgram program =
        plan::lower(planner.problem(), planner.blocks(), planner.program(pass, rank));
    bytes += plan::sent_between_nodes(planner.problem(), planner.blocks(), program, a_host);
  }
  return bytes;
}

void run_rank(comm::Communicator& engine, const std::string& strategy, std::int64_t tokens,
              int a_host) {
  at::set_num_threads(1);
  std::int64_t bytes_out = 0;
  runtime::WatchedCommunicator comm(engine, [&](const comm::Message& message) {
    const bool leaves = message.direction == comm::Direction::Send &&
                        message.peer / a_host != engine.rank() / a_host;
    if (leaves && runtime::is_of_a_plan(engine, message))
      bytes_out += comm::total_bytes(message.parts);
  });
  const int world = comm.world();
  const plan::Problem problem{.world = world,
                              .heads = 8,
                              .kv_heads = 4,
                              .head_dim = 64,
                              .value_dim = 64,
                              .dtype = plan::Dtype::F32,
                              .mask = plan::parse_mask("causal", {tokens, tokens}),
                              .layout = plan::parse_layout("zigzag")};
  const plan::Planner planner(problem, plan::parse_strategy(strategy));
  const auto owned = plan::shards(problem.layout, problem.mask, world);
  const auto mine = static_cast<std::int64_t>(
      plan::positions(owned.q[static_cast<std::size_t>(comm.rank())]).size());
  const auto leaf = [&](std::int64_t heads) {
    return at::randn({1, mine, heads, 64}).requires_grad_(true);
  };
  const at::Tensor q = leaf(8), k = leaf(4), v = leaf(4);
  const auto attend = [&] {
    attention::sequence_parallel_attention(
        q, k, v, comm, {.mask = problem.mask, .layout = problem.layout, .strategy = strategy})
        .sum()
        .backward();
  };
  attend();  // Ranks agree on the call and prove its plan.

  comm::barrier(comm);
  const bool counts = comm.rank() % a_host == 0;  // One rank of each host.
  const std::int64_t before = counts ? sent_by_host() : 0;
  bytes_out = 0;
  for (int i = 0; i < kRepeats; ++i) attend();
  comm::barrier(comm);
  double sums[] = {static_cast<double>(kRepeats * planned_bytes(planner, comm.rank(), a_host)),
                   static_cast<double>(bytes_out),
                   counts ? static_cast<double>(sent_by_host() - before) : 0};
  comm::all_reduce_sum(comm, std::span(sums));
  if (comm.rank() != 0) return;
  fmt::print(
      "{{\"strategy\": \"{}\", \"planned_bytes\": {:.0f}, \"given_bytes\": {:.0f}, "
      "\"wire_bytes\": {:.0f}}}\n",
      strategy, sums[0], sums[1], sums[2]);
}

}  // namespace
}  // namespace armillary

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("bytes_between_hosts: TOKENS RANKS_A_HOST STRATEGY.. are required\n", stderr);
    return 2;
  }
  try {
    armillary::comm::run_mpi_rank(
        [&](armillary::comm::Communicator& comm) {
          for (int i = 3; i < argc; ++i) {
            armillary::run_rank(comm, argv[i], std::stoll(argv[1]), std::stoi(argv[2]));
          }
        },
        {.timeout_s = 60, .lanes = 32});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
