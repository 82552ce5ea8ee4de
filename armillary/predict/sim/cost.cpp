// cost.cpp: work of an op in numbers, and the seconds that a device takes for it. Attention has
// pairs, counted block by block, since pairs of blocks that the mask cuts run at the rate of the
// causal kernel and others at that of the full one, or edges of the mask are counted in rows
// (mask_edges.h). All other ops have bytes of memory traffic.
#include "armillary/predict/sim/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/plan/operands.h"
#include "armillary/predict/sim/mask_edges.h"

namespace armillary::sim {
namespace {

/// Pairs of one block of queries and one of keys that the mask shows, as part of a whole block pair
/// or of one that it cuts.
struct PairCount {
  double full = 0;
  double cut = 0;
};

PairCount seen_pairs(const plan::Mask& mask, const plan::Block& q, const plan::Block& kv) {
  const auto area = static_cast<double>(mask.area(q.runs, kv.runs));
  const double all = static_cast<double>(q.tokens()) * static_cast<double>(kv.tokens());
  return area == all ? PairCount{.full = area} : PairCount{.cut = area};
}

}  // namespace

std::size_t WorkCounter::HashOfLists::operator()(const Lists& lists) const {
  std::size_t hash = 0;
  for (const plan::BlockIds* ids : {&lists.first, &lists.second}) {
    for (const plan::IdRun& run : ids->runs()) {
      hash = (hash ^ static_cast<std::size_t>(run.first)) * 0x9e3779b97f4a7c15;
      hash = (hash ^ static_cast<std::size_t>(run.last)) * 0x9e3779b97f4a7c15;
    }
    hash += hash >> 32;
  }
  return hash;
}

WorkCounter::WorkCounter(const plan::Problem& problem, const plan::Blocks& blocks, bool with_edges)
    : problem_(problem),
      blocks_(blocks),
      counts_(blocks),
      sees_all_(problem.mask.shows_all()),
      with_edges_(with_edges) {}

WorkCounter::VisiblePairs WorkCounter::count(const plan::BlockIds& q,
                                             const plan::BlockIds& kv) const {
  VisiblePairs visible;
  std::vector<bool> seen_keys(kv.size());  // By block: a query sees one of its keys.
  for (const int a : q) {
    const double before = visible.full + visible.cut;
    const auto q_tokens = static_cast<double>(blocks_.q[a].tokens());
    std::size_t i = 0;
    for (const int b : kv) {
      const PairCount pair = seen_pairs(problem_.mask, blocks_.q[a], blocks_.kv[b]);
      visible.full += pair.full;
      visible.cut += pair.cut;
      if (pair.full + pair.cut > 0) seen_keys[i] = true;
      ++i;
    }
    if (visible.full + visible.cut > before) visible.q_tokens += q_tokens;
  }
  auto is_seen = seen_keys.begin();
  for (const int b : kv) {
    if (*is_seen++) visible.kv_tokens += static_cast<double>(blocks_.kv[b].tokens());
  }
  const double pairs = visible.full + visible.cut;
  if (!with_edges_ || pairs == 0) return visible;
  const MaskEdges edges = mask_edges(problem_.mask, blocks_, q, kv);
  visible.edge_rows = edges.first + edges.last;
  const double rows = std::max(edges.first, edges.last);
  // A causal block of n tokens has n / 2 keys a row.
  if (rows > 0) visible.edge_tokens = std::max(1.0, std::min(2 * pairs / rows, rows));
  return visible;
}

WorkCounter::VisiblePairs WorkCounter::known_pairs(const plan::BlockIds& q,
                                                   const plan::BlockIds& kv) const {
  // Few pairs are counted faster than they are found; all ops of a ring are different and small.
  constexpr std::size_t kFewPairs = 64;
  if (q.size() * kv.size() <= kFewPairs) return count(q, kv);
  const Lists lists{q, kv};
  {
    const std::lock_guard lock(mutex_);
    if (const auto entry = known_.find(lists); entry != known_.end()) return entry->second;
  }
  const VisiblePairs pairs = count(q, kv);
  const std::lock_guard lock(mutex_);
  return known_.try_emplace(lists, pairs).first->second;
}

void WorkCounter::add_pairs(const plan::View& q, const plan::View& kv, OpWork& work) const {
  const auto batch = static_cast<double>(problem_.batch);
  const double times = batch * q.heads.count();
  work.q_tokens = static_cast<double>(counts_.of(plan::Tensor::Q, q.blocks));
  work.kv_tokens = static_cast<double>(counts_.of(plan::Tensor::K, kv.blocks));
  const VisiblePairs pairs = sees_all_ ? VisiblePairs{.full = work.q_tokens * work.kv_tokens,
                                                      .q_tokens = work.q_tokens,
                                                      .kv_tokens = work.kv_tokens}
                                       : known_pairs(q.blocks, kv.blocks);
  work.q_sums += times * pairs.q_tokens;
  work.kv_sums += batch * kv.heads.count() * pairs.kv_tokens;
  work.full_pairs = pairs.full * times;
  work.cut_pairs = pairs.cut * times;
  work.edge_rows = pairs.edge_rows * times;
  work.edge_tokens = pairs.edge_tokens;
}

/// Bytes read and written by an op that does not attend. A copy within one slot moves nothing.
double WorkCounter::memory_bytes(const plan::RankProgram& program, const plan::Op& op) const {
  const auto tile = [&](std::size_t v) -> const plan::Tile& {
    return program.tiles[op.views[v].tile];
  };
  if (op.kind == plan::OpKind::Copy && tile(0).slot == tile(1).slot) return 0;
  double bytes = 0;
  for (std::size_t v = 0; v < op.views.size(); ++v) {
    const double passes = access(op, v) == plan::Access::Update ? 2 : 1;
    bytes += passes * view_bytes(program, op.views[v]);
  }
  return bytes;
}

double WorkCounter::view_bytes(const plan::RankProgram& program, const plan::View& view) const {
  const plan::Tile& tile = program.tiles[view.tile];
  return static_cast<double>(problem_.batch) * view.heads.count() *
         static_cast<double>(counts_.of(tile.tensor, view.blocks)) *
         static_cast<double>(dim_of(problem_, tile.tensor)) *
         static_cast<double>(bytes_of(dtype_of(problem_, tile)));
}

OpWork WorkCounter::of(const plan::RankProgram& program, const plan::Op& op) const {
  OpWork work{.kind = op.kind};
  const double d = problem_.head_dim;
  const double e = problem_.value_dim;
  if (attends(op)) {
    add_pairs(op.views[plan::AttendOperand::kQ], op.views[plan::AttendOperand::kK], work);
    work.flops = 2 * (d + e) * (work.full_pairs + work.cut_pairs);
    work.q_sums *= op.init[plan::kQSide] || op.kind == plan::OpKind::AttendAll ? 0 : e;
    work.kv_sums = 0;
  } else if (attends_grad(op)) {
    add_pairs(op.views[plan::AttendGradOperand::kQ], op.views[plan::AttendGradOperand::kK], work);
    work.flops = (6 * d + 4 * e) * (work.full_pairs + work.cut_pairs);
    const bool begins = op.kind == plan::OpKind::AttendGradAll;
    work.q_sums *= begins || op.init[plan::kQSide] ? 0 : d;
    work.kv_sums *= begins || op.init[plan::kKvSide] ? 0 : d + e;
  } else {
    work.bytes = memory_bytes(program, op);
  }
  return work;
}

DeviceCosts::DeviceCosts(const DeviceSpec& device, const plan::Problem& problem)
    : device_(device), sum_bytes_(static_cast<double>(bytes_of(accumulator(problem.dtype)))) {
  forward_ = curves(plan::Pass::Forward, problem);
  backward_ = curves(plan::Pass::Backward, problem);
  // A device whose source has one pass or one mask only uses it for both.
  const auto borrow = [](const KernelCurve*& missing, const KernelCurve* other) {
    if (missing == nullptr) missing = other;
  };
  for (Curves* of_pass : {&forward_, &backward_}) {
    Curves& other = of_pass == &forward_ ? backward_ : forward_;
    borrow(of_pass->full, other.full);
    borrow(of_pass->causal, other.causal);
  }
  for (Curves* of_pass : {&forward_, &backward_}) {
    borrow(of_pass->full, of_pass->causal);
    borrow(of_pass->causal, of_pass->full);
  }
  if (forward_.full != nullptr) return;
  std::set<std::string> dtypes;
  for (const KernelCurve& curve : device.kernels) dtypes.insert(to_string(curve.dtype));
  fail<InvalidArgument>("cluster: device {} has no kernel curve for {}; {} is required",
                        device.name, to_string(problem.dtype),
                        list_names(std::vector<std::string>(dtypes.begin(), dtypes.end())));
}

DeviceCosts::Curves DeviceCosts::curves(plan::Pass pass, const plan::Problem& problem) const {
  Curves curves;
  for (const KernelCurve& curve : device_.kernels) {
    if (curve.pass != pass || bytes_of(curve.dtype) != bytes_of(problem.dtype)) continue;
    const KernelCurve*& best = curve.causal ? curves.causal : curves.full;
    const auto distance = [&](const KernelCurve* c) {
      return std::abs(c->head_dim - problem.head_dim);
    };
    if (best == nullptr || distance(&curve) < distance(best)) best = &curve;
  }
  return curves;
}

double DeviceCosts::memory_rate(const OpWork& work) const {
  for (const MemoryCurve& curve : device_.memory) {
    if (curve.op == work.kind) return interpolate(curve.points, work.bytes);
  }
  return device_.memory_bytes_per_s;
}

double DeviceCosts::seconds(const OpWork& work) const {
  const double pairs = work.full_pairs + work.cut_pairs;
  if (pairs == 0 && work.bytes == 0) return device_.launch_s;
  if (pairs == 0) return device_.launch_s + work.bytes / memory_rate(work);
  const bool backward =
      work.kind == plan::OpKind::AttendGrad || work.kind == plan::OpKind::AttendGradAll;
  const Curves& curves = backward ? backward_ : forward_;
  const double tokens = std::sqrt(work.q_tokens * work.kv_tokens);
  const double per_pair = work.flops / pairs;
  double seconds = device_.launch_s;
  if (device_.mask_edges) {
    seconds += work.flops / curves.full->rate(tokens);
    if (work.edge_rows > 0) {
      const double n = work.edge_tokens;
      const double more = 1 / curves.causal->rate(n) - 1 / curves.full->rate(n);
      seconds += per_pair * work.edge_rows * (n + 1) / 2 * std::max(0.0, more);
    }
  } else {
    if (work.full_pairs > 0) seconds += per_pair * work.full_pairs / curves.full->rate(tokens);
    if (work.cut_pairs > 0) seconds += per_pair * work.cut_pairs / curves.causal->rate(tokens);
  }
  return seconds + sum_bytes_ * (work.q_sums + work.kv_sums) / device_.carry_bytes_per_s;
}

}  // namespace armillary::sim
