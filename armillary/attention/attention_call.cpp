// attention_call.cpp: checks and compiles a call, and begins to agree on it.
//
// prepare_call describes the call as a problem, looks it up among those of the group, and lets this
// rank check everything that it can check alone. Its verdict travels with the record of the call,
// so one that it refuses is refused by all ranks. agree() then decides when the run may begin.
#include "armillary/attention/attention_call.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "armillary/attention/shared_choice.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/predict/tune/automatic.h"
#include "armillary/proof/verdict.h"
#include "armillary/runtime/dtypes.h"

namespace armillary::attention {
namespace {

/// Refuses a tensor whose tokens are not as many as the layout gives this rank.
void check_tokens(std::string_view name, std::int64_t tokens, std::int64_t required,
                  const comm::Communicator& comm, const plan::Layout& layout) {
  if (tokens == required) return;
  fail<InvalidArgument>("attention: {} has {} on rank {} of {}; layout {} gives it {}", name,
                        count_of(tokens, "token"), comm.rank(), comm.world(), to_string(layout),
                        required);
}

bool is_number(at::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 ||
         dtype == at::kHalf;
}

/// Checks the options that score.h does not. `returns_max`: the function returns the largest logit.
void check_features(const AttentionOptions& options, std::int64_t heads, bool returns_max,
                    at::Device place) {
  const at::Tensor& sinks = options.sinks_H;
  if (sinks.defined() && (sinks.dim() != 1 || sinks.size(0) != heads ||
                          !is_number(sinks.scalar_type()) || sinks.device() != place)) {
    fail<InvalidArgument>(
        "attention: sinks_H is {} [{}] on {}; one logit per query head, [{}], fp64, fp32, bf16 or "
        "fp16, on {}, is required",
        at::toString(sinks.scalar_type()), fmt::join(sinks.sizes(), ", "), sinks.device().str(),
        heads, place.str());
  }
  if (options.return_max_logit && !returns_max) {
    fail<InvalidArgument>(
        "attention: return_max_logit is set, and only the output is returned; a call of kind "
        "AttentionLse is required");
  }
}

/// Scores with the default scale filled in. @throws InvalidArgument if a feature does not fit.
kernel::Score score_of(const AttentionOptions& options, std::int64_t heads, double head_dim) {
  kernel::Score score{.scale = options.scale.value_or(1.0 / std::sqrt(head_dim)),
                      .softcap = options.softcap,
                      .alibi_slopes_H = options.alibi_slopes_H,
                      .dropout = options.dropout};
  kernel::check_score("attention", score, heads);
  kernel::check_slopes("attention", score.alibi_slopes_H, heads);
  // Backward must see the slopes of forward, whatever the caller does with its tensor.
  if (score.alibi_slopes_H.defined()) score.alibi_slopes_H = score.alibi_slopes_H.clone();
  return score;
}

/// Refuses a communicator that has too few lanes for one of the passes, so that backward is not
/// refused after forward ran. Ranks agree on the last lane, so no plan may use it.
void check_lanes(const runtime::CompiledAttention& programs, const comm::Communicator& comm) {
  std::size_t lanes = 0;
  for (const auto& program : {programs.forward, programs.backward, programs.replay}) {
    lanes = std::max(lanes, program->lanes.size());
  }
  if (std::cmp_less(lanes, comm.lanes())) return;
  fail<InvalidArgument>(
      "attention: a plan of {}, a communicator of {}; at least {} are required, for ranks "
      "agree on the last",
      count_of(lanes, "lane"), comm.lanes(), lanes + 1);
}

void check_kept(const KeptAttention& kept_output) {
  if (kept_output.out.defined() && kept_output.lse.defined()) return;
  fail<InvalidArgument>(
      "attention: nothing was kept for the replay; what a call of kind Keep gives is required");
}

/// The programs of a problem for this kernel and source. As long as the process-wide cache has
/// them, neither it nor its lock is asked again.
std::shared_ptr<const runtime::CompiledAttention> programs_for(runtime::KnownProblem& known,
                                                               plan::Rank rank,
                                                               const kernel::Kernel& kernel,
                                                               const proof::ProgramSource& source) {
  std::shared_ptr<const runtime::CompiledAttention> programs = known.programs.lock();
  if (!programs || programs->forward->kernel != &kernel || programs->proved.source != source) {
    // A text that names no strategy is parsed again for its error, which says why.
    programs = runtime::compile_cached(
        known.problem,
        known.strategy ? *known.strategy : plan::parse_strategy(known.strategy_texts.front()), rank,
        kernel, source);
    known.programs = programs;
  }
  return programs;
}

/// Checks everything that one rank can refuse alone, and fills in the call.
void check_and_compile(AttentionCall& call, const AttentionOptions& options) {
  const plan::Problem& problem = call.known->problem;
  const AttentionShape& shape = call.shape;
  const bool returns_max = call.kind == CallKind::AttentionLse || call.kind == CallKind::Functional;
  check_features(options, shape.heads, returns_max, call.rank->device().place());
  if (options.timeout_s && !(*options.timeout_s > 0 && *options.timeout_s <= 1e9)) {
    fail<InvalidArgument>("attention: timeout_s is {}; more than 0 and at most 1e9 s is required",
                          *options.timeout_s);
  }
  call.options = {.score = score_of(options, problem.heads, problem.head_dim),
                  .max_logit = options.return_max_logit,
                  .timeout_s = options.timeout_s};
  const kernel::Kernel& kernel = call.rank->device().kernel();
  kernel.check("attention", {.head_dim = problem.head_dim,
                             .value_dim = problem.value_dim,
                             .plain = call.options.score.plain(),
                             .max_logit = options.return_max_logit});
  call.programs = programs_for(*call.known, call.comm->rank(), kernel, options.programs);
  check_lanes(*call.programs, *call.comm);
  // The program says how many tokens of each input the layout gives this rank.
  const runtime::CompiledProgram& forward = *call.programs->forward;
  for (const int tile : forward.program.inputs) {
    const plan::Tensor tensor = forward.program.tiles[tile].tensor;
    const std::int64_t tokens = tensor == plan::Tensor::Q ? shape.q_tokens : shape.kv_tokens;
    check_tokens(to_string(tensor), tokens, forward.shapes[tile][1], *call.comm, options.layout);
  }
}

/// Names of CallKind, as records and errors say them.
constexpr std::array<std::string_view, 6> kNames{"attention", "attention_lse", "keep",
                                                 "replay",    "attention",     "backward"};

std::string_view name_of(CallKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

double scale_of(const AttentionOptions& options, const plan::Problem& problem) {
  return options.scale.value_or(1.0 / std::sqrt(problem.head_dim));
}

/// Returns action(); the flight recorder, if there is one, says that the rank waits for its group.
template <class Action>
decltype(auto) while_waiting(const AttentionCall& call, recorder::Wait why, const Action& action) {
  return recorder::while_waiting(call.rank->recorder(), why, action,
                                 {.group = call.rank->recorded_group(*call.comm)});
}

/// The group's choice for `auto`: all ranks first agree that they ask for the same, then rank 0
/// chooses, and says so on standard error. Collective.
plan::Strategy shared_choice(const AttentionCall& call, const plan::Problem& problem,
                             const AttentionOptions& options) {
  comm::Communicator& comm = *call.comm;
  tune::AutomaticChoice choice;
  while_waiting(call, recorder::Wait::Agreement, [&] {
    const std::string words = words_of(problem, options.strategy);
    Agreement same(comm, {.call = name_of(call.kind),
                          .key = proof::digest_of_text(problem, options.strategy),
                          .problem = words,
                          .scale = scale_of(options, problem),
                          .options = options});
    same.wait();
    choice = choose_together(comm, options.strategy, problem);
  });
  if (comm.rank() == 0 && choice.is_new) {
    fmt::print(stderr, "armillary: {}; rank 0 chose it for {}\n", choice.line,
               comm.world() == 1 ? "itself" : fmt::format("all {} ranks", comm.world()));
  }
  return std::move(choice.strategy);
}

/// The problem of a call among those that its group knows, added if it is not there. Collective in
/// that case, if the strategy is `auto`.
std::shared_ptr<runtime::KnownProblem> known_problem(const AttentionCall& call,
                                                     const plan::Problem& problem,
                                                     const AttentionOptions& options) {
  if (auto known = call.group->known.find(problem, options.strategy)) return known;
  std::optional<plan::Strategy> choice;
  if (tune::is_automatic(options.strategy)) choice = shared_choice(call, problem, options);
  return call.group->known.add(new_problem(problem, options.strategy, choice));
}

/// A call of this group that knows its problem.
std::shared_ptr<AttentionCall> new_call(CallKind kind, const AttentionShape& shape,
                                        comm::Communicator& comm, const AttentionOptions& options) {
  runtime::Rank& rank = runtime::Rank::of(comm);
  runtime::GroupState& group = rank.group(comm);
  check_no_call_in_progress(group, comm.rank());
  auto call = std::make_shared<AttentionCall>();
  call->kind = kind;
  call->shape = shape;
  call->comm = &comm;
  call->rank = &rank;
  call->group = &group;
  call->proofs = options.proofs;
  call->known = known_problem(*call, problem_of(kind, shape, comm.world(), options), options);
  return call;
}

}  // namespace

int saved_tile(const plan::RankProgram& program, plan::Tensor tensor) {
  const auto tile =
      std::ranges::find_if(program.saved, [&](int t) { return program.tiles[t].tensor == tensor; });
  ARMILLARY_CHECK(tile != program.saved.end());
  return *tile;
}

IsOwn is_own_of(const plan::RankProgram& program) {
  IsOwn is_own{};
  for (std::size_t i = 0; i < std::size(kSaved); ++i) {
    const int tile = saved_tile(program, kSaved[i]);
    is_own[i] =
        !std::ranges::count(program.inputs, tile) && !std::ranges::count(program.outputs, tile);
  }
  return is_own;
}

std::shared_ptr<const runtime::CompiledProgram> AttentionCall::backward() const {
  const kernel::Kernel& kernel = rank->device().kernel();
  if (programs->forward->kernel == &kernel) return programs->backward;
  // The device was changed since forward: backward is compiled for the kernel of the new one. The
  // program does not depend on the kernel, so the proof of the call holds for it.
  const plan::Planner& planner = programs->proved.planner;
  const auto again = runtime::compile_cached(planner.problem(), planner.strategy(), comm->rank(),
                                             kernel, programs->proved.source);
  ARMILLARY_CHECK(again->proved.programs == programs->proved.programs);
  return again->backward;
}

runtime::ExecutionOptions AttentionCall::options_with(
    const std::optional<at::Tensor>& sinks) const {
  runtime::ExecutionOptions with = options;
  with.device = &rank->device();  // The present one: that of forward may be gone.
  with.recorder = rank->recorder();
  with.recorded_group = rank->recorded_group(*comm);
  if (sinks) {
    const bool fp64 = programs->forward->problem.dtype == plan::Dtype::F64;
    with.sinks_H = sinks->detach().to(fp64 ? at::kDouble : at::kFloat);
  }
  return with;
}

std::vector<at::Tensor> AttentionCall::run_backward(std::span<const at::Tensor> saved,
                                                    const at::Tensor& dout,
                                                    const std::optional<at::Tensor>& sinks) const {
  std::unique_ptr<runtime::Execution> execution =
      rank->executions().take(backward(), *comm, options_with(sinks));
  for (std::size_t i = 0; i < std::size(kSaved); ++i) execution->feed(kSaved[i], saved[i]);
  execution->feed(plan::Tensor::DOut, dout);
  execution->finish();
  std::vector<at::Tensor> gradients{execution->output(plan::Tensor::DQ),
                                    execution->output(plan::Tensor::DK),
                                    execution->output(plan::Tensor::DV)};
  gradients.push_back(sinks ? execution->sinks_grad().to(sinks->scalar_type()) : at::Tensor());
  rank->executions().give_back(std::move(execution));
  return gradients;
}

void AttentionCall::agree() {
  if (may_run) {
    // Spin time before compute begins, in seconds. Messages of a rank that attends wait for all of
    // that op, and those of its neighbours wait for them; a rank that waits in vain has lost the
    // time. So it waits for half of what the first such op took the last time, and at least for
    // longer than an agreement takes whose ranks are all there. Ranks that come later are waited
    // for by the gate, beside compute. The simulator has that of processes (predict/sim/cluster.h).
    constexpr double kSpinOps = 0.5;
    const double least_s = comm->shares_process() ? 50e-6 : 500e-6;
    const double spin_s = std::max(least_s, run ? kSpinOps * run->first_attend_s() : 0);
    while_waiting(*this, recorder::Wait::Agreement,
                  [&] { return agreement->opens_within(spin_s); });
    return;
  }
  wait_for_agreement();
  while_waiting(*this, recorder::Wait::Proof,
                [&] { proof::prove_together(*comm, programs->proved, proofs); });
  known->proved = programs->proved.programs;
  may_run = true;
}

void AttentionCall::wait_for_agreement() {
  while_waiting(*this, recorder::Wait::Agreement, [&] { agreement->wait(); });
}

std::unique_ptr<runtime::Execution> AttentionCall::end() {
  group->busy = false;
  agreement.reset();
  sinks_H.reset();
  k_BLGD = v_BLGE = {};
  return std::move(run);
}

void AttentionCall::drop(const std::string& reason) {
  if (!run) return;
  comm->abort(reason);
  drop_reason = reason;
  is_dropped = true;
  end();
}

void AttentionCall::check_in_progress() const {
  if (is_dropped) {
    fail<CommError>("attention: the call has ended{}{}", drop_reason.empty() ? "" : ": ",
                    drop_reason);
  }
  if (!run) fail<InvalidArgument>("attention: the call is over; begin another one");
}

AttentionCall::~AttentionCall() {
  drop("attention: a call was dropped before it had finished");
}

void check_no_call_in_progress(const runtime::GroupState& group, int rank) {
  if (!group.busy) return;
  fail<InvalidArgument>(
      "attention: another call is in progress on rank {}; finish it before the next begins", rank);
}

plan::Problem problem_of(CallKind kind, const AttentionShape& shape, int world,
                         const AttentionOptions& options) {
  return {.world = world,
          .batch = shape.batch,
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .head_dim = static_cast<int>(shape.head_dim),
          .value_dim = static_cast<int>(shape.value_dim),
          .dtype = runtime::plan_dtype(shape.dtype, "attention: q"),
          .mask = options.mask,
          .layout = options.layout,
          .return_lse = kind == CallKind::AttentionLse,
          .transfer_dtype = options.transfer_dtype};
}

std::shared_ptr<AttentionCall> prepare_call(CallKind kind, const AttentionShape& shape,
                                            comm::Communicator& comm,
                                            const AttentionOptions& options,
                                            const KeptAttention& kept_output) {
  auto call = new_call(kind, shape, comm, options);
  // Check and compile. An error becomes a verdict, which the other ranks are told.
  proof::Verdict refusal;
  try {
    if (kind == CallKind::Replay) check_kept(kept_output);
    check_and_compile(*call, options);
    call->may_run = runtime::is_proved(*call->known, *call->programs);
  } catch (const InvalidArgument& error) {
    refusal.raise(proof::Finding::RefusedInput, error.what());
  } catch (const PlanError& error) {
    refusal.raise(proof::Finding::RefusedPlan, error.what());
  }

  // Tell the next rank.
  call->agreement.emplace(comm,
                          CallRequest{.call = name_of(kind),
                                      .key = call->known->key,
                                      .problem = call->known->words,
                                      .scale = scale_of(options, call->known->problem),
                                      .options = options},
                          refusal);
  if (refusal.finding == proof::Finding::Fine) return call;

  // Refused: wait a while for the other ranks, so that all of them hear the reason, and because
  // ranks that were asked for different things are a better reason than the error of this one.
  constexpr double kLongestWaitForPeers = 10;  // seconds
  call->agreement->opens_within(std::min(comm.timeout_s(), kLongestWaitForPeers));
  comm.abort(refusal.text);  // Ranks that come later find the group aborted with the reason.
  proof::throw_verdict(refusal);
}

std::shared_ptr<AttentionCall> prepare_backward(const AttentionShape& shape,
                                                comm::Communicator& comm,
                                                const AttentionOptions& options) {
  auto call = new_call(CallKind::Functional, shape, comm, options);
  check_and_compile(*call, options);
  if (runtime::is_proved(*call->known, *call->programs)) return call;
  // The group was made after forward ran.
  call = prepare_call(CallKind::Backward, shape, comm, options, {});
  call->agree();
  call->agreement.reset();
  return call;
}

}  // namespace armillary::attention
