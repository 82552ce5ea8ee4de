// Ops of a run carry their index in the program, so they are laid beside the plan without a search;
// kind, peer and bytes tell whether it is the same program.
#include "armillary/lab/report/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::report {
namespace {

/// A call of attention in a run: training step, and number in it. Later calls are larger.
using Call = std::pair<std::int64_t, int>;
/// Ops of one call on one rank.
using CallOps = std::vector<const recorder::RecordedOp*>;

/// An op in words: `attend`, or `send of 64 bytes, peer 1`.
std::string op_text(std::string_view kind, int peer, std::int64_t bytes) {
  return peer < 0 ? std::string(kind)
                  : fmt::format("{} of {}, peer {}", kind, count_of(bytes, "byte"), peer);
}

/// Refuses an op that is not the one with its index in the plan.
void check_same(const MeasuredPass& pass, const plan::Plan& plan, int rank,
                const recorder::RecordedOp& recorded) {
  const plan::RankProgram& program = plan.ranks[rank];
  const std::string was = op_text(recorded.kind, recorded.op.peer, recorded.op.bytes);
  if (recorded.op.index >= static_cast<int>(program.ops.size())) {
    fail<InvalidArgument>(
        "report: rank {} of {} ran op {}, {}; the plan has {}: the flags of the run are "
        "required",
        rank, pass.run, recorded.op.index, was, count_of(program.ops.size(), "op"));
  }
  const plan::Op& op = program.ops[recorded.op.index];
  const std::int64_t bytes =
      op.is_comm() ? bytes_of(plan.problem, plan.blocks, program, op) : std::int64_t{0};
  const std::string is = op_text(to_string(op.kind), op.is_comm() ? op.peer : -1, bytes);
  if (was != is) {
    fail<InvalidArgument>(
        "report: op {} of rank {} of {} was {}, in the plan it is {}: the flags of the run are "
        "required",
        recorded.op.index, rank, pass.run, was, is);
  }
}

/// The ops of the pass by call, on one rank; only those that are done.
std::map<Call, CallOps> calls_of(const recorder::Flight& flight, plan::Pass pass) {
  std::map<Call, CallOps> calls;
  for (const recorder::RecordedOp& op : flight.ops) {
    if (op.complete && op.pass == to_string(pass)) calls[{op.step, op.call}].push_back(&op);
  }
  return calls;
}

/// The calls of all ranks; empty for a rank without a file.
std::vector<std::map<Call, CallOps>> calls_of(const recorder::RecordedRun& run, plan::Pass pass) {
  std::vector<std::map<Call, CallOps>> ranks;
  ranks.reserve(run.flights.size());
  for (const auto& flight : run.flights) {
    ranks.push_back(flight ? calls_of(*flight, pass) : std::map<Call, CallOps>{});
  }
  return ranks;
}

/// The last call that has as many ops as the plan on every rank.
std::optional<Call> last_whole_call(const std::vector<std::map<Call, CallOps>>& ranks,
                                    const plan::Plan& plan) {
  const auto whole = [&](const Call& call) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto at = ranks[rank].find(call);
      const std::size_t ops = at == ranks[rank].end() ? 0 : at->second.size();
      if (ops != plan.ranks[rank].ops.size()) return false;
    }
    return true;
  };
  // The last call may be under way, or be cut off on a rank that keeps fewer of its ops.
  std::vector<Call> calls;
  for (const auto& rank : ranks) {
    for (const auto& [call, ops] : rank) calls.push_back(call);
  }
  std::sort(calls.begin(), calls.end());
  const auto last = std::find_if(calls.rbegin(), calls.rend(), whole);
  return last == calls.rend() ? std::nullopt : std::optional(*last);
}

}  // namespace

recorder::RecordedRun calls_between(recorder::RecordedRun run, std::int64_t since_ns,
                                    std::int64_t until_ns) {
  if (run.flights.empty() || !run.flights[0]) return run;
  std::erase_if(run.flights[0]->ops, [&](const recorder::RecordedOp& op) {
    return op.start_ns < since_ns || op.start_ns >= until_ns;
  });
  return run;  // A call that is not on rank 0 is not whole.
}

bool has_whole_call(const recorder::RecordedRun& recorded, const plan::Plan& plan) {
  return recorded.flights.size() == plan.ranks.size() &&
         last_whole_call(calls_of(recorded, plan.pass), plan).has_value();
}

MeasuredPass measured_pass(const std::string& run, const recorder::RecordedRun& recorded,
                           const plan::Plan& plan) {
  const std::size_t world = plan.ranks.size();
  if (recorded.flights.size() != world) {
    fail<InvalidArgument>("report: the run {} has {}, the plan has {}", excerpt(run),
                          count_of(recorded.flights.size(), "rank"), world);
  }
  // Calls of all ranks.
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (recorded.flights[rank]) continue;
    fail<InvalidArgument>("report: rank {} of {} has no flight file", rank, excerpt(run));
  }
  const std::vector<std::map<Call, CallOps>> ranks = calls_of(recorded, plan.pass);
  const std::optional<Call> call = last_whole_call(ranks, plan);
  if (!call) {
    fail<InvalidArgument>(
        "report: no {} call of {} has the ops of the plan on every rank; the flags of the run, and "
        "a pass of at most {} ops a rank, are required",
        to_string(plan.pass), excerpt(run), recorder::kOpsKept);
  }
  MeasuredPass pass{.run = run, .step = call->first, .call = call->second};
  // The first op of any rank is time zero.
  std::int64_t begin_ns = std::numeric_limits<std::int64_t>::max();
  for (std::size_t rank = 0; rank < world; ++rank) {
    for (const recorder::RecordedOp* op : ranks[rank].at(*call)) {
      begin_ns = std::min(begin_ns, recorded.flights[rank]->wall_ns(op->start_ns));
    }
  }
  // Times of the ops, each compared with the plan.
  for (std::size_t rank = 0; rank < world; ++rank) {
    const recorder::Flight& flight = *recorded.flights[rank];
    const auto seconds = [&](std::int64_t ns) {
      return static_cast<double>(flight.wall_ns(ns) - begin_ns) * 1e-9;
    };
    std::vector<sim::OpTime> times(plan.ranks[rank].ops.size());
    for (const recorder::RecordedOp* op : ranks[rank].at(*call)) {
      check_same(pass, plan, static_cast<int>(rank), *op);
      times[op->op.index] = {seconds(op->start_ns), seconds(op->end_ns)};
      pass.end_s = std::max(pass.end_s, seconds(op->end_ns));
    }
    pass.ranks.push_back(std::move(times));
  }
  return pass;
}

}  // namespace armillary::report
