// check_model.cpp: runs of a model over ranks and on one device, their differences, and the rows of
// the report. Every rank computes the reference itself, compares its own tokens, and the largest
// difference of all ranks counts: so no activation travels for the check's sake.
#include "armillary/train/check_model.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/plan/layout.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/estimate.h"
#include "armillary/train/one_device.h"
#include "armillary/train/parameter_store.h"
#include "armillary/train/same_recipe.h"

namespace armillary::train {
namespace {

constexpr double kBound = 1e-5;      // For fp32, over the largest value.
constexpr double kFactor = 2.5;      // Times the error of one device, for bf16.
constexpr double kBf16 = 0.0078125;  // Distance of 1 to the next number in bf16.

/// Values of one run that are compared: the loss, gradients by parameter, outputs by call.
struct RunResult {
  double loss = 0;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> outs_BLHD;
};

/// Calls `see` with the output of each call of an attention function.
Attend observed(const Attend& attend, const std::function<void(const at::Tensor&)>& see) {
  return [attend, see](const QkvShape& shape) {
    const Attend::InProgress call = attend.begin(shape);
    const auto finish = [finish = call.finish, see](const at::Tensor& q_BLHD,
                                                    const at::Tensor& k_BLGD,
                                                    const at::Tensor& v_BLGD) {
      at::Tensor out_BLHD = finish(q_BLHD, k_BLGD, v_BLGD);
      see(out_BLHD);
      return out_BLHD;
    };
    return Attend::InProgress{call.take_k, call.take_v, finish};
  };
}
AttendAndKeep observed(const AttendAndKeep& keep,
                       const std::function<void(const at::Tensor&)>& see) {
  return [keep, see](const QkvShape& shape) {
    const AttendAndKeep::InProgress call = keep.begin(shape);
    const auto finish = [finish = call.finish, see](const at::Tensor& q_BLHD,
                                                    const at::Tensor& k_BLGD,
                                                    const at::Tensor& v_BLGD) {
      KeptOutput kept = finish(q_BLHD, k_BLGD, v_BLGD);
      see(kept.out_BLHD);
      return kept;
    };
    return AttendAndKeep::InProgress{call.take_k, call.take_v, finish};
  };
}

/// One place where a model runs: the tokens that are there, and its attention over all tokens.
struct Place {
  at::Tensor positions_L;
  Attends attends;
};

/// A replica of the model and its parameters, in one place.
class Replica {
 public:
  Replica(std::unique_ptr<Model> model, Place place)
      : model_(std::move(model)), place_(std::move(place)), store_(model_->parameters()) {}

  const Model& model() const { return *model_; }
  ParameterStore& store() { return store_; }

  /// Outputs of attention, without a graph.
  std::vector<at::Tensor> outs(const Sequence& sequence) {
    const at::NoGradGuard no_grad;
    return forward(sequence).second;
  }

  /// Loss, gradients and outputs of the tokens that are here.
  RunResult run(const Sequence& sequence) {
    store_.zero_gradients();
    const ParameterStore::Gathered gathered(store_);
    auto [loss, outs_BLHD] = forward(sequence);
    loss.backward();
    store_.check_views();
    return {.loss = loss.item().toDouble(), .outs_BLHD = std::move(outs_BLHD)};
  }

  /// Copies of the gradients as they are now in the store.
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& gradient : store_.gradients()) copies.push_back(gradient.clone());
    return copies;
  }

 private:
  /// The mean loss and the outputs of attention. Recomputation in backward is not observed.
  std::pair<at::Tensor, std::vector<at::Tensor>> forward(const Sequence& sequence) {
    const auto row = [&](const std::vector<std::int64_t>& values) {
      return at::tensor(values, at::kLong).index_select(0, place_.positions_L).view({1, -1});
    };
    const auto outs_BLHD = std::make_shared<std::vector<at::Tensor>>();
    const auto is_forward = std::make_shared<bool>(true);
    const auto see = [outs_BLHD, is_forward](const at::Tensor& out_BLHD) {
      if (*is_forward) outs_BLHD->push_back(out_BLHD.detach().clone());
    };
    const Attends attends{
        observed(place_.attends.attend, see),
        place_.attends.keep ? observed(place_.attends.keep, see) : AttendAndKeep()};
    const TrainingBatch batch{.tokens_BL = row(sequence.tokens), .labels_BL = row(sequence.labels)};
    const at::Tensor loss = model_->loss(batch, attends, place_.positions_L) /
                            std::max<std::int64_t>(sequence.targets(), 1);
    *is_forward = false;
    if (outs_BLHD->empty()) {
      fail<InvalidArgument>(
          "check: the model called no attention that it was given; at least one call is required");
    }
    return {loss, *outs_BLHD};
  }

  std::unique_ptr<Model> model_;
  Place place_;
  ParameterStore store_;
};

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
double error(const at::Tensor& given, const at::Tensor& wanted, double over) {
  return largest_of(given.to(at::kDouble) - wanted.to(at::kDouble)) / std::max(over, 1e-30);
}

double error(double given, double wanted) {
  return std::abs(given - wanted) / std::max(std::abs(wanted), 1e-30);
}

/// Errors of a result against another by name, the same on all ranks.
using Errors = std::map<std::string, double>;

/// Names and tokens that the comparisons have in common.
class Comparison {
 public:
  Comparison(comm::Communicator& comm, std::vector<std::string> parameters, at::Tensor mine_L)
      : comm_(comm), parameters_(std::move(parameters)), mine_L_(std::move(mine_L)) {}

  /// Gradients are sums over all ranks, the same everywhere.
  Errors gradients(const RunResult& given, const RunResult& wanted) const {
    Errors errors;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      errors[parameters_[i]] =
          error(given.gradients[i], wanted.gradients[i], largest_of(wanted.gradients[i]));
    }
    return errors;
  }

  /// Outputs of this rank's tokens, or with `is_whole` of all tokens, against those of all tokens.
  Errors outs(const RunResult& given, const RunResult& wanted, bool is_whole) const {
    if (given.outs_BLHD.size() != wanted.outs_BLHD.size()) {
      fail<InvalidArgument>(
          "check: {} calls of attention over ranks, {} on one device; as many are required",
          given.outs_BLHD.size(), wanted.outs_BLHD.size());
    }
    std::vector<double> values;
    for (std::size_t i = 0; i < given.outs_BLHD.size(); ++i) {
      const at::Tensor& all = wanted.outs_BLHD[i];
      values.push_back(error(given.outs_BLHD[i], is_whole ? all : all.index_select(1, mine_L_),
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
CheckRow worst_row(const std::string& name, const Errors& errors) {
  const auto worst = std::ranges::max_element(
      errors, [](const auto& a, const auto& b) { return a.second < b.second; });
  return {name, worst->second, kBound, fmt::format("worst of {}: {}", errors.size(), worst->first)};
}

/// The row of the name with the largest ratio of our error to that of one device. One device may
/// round a value to nearly the exact one by chance, so its error counts as half a unit at least.
CheckRow worst_ratio_row(const std::string& name, const Errors& ours, const Errors& one_device) {
  const auto allowed = [&](const std::string& key) {
    return kFactor * std::max(one_device.at(key), kBf16 / 2);
  };
  const auto worst = std::ranges::max_element(ours, [&](const auto& a, const auto& b) {
    return a.second / allowed(a.first) < b.second / allowed(b.first);
  });
  return {name, worst->second, allowed(worst->first), "worst ratio: " + worst->first};
}

/// All runs of one check on one rank.
class Check {
 public:
  Check(comm::Communicator& comm, const MakeModel& make_model, const Data& data,
        const Recipe& recipe)
      : comm_(comm),
        make_model_(make_model),
        recipe_(recipe),
        sequence_(checked_sequence(data, 0, recipe.training.seq_len)),
        mask_(sequence_mask(recipe.parallelism.mask, sequence_.documents)),
        visible_SS_(visible_pairs(mask_)),
        ours_(make_model(recipe), place_over_ranks()),
        comparison_(comm, ours_.model().parameter_names(), mine_L_) {
    if (data.vocab_size() > ours_.model().vocab_size()) {
      fail<InvalidArgument>(
          "check: data with a vocabulary of {}; at most {}, the model's, is required",
          data.vocab_size(), ours_.model().vocab_size());
    }
    expect_same_parameters(comm, ours_.store());
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

  Place place_over_ranks() {
    const auto shards =
        plan::shards(plan::parse_layout(recipe_.parallelism.layout), mask_, comm_.world());
    mine_L_ =
        at::tensor(plan::positions(shards.q[static_cast<std::size_t>(comm_.rank())]), at::kLong);
    return {mine_L_,
            attend_over_ranks(comm_, {.mask = mask_,
                                      .layout = plan::parse_layout(recipe_.parallelism.layout),
                                      .strategy = recipe_.parallelism.strategy,
                                      .wire = plan::parse_wire(recipe_.parallelism.wire),
                                      .proofs = recipe_.parallelism.proofs})};
  }

  RunResult run_over_ranks() {
    RunResult result = ours_.run(sequence_);
    comm::all_reduce_sum(comm_, ours_.store().flat_gradients());
    comm::all_reduce_sum(comm_, std::span(&result.loss, 1));
    result.gradients = ours_.gradients();
    return result;
  }

  RunResult run_on_one_device(const std::string& dtype) const {
    Recipe recipe = recipe_;
    recipe.activation_checkpoint.mode = "none";
    recipe.training.mixed_precision_param = dtype;
    Replica replica(make_model_(recipe),
                    {at::arange(mask_.q_len()), Attends(attend_on_one_device(visible_SS_))});
    RunResult result = replica.run(sequence_);
    result.gradients = replica.gradients();
    return result;
  }

  std::vector<CheckRow> rows_of_fp32(const RunResult& ours) const {
    const RunResult one = run_on_one_device("float32");
    return {{"loss", error(ours.loss, one.loss), kBound, fmt::format("{:.6f}", ours.loss)},
            worst_row("gradients", comparison_.gradients(ours, one)),
            worst_row("attention outputs", comparison_.outs(ours, one, false))};
  }

  std::vector<CheckRow> rows_of_bf16(const RunResult& ours) const {
    const RunResult one = run_on_one_device("bfloat16");
    const RunResult exact = run_on_one_device("float32");
    const double of_one = std::max(error(one.loss, exact.loss), kBf16 / 2);
    return {
        {"loss", error(ours.loss, exact.loss), kFactor * of_one, fmt::format("{:.6f}", ours.loss)},
        worst_ratio_row("gradients", comparison_.gradients(ours, exact),
                        comparison_.gradients(one, exact)),
        worst_ratio_row("attention outputs", comparison_.outs(ours, exact, false),
                        comparison_.outs(one, exact, true))};
  }

  /// The largest change of an output at a query that cannot see a token that is changed.
  CheckRow leak() {
    const std::int64_t length = mask_.q_len();
    const std::vector<at::Tensor> before = ours_.outs(sequence_);
    std::vector<double> found(3);  // Change where hidden, where visible, number of hidden queries.
    for (const std::int64_t token : {length / 2, length - 1}) {
      Sequence other = sequence_;
      std::int64_t& id = other.tokens[static_cast<std::size_t>(token)];
      id += id > 0 ? -1 : 1;
      const std::vector<double> changed = changes(before, ours_.outs(other), token);
      for (std::size_t i = 0; i < found.size(); ++i) found[i] = std::max(found[i], changed[i]);
    }
    found = largest(comm_, found);
    if (found[1] == 0) {
      fail<InvalidArgument>(
          "check: changing tokens {} and {} changes no output of attention; a model that reads its "
          "tokens is required",
          length / 2, length - 1);
    }
    return {"leak", found[0], is_narrow() ? 4 * kBf16 : kBound,
            found[2] > 0 ? fmt::format("tokens {} and {}; where visible {:.1e}", length / 2,
                                       length - 1, found[1])
                         : "the mask hides nothing"};
  }

  std::vector<double> changes(const std::vector<at::Tensor>& before,
                              const std::vector<at::Tensor>& after, std::int64_t token) const {
    at::Tensor reached_S = at::zeros({mask_.q_len()}, at::kBool);
    reached_S[token] = true;
    std::vector<double> found(3);
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
      found[0] = std::max(found[0], largest_of(change_L.masked_select(reached_L.logical_not())));
      found[1] = std::max(found[1], largest_of(change_L.masked_select(reached_L)));
      found[2] = std::max(found[2], reached_S.logical_not().sum().item().toDouble());
    }
    return found;
  }

  CheckRow determinism(const RunResult& first, const RunResult& second) const {
    double changed = first.loss == second.loss ? 0 : 1;
    const auto count = [&](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) changed += a[i].ne(b[i]).sum().item().toDouble();
    };
    count(first.gradients, second.gradients);
    count(first.outs_BLHD, second.outs_BLHD);
    return {"determinism", largest(comm_, {changed}).front(), 0,
            "values of a second run with other bits"};
  }

  comm::Communicator& comm_;
  const MakeModel& make_model_;
  const Recipe& recipe_;
  const Sequence sequence_;
  const plan::Mask mask_;
  const at::Tensor visible_SS_;
  at::Tensor mine_L_;  ///< Positions of this rank's tokens.
  Replica ours_;
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
                        const Recipe& recipe) {
  const Recipe::Parallelism& parallelism = recipe.parallelism;
  CheckReport report{
      .title =
          fmt::format("{}, {}, {}: {}, strategy {}, layout {}, mask {}, wire {}", recipe.model.name,
                      recipe.training.mixed_precision_param,
                      count_of(recipe.training.seq_len, "token"), count_of(comm.world(), "rank"),
                      parallelism.strategy, parallelism.layout, parallelism.mask, parallelism.wire),
      .world = comm.world()};
  expect_same_recipe(comm, recipe);
  // A rank that throws for itself ends the others with its reason.
  runtime::or_abort(comm, [&] { report.rows = Check(comm, make_model, data, recipe).rows(); });
  return report;
}

std::unique_ptr<Model> make_model_from(const std::string& folder, const Recipe& recipe) {
  std::unique_ptr<Model> model = make_model(recipe);
  // The parameters become views of the store, and keep its memory.
  if (!folder.empty()) load_parameters(folder, recipe, *model, ParameterStore(model->parameters()));
  return model;
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
