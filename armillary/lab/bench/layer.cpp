// Layer makes the call that a model makes, on every rank. LayerKernels walks over the programs of
// the same plan and makes a kernel call of each op that attends, with arguments of the same shapes
// and the same flags as the executor would pass. Their values do not matter for the time, so every
// call has tensors of its own, and none depends on another.
#include "armillary/lab/bench/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/runtime/rank.h"

namespace armillary::bench {
namespace {

/// Counts the buffers that ATen allocates on the thread that holds its guard.
class AllocationCounter : public c10::MemoryReportingInfoBase {
 public:
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void* /*memory*/, std::int64_t bytes, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    if (bytes > 0) ++count_;
  }
  std::int64_t count() const { return count_; }

 private:
  std::int64_t count_ = 0;
};

/// An index tensor.
at::Tensor as_tensor(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

/// A contiguous tensor of a kernel's dtype, as collectives take it.
comm::Array as_array(at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type() == at::kFloat      ? comm::ElementType::Fp32
                     : tensor.scalar_type() == at::kBFloat16 ? comm::ElementType::Bf16
                                                             : comm::ElementType::Fp16;
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.numel(), dtype};
}

/// The usual scale of scores, 1 / sqrt(head dim).
double scale_of(const plan::Problem& problem) {
  return 1 / std::sqrt(static_cast<double>(problem.head_dim));
}

}  // namespace

std::int64_t most_ops(const plan::Problem& problem, const std::string& strategy, bool backward) {
  const plan::Planner planner(problem, plan::parse_strategy(strategy));
  std::size_t most = 0;
  for (plan::Rank rank = 0; rank < problem.world; ++rank) {
    const auto ops_of = [&](plan::Pass pass) {
      return plan::lower(problem, planner.blocks(), planner.program(pass, rank)).ops.size();
    };
    std::size_t ops = ops_of(plan::Pass::Forward);
    if (backward) ops += ops_of(plan::Pass::Backward);
    most = std::max(most, ops);
  }
  return static_cast<std::int64_t>(most);
}

Layer::Layer(const plan::Problem& problem, const std::string& strategy, const Sample& whole,
             std::unique_ptr<Ranks> ranks, const std::string& run_folder)
    : options_{.mask = problem.mask,
               .layout = problem.layout,
               .strategy = strategy,
               .transfer_dtype = problem.transfer_dtype},
      ranks_(std::move(ranks)) {
  for (const plan::Runs& runs : plan::shards(problem.layout, problem.mask, problem.world).q) {
    rows_.push_back(as_tensor(plan::positions(runs)));
    const auto mine = [&](const at::Tensor& x) { return x.index_select(1, rows_.back()); };
    parts_.push_back(
        {mine(whole.q_BLHD), mine(whole.k_BLGD), mine(whole.v_BLGD), mine(whole.dout_BLHD)});
    tokens_ += rows_.back().size(0);
  }
  if (run_folder.empty()) return;
  recording_.resize(problem.world, nullptr);
  run_all([&](comm::Communicator& comm) {
    recording_[comm.rank()] = &runtime::Rank::of(comm);
    recording_[comm.rank()]->record_in(run_folder);
  });
}

// Layers of processes share their ranks, and with them the recorder that was opened last.
Layer::~Layer() {
  if (!is_idle_) return;
  for (const runtime::Rank* rank : recording_) {
    if (rank != nullptr && rank->recorder() != nullptr) rank->recorder()->end();
  }
}

double Layer::run_all(const Ranks::Work& work) {
  is_idle_ = false;
  const double seconds = ranks_->run(work);
  is_idle_ = true;
  return seconds;
}

/// Parts of the ranks of this process at their positions of the sequence; zeros elsewhere.
std::vector<at::Tensor> Layer::joined(const std::vector<std::vector<at::Tensor>>& parts) const {
  std::vector<at::Tensor> results;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    for (std::size_t i = 0; i < parts[rank].size(); ++i) {
      const at::Tensor part = parts[rank][i].detach();
      if (i == results.size()) {
        std::vector<std::int64_t> shape = part.sizes().vec();
        shape[1] = tokens_;
        results.push_back(at::zeros(shape, part.options()));
      }
      results[i].index_copy_(1, rows_[rank], part);
    }
  }
  return results;
}

/// One layer on one rank: {out}, or {out, dq, dk, dv} of its tokens.
std::vector<at::Tensor> Layer::run_once(comm::Communicator& comm, bool backward) {
  const Sample& mine = parts_[comm.rank()];
  if (!backward) {
    const c10::NoGradGuard no_grad;
    return {attention::sequence_parallel_attention(mine.q_BLHD, mine.k_BLGD, mine.v_BLGD, comm,
                                                   options_)};
  }
  // New leaves in every step: a graph of autograd is used once.
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& x : {mine.q_BLHD, mine.k_BLGD, mine.v_BLGD}) {
    inputs.push_back(x.detach().requires_grad_(true));
  }
  std::vector<at::Tensor> results{
      attention::sequence_parallel_attention(inputs[0], inputs[1], inputs[2], comm, options_)};
  for (at::Tensor& grad : torch::autograd::grad(results, inputs, {mine.dout_BLHD})) {
    results.push_back(std::move(grad));
  }
  return results;
}

std::vector<at::Tensor> Layer::first_run() {
  std::vector<std::vector<at::Tensor>> parts(rows_.size());
  run_all([&](comm::Communicator& comm) { parts[comm.rank()] = run_once(comm, true); });
  std::vector<at::Tensor> results = joined(parts);
  // Ranks that are processes add what each of them has; all of them come here, or none.
  const int world = static_cast<int>(rows_.size());
  if (world > 1 && !(ranks_->runs(0) && ranks_->runs(world - 1))) {
    run_all([&](comm::Communicator& comm) {
      for (at::Tensor& result : results) comm::all_reduce(comm, as_array(result));
    });
  }
  // Warm runs now say how long a layer takes.
  for (const bool backward : {false, true}) repeats_[backward ? 1 : 0] = repeats_for(run(backward));
  return results;
}

void Layer::start(bool backward) {
  is_idle_ = false;
  ranks_->start([this, backward](comm::Communicator& comm) { run_once(comm, backward); },
                repeats_[backward ? 1 : 0]);
}

double Layer::wait() {
  const double seconds = ranks_->wait();
  is_idle_ = true;
  return seconds;
}

// Every rank counts on its own thread, on which its ops run.
std::int64_t Layer::allocations(bool backward) {
  std::vector<std::int64_t> counts(rows_.size());
  run_all([&](comm::Communicator& comm) {
    const auto counter = std::make_shared<AllocationCounter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
    run_once(comm, backward);
    comm::all_reduce(comm, comm::array(std::span(&(counts[comm.rank()] = counter->count()), 1)),
                     comm::Reduction::Max);
  });
  return *std::max_element(counts.begin(), counts.end());
}

/// The kernel calls of one rank.
struct LayerKernels::Calls {
  /// One call, with tensors of its own. The op decides which of them are used.
  struct KernelArgs {
    kernel::Pairs pairs;
    kernel::Inputs inputs;
    kernel::Partial carry;
    kernel::AttentionOutput result;
    kernel::OutputGrads upstream;
    kernel::InputGrads grads;
    bool init_q = false;  ///< Op::init of each side.
    bool init_kv = false;
    bool all = false;  ///< attend_all or attend_grad_all: the rounded result in one call.

    /// Turns it into an `all` call, whose results are in the input dtype.
    void write_at_once() {
      all = true;
      result = {at::empty(carry.out_BLHE.sizes(), inputs.q_BLHD.options()), carry.lse_BLH};
      if (!upstream.dout_BLHE.defined()) return;
      upstream.lse_BLH = carry.lse_BLH.clone();
      grads = {at::empty_like(inputs.q_BLHD), at::empty_like(inputs.k_BLGD),
               at::empty_like(inputs.v_BLGE)};
    }
  };
  std::vector<KernelArgs> forward;  ///< In the order of the program of that pass.
  std::vector<KernelArgs> backward;

  /// The calls of a program in its order, on the rows of the sample that the views of its ops stand
  /// for.
  static std::vector<KernelArgs> of(const plan::Planner& planner, const plan::RankProgram& program,
                                    const plan::Mask& mask, const Sample& whole) {
    std::vector<KernelArgs> calls;
    for (const plan::Op& op : program.ops) {
      if (!attends(op) && !attends_grad(op)) continue;
      calls.push_back(one(planner, op, mask, whole));
      calls.back().init_q = op.init[plan::kQSide];
      calls.back().init_kv = op.init[plan::kKvSide];
      const bool all = op.kind == plan::OpKind::AttendAll || op.kind == plan::OpKind::AttendGradAll;
      if (all) calls.back().write_at_once();
    }
    return calls;
  }

  /// The call of one op. Forward runs once here: backward needs its log-sum-exp.
  static KernelArgs one(const plan::Planner& planner, const plan::Op& op, const plan::Mask& mask,
                        const Sample& whole) {
    const plan::Problem& problem = planner.problem();
    const auto runs_of = [](const std::vector<plan::Block>& blocks, const plan::View& view) {
      plan::Runs runs;
      for (const int id : view.blocks) {
        runs.insert(runs.end(), blocks[id].runs.begin(), blocks[id].runs.end());
      }
      return runs;
    };
    // The pairs of the op: blocks of the views of q and k.
    const plan::View& queries = op.views[0];
    const plan::View& keys = op.views[1];
    KernelArgs call;
    call.pairs = {.q_runs = runs_of(planner.blocks().q, queries),
                  .k_runs = runs_of(planner.blocks().kv, keys),
                  .mask = &mask,
                  .heads = {queries.heads.begin, keys.heads.begin, problem.group_size()}};
    call.pairs.prepared = kernel::cpu_kernel().prepare(call.pairs);
    // The inputs: those rows and heads of the sample.
    const at::Tensor q_rows = as_tensor(plan::positions(call.pairs.q_runs));
    const at::Tensor k_rows = as_tensor(plan::positions(call.pairs.k_runs));
    const auto part = [](const at::Tensor& x, const at::Tensor& rows, const plan::Heads& heads) {
      return x.index_select(1, rows).narrow(2, heads.begin, heads.count()).contiguous();
    };
    call.inputs = {.q_BLHD = part(whole.q_BLHD, q_rows, queries.heads),
                   .k_BLGD = part(whole.k_BLGD, k_rows, keys.heads),
                   .v_BLGE = part(whole.v_BLGD, k_rows, keys.heads),
                   .score = {.scale = scale_of(problem)}};
    // The accumulators, and for gradients the upstream gradient and its Delta, which may be zero.
    const auto acc = at::TensorOptions(kernel::accumulator(whole.q_BLHD.scalar_type()));
    const at::IntArrayRef shape = call.inputs.q_BLHD.sizes();
    call.carry = {at::empty(shape, acc), at::empty(shape.slice(0, 3), acc)};
    kernel::clear(call.carry);
    kernel::cpu_kernel().attend(call.pairs, call.inputs, call.carry);
    if (attends(op)) return call;
    call.upstream = {part(whole.dout_BLHD, q_rows, queries.heads), call.carry.lse_BLH,
                     at::zeros(shape.slice(0, 3), acc)};
    call.grads = {at::zeros(shape, acc), at::zeros(call.inputs.k_BLGD.sizes(), acc),
                  at::zeros(call.inputs.v_BLGE.sizes(), acc)};
    return call;
  }

  /// Makes the calls of one layer in program order.
  void run(bool both) {
    const kernel::Kernel& kernel = kernel::cpu_kernel();
    for (KernelArgs& call : forward) {
      if (call.all) {
        kernel.attend_all(call.pairs, call.inputs, {}, call.result);
        continue;
      }
      call.carry.init = call.init_q;
      kernel.attend(call.pairs, call.inputs, call.carry);
    }
    if (!both) return;
    for (KernelArgs& call : backward) {
      if (call.all) {
        kernel.attend_grad_all(call.pairs, call.inputs, call.upstream, call.grads);
        continue;
      }
      call.grads.dq_init = call.init_q;
      call.grads.dkv_init = call.init_kv;
      kernel.attend_grad(call.pairs, call.inputs, call.upstream, call.grads);
    }
  }
};

// The programs are lowered as the executor lowers them, so `fuse` makes the same ops of them.
LayerKernels::LayerKernels(const plan::Problem& problem, const std::string& strategy,
                           const Sample& whole, std::unique_ptr<Ranks> ranks)
    : mask_(problem.mask), ranks_(std::move(ranks)) {
  const plan::Planner planner(problem, plan::parse_strategy(strategy));
  for (plan::Rank rank = 0; rank < problem.world; ++rank) {
    of_rank_.push_back(std::make_unique<Calls>());
    if (!ranks_->runs(rank)) continue;
    const auto calls = [&](plan::Pass pass) {
      return Calls::of(planner, plan::lower(problem, planner.blocks(), planner.program(pass, rank)),
                       mask_, whole);
    };
    of_rank_.back()->forward = calls(plan::Pass::Forward);
    of_rank_.back()->backward = calls(plan::Pass::Backward);
  }
  for (const bool backward : {false, true}) repeats_[backward ? 1 : 0] = repeats_for(run(backward));
}

LayerKernels::~LayerKernels() = default;

double LayerKernels::run(bool backward) {
  return ranks_->run([&](comm::Communicator& comm) { of_rank_[comm.rank()]->run(backward); },
                     repeats_[backward ? 1 : 0]);
}

}  // namespace armillary::bench
