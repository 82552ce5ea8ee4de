// Columns of a row become a problem, a strategy and a layout, and these become seconds: of
// simulated attention alone, of a collective and the kernels after it, of a training step, or of a
// phase of inference.
#include "armillary/lab/validate/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/lab/validate/model_step.h"
#include "armillary/predict/cost/decode.h"

namespace armillary::validate {
namespace {

/// A column that the run of a row needs. @throws InvalidArgument if it is null.
template <class T>
T needed(const PublishedRow& row, const std::optional<T>& value, const char* column) {
  if (!value) {
    fail<InvalidArgument>("row {}: {} is null; strategy {} needs a number", row.id, column,
                          row.strategy);
  }
  return *value;
}

/// Refuses `total` of `what` unless each of `parts` takes as many.
void require_multiple(const PublishedRow& row, std::int64_t total, const char* what, int parts,
                      const char* of) {
  if (total % parts == 0) return;
  fail<InvalidArgument>("row {}: {} {} and {} {}; a multiple of {} is required; nearest: {}",
                        row.id, what, total, of, parts, parts, (total / parts + 1) * parts);
}

/// Refuses degrees that do not divide heads and sequences. KV heads that several tp ranks share are
/// read by each of them.
void check_degrees(const PublishedRow& row) {
  if (row.q_heads) require_multiple(row, *row.q_heads, "q_heads", row.tp, "tp_degree");
  if (row.kv_heads && row.tp % *row.kv_heads != 0) {
    require_multiple(row, *row.kv_heads, "kv_heads", row.tp, "tp_degree");
  }
  require_multiple(row, row.batch, "global_batch", row.dp, "dp_degree");
}

/// Refuses more GPUs than the cluster has devices.
void check_gpus(const PublishedRow& row, const Constants& constants) {
  const sim::Cluster known = sim::load_cluster(constants.preset);
  if (row.gpus <= known.devices()) return;
  fail<InvalidArgument>("row {}: gpus = {}; at most the {} of cluster {} are required", row.id,
                        row.gpus, count_of(known.devices(), "device"), known.name);
}

/// GPUs that share the attention of one sequence.
int sequence_ranks(const PublishedRow& row) {
  const int others = row.tp * row.dp;
  if (row.gpus % others != 0) {
    fail<InvalidArgument>(
        "row {}: {} with tp_degree {} and dp_degree {}; a multiple of {} is "
        "required",
        row.id, count_of(row.gpus, "GPU"), row.tp, row.dp, others);
  }
  return row.gpus / others;
}

/// Degree of the all-to-all. Rows that state neither degree get 8, the GPUs of a node, or half of
/// the ranks if that is less: a ring of 2 is left, so that the row is not that of Ulysses.
int ulysses_degree(const PublishedRow& row, int ranks) {
  if (row.ulysses) return *row.ulysses;
  if (row.ring) return std::max(1, ranks / *row.ring);
  return std::clamp(ranks / 2, 1, 8);
}

/// Ranks of the inner ring of a double ring: those of a node.
int window_of(const PublishedRow& row, int ranks) {
  const sim::Cluster known = sim::load_cluster(constants(row.cluster).preset);
  const int window = known.devices_per_node;
  if (ranks > window && ranks % window == 0) return window;
  fail<InvalidArgument>(
      "row {}: double_ring of {} on nodes of {}; a multiple of {} above it is required; "
      "nearest: strategy ring",
      row.id, count_of(ranks, "rank"), window, window);
}

/// Rows of the grid of Attention2D: the root of the ranks, or the nearest divisor below it.
int grid_rows(int ranks) {
  int rows = 1;
  for (int r = 1; r * r <= ranks; ++r) {
    if (ranks % r == 0) rows = r;
  }
  return rows;
}

/// The strategy by our names; empty if it is not modelled.
std::string strategy_text(const PublishedRow& row, int ranks) {
  const std::string& name = row.strategy;
  const bool packed = row.implementation.find("packed") != std::string::npos;
  const bool moves_q = row.implementation.find("query side") != std::string::npos;
  const int u = ulysses_degree(row, ranks);
  if (name == "ring" || name == "ring_p2p") return moves_q ? "ring:backward=q" : "ring";
  if (name == "ulysses") return packed ? "ulysses:qkv=packed" : "ulysses";
  if (name == "ring_allgather") return "allgather";
  if (name == "tokenring") return "tokenring";
  if (name == "double_ring") return fmt::format("double_ring:window={}", window_of(row, ranks));
  if (name == "attention2d") {
    const bool overlap = row.implementation.find("overlap") != std::string::npos;
    return fmt::format("attention2d:overlap={},rows={}", overlap, grid_rows(ranks));
  }
  if (name == "startrail") {
    const bool p2p_intra = row.implementation.find("p2p_intra") != std::string::npos;
    return fmt::format("startrail:c={},placement={}", needed(row, row.team, "team_size_c"),
                       p2p_intra ? "p2p_intra" : "collect_intra");
  }
  if (name == "loongtrain" || name == "usp" || name == "usp+tp") {
    // Nested rings (LoongTrain) are taken as plain rings, which they are when u ranks fill a node.
    if (u == 1) return "ring";
    if (u == ranks) return "ulysses";
    return fmt::format("usp:u={}{}", u, packed ? ",qkv=packed" : "");
  }
  return "";
}

/// The reason why a strategy has no prediction.
std::string not_modelled(const std::string& name) {
  const std::vector<std::string> modelled{"ring",
                                          "ring_p2p",
                                          "ring_allgather",
                                          "ulysses",
                                          "usp",
                                          "usp+tp",
                                          "loongtrain",
                                          "tokenring",
                                          "startrail",
                                          "attention2d",
                                          "double_ring",
                                          "startrail_best_c",
                                          "single_gpu_kernel_over_8"};
  const std::string nearest = nearest_name(name, modelled);
  return "strategy not modelled" + (nearest.empty() ? "" : "; nearest: " + nearest);
}

plan::Layout layout(const PublishedRow& row) {
  const bool cyclic = row.strategy == "attention2d" && row.causal && row.balanced;
  if (row.implementation == "stripe" || cyclic) return {.kind = plan::LayoutKind::Striped};
  const bool zigzag = row.causal && row.balanced && row.strategy != "ulysses";
  return {.kind = zigzag ? plan::LayoutKind::Zigzag : plan::LayoutKind::Contiguous};
}

/// Whether the row ran the program of TokenRing's authors (ACA-Lab-SJTU/token-ring, causal_test).
bool is_token_ring_program(const PublishedRow& row) {
  return row.strategy == "tokenring" && row.implementation == "token-ring" && row.causal &&
         row.balanced;
}

/// The causal mask of a zigzag sequence with the ranks numbered in reverse. Queries go to the next
/// rank in our TokenRing, to the previous one in the authors' program; with this mask each step of
/// ours has the work and the messages of theirs.
plan::Mask reversed_zigzag(std::int64_t seq, int ranks) {
  // Place of a piece in the renumbered sequence: the order of pieces is reversed in each half.
  const auto place = [&](int piece) {
    return piece < ranks ? ranks - 1 - piece : 3 * ranks - 1 - piece;
  };
  const auto begin = [&](int piece) { return seq * piece / (std::int64_t{2} * ranks); };
  std::vector<plan::Band> bands;
  for (int q = 0; q < 2 * ranks; ++q) {
    for (int k = 0; k < 2 * ranks; ++k) {
      plan::Band band{.q = {begin(q), begin(q + 1)}, .k = {begin(k), begin(k + 1)}};
      if (q == k) band.hi = 0;
      if (place(q) >= place(k)) bands.push_back(band);
    }
  }
  return {seq, seq, std::move(bands)};
}

std::vector<plan::Pass> passes(const PublishedRow& row) {
  if (row.pass == "fwd" || row.pass == "prefill") return {plan::Pass::Forward};
  if (row.pass == "bwd") return {plan::Pass::Backward};
  if (row.pass == "fwd_bwd" || row.pass == "train_step") {
    return {plan::Pass::Forward, plan::Pass::Backward};
  }
  fail<InvalidArgument>(
      "row {}: corrected_pass, or pass where it is null, is {}; fwd, bwd, fwd_bwd, train_step, "
      "prefill or decode is required",
      row.id, row.pass.empty() ? "null" : row.pass);
}

/// Seconds of one GPU for the whole sequence, divided by 8: 8 GPUs that lose nothing.
double single_gpu_seconds(const PublishedRow& row, const Constants& constants) {
  PublishedRow alone = row;
  alone.gpus = 1;
  alone.strategy = "ring";
  alone.implementation = "";
  alone.ulysses = alone.ring = 1;
  return seconds(published_run(alone), constants) / 8;
}

/// Whether the strategy can solve the problem.
bool legal(const PublishedRun& run) {
  try {
    check_legal(run.problem, run.strategy);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

/// The step of a row of a model: of training, or of a prompt that is read.
cost::Step step(const PublishedRow& row) {
  const int heads = needed(row, row.q_heads, "q_heads");
  if (bytes_of(row.dtype) != 2) {
    fail<InvalidArgument>("row {}: dtype {} of a {}; bf16 or fp16 is required", row.id,
                          to_string(row.dtype), row.pass);
  }
  return {.model = cost::cost_of({.layers = needed(row, row.layers, "layers"),
                                  .hidden = needed(row, row.hidden, "hidden_dim"),
                                  .heads = heads,
                                  .kv_heads = row.kv_heads.value_or(heads),
                                  .head_dim = needed(row, row.head_dim, "head_dim"),
                                  .ffn = needed(row, row.ffn, "ffn_dim"),
                                  .vocab = needed(row, row.vocab, "vocab_size")}),
          .seq = needed(row, row.seq, "seq_len_tokens"),
          .batch = row.batch,
          .kind = row.pass == "train_step" ? cost::StepKind::Train : cost::StepKind::Prefill};
}

/// Whether the row is about layers of a model, not attention alone.
bool is_model_step(const PublishedRow& row) {
  return row.pass == "train_step" || row.pass == "prefill" || row.pass == "decode";
}

cost::Parallelism parallelism(const PublishedRow& row) {
  return {
      .mesh = {.dp = row.dp, .cp = sequence_ranks(row), .tp = row.tp}, .zero = 1, .microbatch = 0};
}

/// Seconds of a token behind the sequence. With `fp8 feed-forward` in its implementation a
/// parameter there has one byte.
double decode_seconds(const PublishedRow& row, const Constants& constants) {
  check_degrees(row);
  const cost::Step of = step(row);
  const bool is_fp8 = row.implementation.find("fp8 feed-forward") != std::string::npos;
  const double ffn = 3.0 * *row.hidden * *row.ffn * *row.layers;  // gate, up and down
  const double fp8_share = is_fp8 ? ffn / static_cast<double>(of.model.matmul_parameters) : 0;
  return cost::decode_time({.model = of.model,
                            .context = of.seq,
                            .sequences = of.batch,
                            .parameter_bytes = 2 - fp8_share},
                           parallelism(row).mesh, cluster(constants))
      .total();
}

/// Gathers K, V (and reduce-scatters dK, dV) with a ring over all ranks as NCCL's collectives do,
/// then attends: what allgather rings do. Plans of ours send to each rank directly instead.
double allgather_seconds(const PublishedRow& row, const Constants& constants) {
  const PublishedRun run = published_run(row);
  const plan::Problem& problem = run.problem;
  const double kv_bytes = 2.0 * static_cast<double>(problem.batch * problem.mask.kv_len()) *
                          problem.kv_heads * problem.head_dim *
                          static_cast<double>(bytes_of(problem.dtype));
  const double gather_s = kv_bytes * (problem.world - 1) / problem.world /
                          cost::group_bytes_per_s(cluster(constants), problem.world, 1);
  double sum = 0;
  for (const sim::Timeline& timeline : simulate(run, constants)) {
    double compute_s = 0;
    for (const sim::RankTimeline& rank : timeline.ranks) {
      compute_s = std::max(compute_s, rank.compute_s);
    }
    sum += compute_s + (timeline.pass == plan::Pass::Forward ? 1 : 2) * gather_s;
  }
  return sum;
}

/// Seconds of one step of a model. A row without a feed-forward size has one of 4 times the hidden
/// size and no gate, as GPT models do; one without a vocabulary has that of GPT-2.
double gpt_step_seconds(const PublishedRow& row, const PublishedRun& run,
                        const Constants& constants) {
  const int hidden = needed(row, row.hidden, "hidden_dim");
  const cost::ModelCost model = cost::cost_of({.layers = needed(row, row.layers, "layers"),
                                               .hidden = hidden,
                                               .heads = run.problem.heads,
                                               .kv_heads = run.problem.kv_heads,
                                               .head_dim = run.problem.head_dim,
                                               .ffn = row.ffn.value_or(4 * hidden),
                                               .vocab = row.vocab.value_or(kVocabularyOfGpt2),
                                               .gated = row.ffn.has_value()});
  return model_step_seconds(model, run.problem, attention_time(run, constants), /*zero=*/2,
                            constants);
}

/// Ring's step over that of the fastest team size and placement; below 1 where all are slower.
double startrail_speedup(const PublishedRow& row, const Constants& constants) {
  PublishedRow ring = row;
  ring.strategy = "ring";
  PublishedRun run = published_run(ring);
  run.problem.transfer_dtype = plan::TransferDtype::Input;
  const double ring_s = gpt_step_seconds(row, run, constants);
  double best = std::numeric_limits<double>::infinity();
  for (int team = 2; team * team <= row.gpus; ++team) {
    if (row.team.value_or(team) != team || row.gpus % (team * team) != 0) continue;
    for (const char* placement : {"p2p_intra", "collect_intra"}) {
      run.strategy =
          plan::parse_strategy(fmt::format("startrail:c={},placement={}", team, placement));
      if (!legal(run)) continue;
      best = std::min(best, gpt_step_seconds(row, run, constants));
    }
  }
  if (std::isinf(best)) {
    fail<InvalidArgument>(
        "row {}: startrail on {}; a multiple of the square of team_size_c, 2 or more, is "
        "required; nearest: strategy ring",
        row.id, count_of(row.gpus, "GPU"));
  }
  return ring_s / best;
}

/// Whether the row is a gain of StarTrail over Ring: with the best team size, or a given one.
bool is_startrail_gain(const PublishedRow& row) {
  return (row.strategy == "startrail_best_c" || row.strategy == "startrail") && row.speedup &&
         !row.seconds();
}

/// Seconds of the part of a pass that the row names: `step0`, `step1`, .. from the start of the
/// kernels of a step to those of the next, or `round`, the mean of all steps but the last. Nothing
/// for other parts.
std::optional<double> phase_seconds(const PublishedRow& row, const Constants& constants) {
  constexpr std::string_view kStep = "step";
  const bool is_step = row.phase.starts_with(kStep) && row.phase.size() == kStep.size() + 1;
  if (!is_step && row.phase != "round") return std::nullopt;
  const std::vector<double> steps = steps_seconds(published_run(row), constants);
  if (!is_step) {
    return std::accumulate(steps.begin(), steps.end() - 1, 0.0) /
           static_cast<double>(steps.size() - 1);
  }
  const auto step = static_cast<std::size_t>(row.phase.back() - '0');
  if (step < steps.size()) return steps[step];
  fail<InvalidArgument>("row {}: phase {} of {}; step0 to step{} is required", row.id, row.phase,
                        count_of(steps.size(), "step"), steps.size() - 1);
}

Prediction without(const std::string& reason) {
  return {.missing = reason};
}

}  // namespace

std::optional<double> Prediction::error() const {
  if (!predicted || !published) return std::nullopt;
  return *predicted / *published - 1;
}

PublishedRun published_run(const PublishedRow& row) {
  check_degrees(row);
  const bool of_a_model = is_model_step(row) || is_startrail_gain(row);
  if (!of_a_model && row.layers.value_or(1) != 1) {
    fail<InvalidArgument>(
        "row {}: layers = {} of a pass that is attention alone; 1 or null is required, or the pass "
        "train_step, prefill or decode",
        row.id, *row.layers);
  }
  const int ranks = sequence_ranks(row);
  const std::int64_t seq = needed(row, row.seq, "seq_len_tokens");
  const int heads = needed(row, row.q_heads, "q_heads");
  const int kv_heads = row.kv_heads.value_or(heads);
  const int head_dim = needed(row, row.head_dim, "head_dim");
  const int u = ulysses_degree(row, ranks);
  if (ranks % u != 0 || (row.ring && *row.ring * u != ranks)) {
    fail<InvalidArgument>(
        "row {}: ulysses_degree {} and ring_degree {} of {}; their product "
        "must be the ranks",
        row.id, u, row.ring.value_or(ranks / u), count_of(ranks, "rank"));
  }
  const bool tokenring = row.strategy == "tokenring";
  // Programs send partial results in the dtype of the kernel's output.
  const bool sends_sums = tokenring || row.strategy == "attention2d" || row.strategy == "startrail";
  // Before the aggregate: g++ 12 destroys members twice if a later one throws.
  const plan::Strategy strategy = plan::parse_strategy(strategy_text(row, ranks));
  const std::vector<plan::Pass> of_row = passes(row);
  PublishedRun run{
      .problem = {.world = ranks,
                  .batch = row.batch / row.dp,
                  .heads = heads / row.tp,
                  .kv_heads = std::max(1, kv_heads / row.tp),
                  .head_dim = head_dim,
                  .value_dim = head_dim,
                  .dtype = row.dtype,
                  .mask = row.causal ? plan::causal_mask({seq, seq}, plan::Align::Start)
                                     : plan::full_mask({seq, seq}),
                  .layout = layout(row),
                  .transfer_dtype =
                      sends_sums ? plan::TransferDtype::Input : plan::TransferDtype::Accumulator},
      .strategy = strategy,
      .passes = of_row};
  for (int r = 0; r < ranks; ++r) run.placement.push_back(r * row.tp);
  run.pruned = tokenring;
  if (is_token_ring_program(row)) {
    run.problem.mask = reversed_zigzag(seq, ranks);
    run.shown_rank = constants(row.cluster).shown_rank;
  }
  return run;
}

Prediction predict(const PublishedRow& row) {
  if (row.cluster.empty()) return without("cluster not stated");
  const Constants numbers = constants(row.cluster);
  check_gpus(row, numbers);
  if (!row.phase.empty() && row.phase != "total") {
    const std::optional<double> part = phase_seconds(row, numbers);
    if (!part) return without("part of a pass");
    return {.predicted = part, .published = row.seconds()};
  }
  if (is_startrail_gain(row) && row.seq) {
    return {
        .predicted = startrail_speedup(row, numbers), .published = row.speedup, .is_speedup = true};
  }
  if (!row.seconds()) {
    return without(row.speedup ? "model or length not stated" : "no time published");
  }
  Prediction result{.published = row.seconds()};
  if (row.strategy == "single_gpu_kernel_over_8") {
    result.predicted = single_gpu_seconds(row, numbers);
  } else if (strategy_text(row, sequence_ranks(row)).empty()) {
    result.missing = not_modelled(row.strategy);
  } else if (row.strategy == "ring_allgather") {
    result.predicted = allgather_seconds(row, numbers);
  } else if (row.pass == "decode") {
    result.predicted = decode_seconds(row, numbers);
  } else if (is_model_step(row)) {
    result.predicted = cost::step_time(step(row), parallelism(row), cluster(numbers),
                                       attention_time(published_run(row), numbers), numbers.step)
                           .total();
  } else {
    result.predicted = seconds(published_run(row), numbers);
  }
  return result;
}

std::vector<Prediction> predict(const std::vector<PublishedRow>& rows) {
  std::vector<Prediction> predictions;
  predictions.reserve(rows.size());
  for (const PublishedRow& row : rows) {
    // Messages of plans and clusters do not know the row.
    const auto refuse = [&](const std::string& text) {
      const std::string where = fmt::format("row {}: ", row.id);
      predictions.push_back({.refused = text.starts_with(where) ? text : where + text});
    };
    try {
      predictions.push_back(predict(row));
    } catch (const InvalidArgument& error) {
      refuse(error.what());
    } catch (const IoError& error) {  // a cluster file
      refuse(error.what());
    }
  }
  return predictions;
}

}  // namespace armillary::validate
