// check_model.cpp: runs of a model over ranks and on one device, their differences, and the rows of
// the report. Every rank computes the reference itself, compares its own tokens, and the largest
// difference of all ranks counts: so no activation travels for the check's sake.
#include "armillary/train/check_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/check_rows.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/plan/layout.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/expert_parallel_over_ranks.h"
#include "armillary/train/one_device.h"
#include "armillary/train/same_recipe.h"
#include "armillary/train/store.h"
#include "armillary/train/tensor_array.h"

namespace armillary::train {
namespace {

// Distances of 1 to the next number.
constexpr double kEpsOfBf16 = 0x1p-7;
constexpr double kEpsOfFp32 = 0x1p-23;
// Part of the largest gradient: smaller ones are 0 but for rounding, as that of a bias of keys.
constexpr double kZeroGradient = 1e-6;

/// Values of one run that are compared: the loss, gradients by parameter, outputs by call.
struct RunResult {
  double loss = 0;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> outs_BLHD;
};

/// Calls `see` with the output of each call of an attention function.
model::Attend observed(const model::Attend& attend,
                       const std::function<void(const at::Tensor&)>& see) {
  return [attend, see](const model::QkvShape& shape) {
    const model::Attend::InProgress call = attend.begin(shape);
    const auto finish = [finish = call.finish, see](const at::Tensor& q_BLHD,
                                                    const at::Tensor& k_BLGD,
                                                    const at::Tensor& v_BLGD) {
      at::Tensor out_BLHD = finish(q_BLHD, k_BLGD, v_BLGD);
      see(out_BLHD);
      return out_BLHD;
    };
    return model::Attend::InProgress{call.take_k, call.take_v, finish};
  };
}
model::AttendAndKeep observed(const model::AttendAndKeep& keep,
                              const std::function<void(const at::Tensor&)>& see) {
  return [keep, see](const model::QkvShape& shape) {
    const model::AttendAndKeep::InProgress call = keep.begin(shape);
    const auto finish = [finish = call.finish, see](const at::Tensor& q_BLHD,
                                                    const at::Tensor& k_BLGD,
                                                    const at::Tensor& v_BLGD) {
      model::KeptOutput output = finish(q_BLHD, k_BLGD, v_BLGD);
      see(output.out_BLHD);
      return output;
    };
    return model::AttendAndKeep::InProgress{call.take_k, call.take_v, finish};
  };
}

/// One place where a model runs: the tokens that are there, and its attention over all tokens.
struct ModelPlace {
  at::Tensor positions_L;
  model::Attends attends;
  std::shared_ptr<model::ExpertParallel> experts = {};  ///< Null: all tokens are here.
};

/// The parameters with which a replica begins: those of a model folder, if there is one.
struct Start {
  std::int64_t seed = 0;
  std::string folder;
  model::ModelOptions options;
};

/// A replica of the model and its parameters, in one place, in the dtypes of a run.
class Replica {
 public:
  Replica(std::unique_ptr<model::Model> model, ModelPlace place, const Start& start,
          const Dtypes& dtypes)
      : model_(std::move(model)),
        place_(std::move(place)),
        store_(*model_, start.seed, {}, dtypes) {
    if (!start.folder.empty()) load_parameters(start.folder, start.options, store_);
  }

  const model::Model& model() const { return *model_; }
  Store& store() { return store_; }

  /// Outputs of attention, without a graph.
  std::vector<at::Tensor> outs(const Sequence& sequence) {
    const at::NoGradGuard no_grad;
    return forward(sequence).second;
  }

  /// Loss, gradients and outputs of the tokens that are here.
  RunResult run(const Sequence& sequence) {
    store_.zero_gradients();
    auto [loss, outs_BLHD] = forward(sequence);
    loss.backward();
    store_.check_views();
    return {.loss = loss.item().toDouble(), .outs_BLHD = std::move(outs_BLHD)};
  }

  /// Copies of the gradients as they are now in the store.
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> copies;
    for (const Piece& piece : store_.pieces()) copies.push_back(piece.gradient.clone());
    return copies;
  }

 private:
  /// The mean loss and the outputs of attention. Recomputation in backward is not observed.
  std::pair<at::Tensor, std::vector<at::Tensor>> forward(const Sequence& sequence) {
    const auto outs_BLHD = std::make_shared<std::vector<at::Tensor>>();
    const auto is_forward = std::make_shared<bool>(true);
    const auto see = [outs_BLHD, is_forward](const at::Tensor& out_BLHD) {
      if (*is_forward) outs_BLHD->push_back(out_BLHD.detach().clone());
    };
    const model::ModelInputs inputs{
        .batch = model::rows_of(sequence.fields, place_.positions_L),
        .positions_L = place_.positions_L,
        .attends = {observed(place_.attends.attend, see), place_.attends.keep
                                                              ? observed(place_.attends.keep, see)
                                                              : model::AttendAndKeep()},
        .expert_parallel = place_.experts};
    const at::Tensor loss = model::run_units(
                                *model_, [&](int unit) { return store_.use(unit); }, inputs) /
                            std::max<std::int64_t>(model_->targets(sequence.fields), 1);
    *is_forward = false;
    if (outs_BLHD->empty()) {
      fail<InvalidArgument>(
          "check: the model called no attention that it was given; at least one call is required");
    }
    return {loss, *outs_BLHD};
  }

  std::unique_ptr<model::Model> model_;
  ModelPlace place_;
  Store store_;
};

std::vector<std::string> names_of(const std::vector<Piece>& pieces) {
  std::vector<std::string> names;
  names.reserve(pieces.size());
  for (const Piece& piece : pieces) names.push_back(piece.name);
  return names;
}

/// The largest of the ranks' values, element by element; what is not a number is infinite.
std::vector<double> largest(comm::Communicator& comm, std::vector<double> values) {
  for (double& value : values) {
    if (std::isnan(value)) value = std::numeric_limits<double>::infinity();
  }
  comm::all_reduce(comm, comm::array(std::span(values)), comm::Reduction::Max);
  return values;
}

double largest_of(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.abs().max().item().toDouble();
}

/// Largest difference; `over` is the value that it is relative to.
double error(const at::Tensor& result, const at::Tensor& expected, double over) {
  return largest_of(result.to(at::kDouble) - expected.to(at::kDouble)) / std::max(over, 1e-30);
}

double error(double value, double expected) {
  return std::abs(value - expected) / std::max(std::abs(expected), 1e-30);
}

/// Errors of a result against another by name, the same on all ranks.
using Errors = std::map<std::string, double>;

/// Names and tokens that the comparisons have in common.
class Comparison {
 public:
  Comparison(comm::Communicator& comm, std::vector<std::string> parameters, at::Tensor mine_L)
      : comm_(comm), parameters_(std::move(parameters)), mine_L_(std::move(mine_L)) {}

  /// Gradients are sums over all ranks, the same everywhere. The error of one that is 0 but for
  /// rounding is relative to the largest gradient of all parameters.
  Errors gradients(const RunResult& result, const RunResult& expected) const {
    double most = 0;
    for (const at::Tensor& gradient : expected.gradients) {
      most = std::max(most, largest_of(gradient));
    }
    Errors errors;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const double size = largest_of(expected.gradients[i]);
      errors[parameters_[i]] = error(result.gradients[i], expected.gradients[i],
                                     size > kZeroGradient * most ? size : most);
    }
    return errors;
  }

  /// Outputs of this rank's tokens, or with `is_whole` of all tokens, against those of all tokens.
  Errors outs(const RunResult& result, const RunResult& expected, bool is_whole) const {
    if (result.outs_BLHD.size() != expected.outs_BLHD.size()) {
      fail<InvalidArgument>(
          "check: {} of attention over ranks, {} on one device; as many are required",
          count_of(result.outs_BLHD.size(), "call"), expected.outs_BLHD.size());
    }
    std::vector<double> values;
    for (std::size_t i = 0; i < result.outs_BLHD.size(); ++i) {
      const at::Tensor& all = expected.outs_BLHD[i];
      values.push_back(error(result.outs_BLHD[i], is_whole ? all : all.index_select(1, mine_L_),
                             largest_of(all)));
    }
    Errors errors;
    const std::vector<double> together = largest(comm_, values);
    for (std::size_t i = 0; i < together.size(); ++i) {
      errors[fmt::format("call {}", i)] = together[i];
    }
    return errors;
  }

 private:
  comm::Communicator& comm_;
  std::vector<std::string> parameters_;
  at::Tensor mine_L_;
};

/// The row of the name with the largest error.
CheckRow worst_row(std::string_view name, const Errors& errors) {
  const auto worst = std::ranges::max_element(
      errors, [](const auto& a, const auto& b) { return a.second < b.second; });
  return {std::string(name), worst->second, kCheckBound,
          fmt::format("worst of {}: {}", errors.size(), worst->first)};
}

/// The row of the name with the largest ratio of our error to its bound.
CheckRow worst_ratio_row(std::string_view name, const Errors& ours, const Errors& one_device) {
  const auto allowed = [&](const std::string& key) {
    return narrow_bound(one_device.at(key), kEpsOfBf16);
  };
  const auto worst = std::ranges::max_element(ours, [&](const auto& a, const auto& b) {
    return a.second / allowed(a.first) < b.second / allowed(b.first);
  });
  return {std::string(name), worst->second, allowed(worst->first), "worst ratio: " + worst->first};
}

/// make() on every rank, whose error is thrown on all of them. Collective.
template <class Make>
auto made_together(comm::Communicator& comm, const Make& make) {
  std::optional<decltype(make())> result;
  comm::run_together(comm, [&] { result.emplace(make()); });
  return *std::move(result);
}

/// All runs of one check on one rank.
class ModelCheck {
 public:
  ModelCheck(comm::Communicator& comm, const MakeModel& make_model, const Data& data,
             const Recipe& recipe, const std::string& init_from)
      : comm_(comm),
        make_model_(make_model),
        recipe_(recipe),
        sequence_(made_together(comm,
                                [&] {
                                  return checked_sequence(
                                      data, 0, {.seq_len = recipe.training.seq_len, .fields = {}});
                                })),
        mask_(sequence_mask(recipe.parallelism.mask, sequence_.documents)),
        visible_SS_(visible_pairs(mask_)),
        start_{recipe.training.seed, init_from, recipe.model},
        ours_(made_together(comm,
                            [&] {
                              check_start();
                              return std::make_unique<Replica>(make_model(recipe),
                                                               place_over_ranks(), start_,
                                                               dtypes_of(recipe.training));
                            })),
        comparison_(comm, names_of(ours_->store().pieces()), mine_L_) {
    comm::run_together(comm, [&] {
      if (data.vocab_size() <= ours_->model().vocab_size()) return;
      fail<InvalidArgument>(
          "check: data with a vocabulary of {}; at most {}, the model's, is required",
          data.vocab_size(), ours_->model().vocab_size());
    });
    expect_same_parameters(comm, ours_->store().digest());
    expect_same_parameters(comm, ours_->store().expert_digest());
  }

  std::vector<CheckRow> rows() {
    const RunResult ours = run_over_ranks();
    const RunResult again = run_over_ranks();
    std::vector<CheckRow> rows = is_narrow() ? rows_of_bf16(ours) : rows_of_fp32(ours);
    rows.push_back(leak());
    rows.push_back(determinism(ours, again));
    return rows;
  }

 private:
  bool is_narrow() const { return recipe_.training.mixed_precision_param == "bfloat16"; }

  /// Before a replica has memory.
  void check_start() const {
    if (start_.folder.empty()) return;
    check_source(start_.folder, start_.options, make_model_(recipe_)->parameters());
  }

  ModelPlace place_over_ranks() {
    const auto shards =
        plan::shards(plan::parse_layout(recipe_.parallelism.layout), mask_, comm_.world());
    mine_L_ =
        at::tensor(plan::positions(shards.q[static_cast<std::size_t>(comm_.rank())]), at::kLong);
    return {mine_L_,
            attend_over_ranks(comm_, {.mask = mask_,
                                      .layout = plan::parse_layout(recipe_.parallelism.layout),
                                      .strategy = recipe_.parallelism.strategy,
                                      .transfer_dtype = plan::parse_transfer_dtype(
                                          recipe_.parallelism.transfer_dtype),
                                      .sequence = digest_of(sequence_),
                                      .proofs = recipe_.parallelism.proofs}),
            expert_parallel_over_ranks({nullptr, &comm_, &comm_})};
  }

  RunResult run_over_ranks() {
    RunResult result = ours_->run(sequence_);
    for (const Piece& piece : ours_->store().pieces()) {
      comm::all_reduce(comm_, array_of(piece.gradient));
    }
    comm::all_reduce_sum(comm_, std::span(&result.loss, 1));
    result.gradients = ours_->gradients();
    return result;
  }

  RunResult run_on_one_device(const std::string& dtype) const {
    Recipe recipe = recipe_;
    recipe.activation_checkpoint.mode = "none";
    recipe.training.mixed_precision_param = dtype;
    Replica replica(make_model_(recipe),
                    {at::arange(mask_.q_len()), model::Attends(attend_on_one_device(visible_SS_))},
                    start_, dtypes_of(recipe.training));
    RunResult result = replica.run(sequence_);
    result.gradients = replica.gradients();
    return result;
  }

  std::vector<CheckRow> rows_of_fp32(const RunResult& ours) const {
    const RunResult one = run_on_one_device(recipe_.training.mixed_precision_param);
    return {{std::string(kLossRow), error(ours.loss, one.loss), kCheckBound,
             fmt::format("{:.6f}", ours.loss)},
            worst_row(kGradientsRow, comparison_.gradients(ours, one)),
            worst_row(kOutputsRow, comparison_.outs(ours, one, false))};
  }

  std::vector<CheckRow> rows_of_bf16(const RunResult& ours) const {
    const RunResult one = run_on_one_device("bfloat16");
    const RunResult exact = run_on_one_device("float32");
    const double bound = narrow_bound(error(one.loss, exact.loss), kEpsOfBf16);
    return {{std::string(kLossRow), error(ours.loss, exact.loss), bound,
             fmt::format("{:.6f}", ours.loss)},
            worst_ratio_row(kGradientsRow, comparison_.gradients(ours, exact),
                            comparison_.gradients(one, exact)),
            worst_ratio_row(kOutputsRow, comparison_.outs(ours, exact, false),
                            comparison_.outs(one, exact, true))};
  }

  /// The largest change of an output at a query that cannot see a token that is changed.
  CheckRow leak() {
    const std::int64_t length = mask_.q_len();
    const std::vector<at::Tensor> before = ours_->outs(sequence_);
    std::vector<double> items(3);  // Change where hidden, where visible, number of hidden queries.
    for (const std::int64_t token : {length / 2, length - 1}) {
      Sequence other = sequence_;
      const std::string field = ours_->model().fields().front();
      at::Tensor values_S = sequence_.fields.at(field).clone();
      values_S[token] +=
          values_S.is_floating_point() || values_S[token].item().toLong() == 0 ? 1 : -1;
      other.fields.set(field, values_S);
      const std::vector<double> changed = changes(before, ours_->outs(other), token);
      for (std::size_t i = 0; i < items.size(); ++i) items[i] = std::max(items[i], changed[i]);
    }
    items = largest(comm_, items);
    if (items[1] == 0) {
      fail<InvalidArgument>(
          "check: changing tokens {} and {} changes no output of attention; a model that reads its "
          "tokens is required",
          length / 2, length - 1);
    }
    return {std::string(kLeakRow), items[0], leak_bound(is_narrow() ? kEpsOfBf16 : kEpsOfFp32),
            items[2] > 0 ? fmt::format("tokens {} and {}; where visible {:.1e}", length / 2,
                                       length - 1, items[1])
                         : "the mask hides nothing"};
  }

  std::vector<double> changes(const std::vector<at::Tensor>& before,
                              const std::vector<at::Tensor>& after, std::int64_t token) const {
    at::Tensor reached_S = at::zeros({mask_.q_len()}, at::kBool);
    reached_S[token] = true;
    std::vector<double> items(3);
    for (std::size_t i = 0; i < before.size(); ++i) {
      // Queries see what was reached before; a residual keeps it.
      reached_S = reached_S.logical_or(visible_SS_.logical_and(reached_S).any(1));
      const at::Tensor reached_L = reached_S.index_select(0, mine_L_);
      const at::Tensor change_L = (after[i].to(at::kDouble) - before[i].to(at::kDouble))
                                      .abs()
                                      .flatten(2)
                                      .transpose(0, 1)
                                      .flatten(1)
                                      .amax(1) /
                                  std::max(largest_of(before[i]), 1e-30);
      items[0] = std::max(items[0], largest_of(change_L.masked_select(reached_L.logical_not())));
      items[1] = std::max(items[1], largest_of(change_L.masked_select(reached_L)));
      items[2] = std::max(items[2], reached_S.logical_not().sum().item().toDouble());
    }
    return items;
  }

  CheckRow determinism(const RunResult& first, const RunResult& second) const {
    double changed = first.loss == second.loss ? 0 : 1;
    const auto count = [&](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) changed += a[i].ne(b[i]).sum().item().toDouble();
    };
    count(first.gradients, second.gradients);
    count(first.outs_BLHD, second.outs_BLHD);
    return {std::string(kDeterminismRow), largest(comm_, {changed}).front(), 0,
            "values of a second run with other bits"};
  }

  comm::Communicator& comm_;
  const MakeModel& make_model_;
  const Recipe& recipe_;
  const Sequence sequence_;
  const plan::Mask mask_;
  const at::Tensor visible_SS_;
  at::Tensor mine_L_;  ///< Positions of this rank's tokens.
  const Start start_;
  const std::unique_ptr<Replica> ours_;
  const Comparison comparison_;
};

}  // namespace

bool CheckReport::ok() const {
  return std::ranges::all_of(rows, &CheckRow::ok);
}

std::string describe(const CheckReport& report) {
  std::string text = report.title + '\n';
  for (const CheckRow& row : report.rows) {
    text += fmt::format("{}  {:<17}  {:9.2e} <= {:9.2e}  {}\n", row.ok() ? "ok  " : "FAIL",
                        row.name, row.value, row.bound, row.note);
  }
  if (report.world == 1) {
    return text + (report.ok() ? "ok" : "FAIL") +
           " on one rank, where nothing is spread: over ranks nothing was checked; "
           "parallelism.context_parallel_degree of 2 or more is required\n";
  }
  return text + (report.ok() ? "equal to one device\n" : "NOT equal to one device\n");
}

nlohmann::json to_json(const CheckReport& report) {
  nlohmann::json rows = nlohmann::json::array();
  for (const CheckRow& row : report.rows) {
    rows.push_back({{"name", row.name},
                    {"value", row.value},
                    {"bound", row.bound},
                    {"note", row.note},
                    {"ok", row.ok()}});
  }
  return {{"title", report.title}, {"ok", report.ok()}, {"world", report.world}, {"rows", rows}};
}

CheckReport check_model(comm::Communicator& comm, const MakeModel& make_model, const Data& data,
                        const Recipe& recipe, const std::string& init_from) {
  const ParallelismOptions& parallelism = recipe.parallelism;
  CheckReport report{
      .title = fmt::format("{}, {}, {}: {}, strategy {}, layout {}, mask {}, transfer dtype {}",
                           recipe.model.name, recipe.training.mixed_precision_param,
                           count_of(recipe.training.seq_len, "token"),
                           count_of(comm.world(), "rank"), parallelism.strategy, parallelism.layout,
                           parallelism.mask, parallelism.transfer_dtype),
      .world = comm.world()};
  expect_same_settings(comm, settings(recipe));
  // A rank that throws for itself ends the others with its reason.
  runtime::or_abort(
      comm, [&] { report.rows = ModelCheck(comm, make_model, data, recipe, init_from).rows(); });
  return report;
}

PackedText random_text(std::int64_t seq_len, std::int64_t seed) {
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  const std::int64_t length = std::max<std::int64_t>(seq_len / 8, 1);
  std::vector<std::string> documents;
  // Lengths are from 1 to twice the mean; with their separators they are more than two sequences.
  for (std::int64_t tokens = 0; tokens <= 2 * seq_len;
       tokens += static_cast<std::int64_t>(documents.back().size()) + 1) {
    std::string document(1 + random() % (2 * static_cast<std::uint64_t>(length)), '\0');
    for (char& byte : document) byte = static_cast<char>(random() & 0xff);
    documents.push_back(std::move(document));
  }
  return {documents, {.seq_len = seq_len, .seed = seed}};
}

}  // namespace armillary::train
