// advise.cpp: every division of the devices that the model and the batch allow is costed. The
// attention of a mesh depends on its cp, its tp, the sequences of a pass and its recomputation
// alone, so it is estimated once for each; all other terms are formulas, which cost nothing.
#include "armillary/predict/tune/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/plan/strategies/options.h"
#include "armillary/predict/cost/attention_memory.h"
#include "armillary/predict/sim/group_share.h"
#include "armillary/predict/tune/evaluator.h"
#include "armillary/predict/tune/space.h"

namespace armillary::tune {
namespace {

constexpr double kBytesInGib = 1 << 30;

std::vector<int> divisors(int n) {
  std::vector<int> numbers;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) numbers.push_back(d);
  }
  return numbers;
}

constexpr std::array kPolicies{cost::Recompute::None, cost::Recompute::Full,
                               cost::Recompute::AttentionOutput};

const std::string& name_of(cost::Recompute policy) {
  return cost::recompute_names().at(static_cast<std::size_t>(policy));
}

/// Attention of one layer on cp ranks, each with a share of the heads.
struct LayerAttention {
  Candidate candidate;
  cost::AttentionTime time;
  cost::AttentionBytes bytes;
};
/// One for each policy of recomputation, in their order; nothing if no strategy solves the problem.
using Attentions = std::vector<LayerAttention>;

/// Bytes of the rank that needs most; of more than kLargeWorld ranks the first, the middle one and
/// the last are asked.
cost::AttentionBytes layer_bytes(const Question& question, const Candidate& candidate) {
  const plan::Planner planner(problem_of(question, candidate), candidate.strategy);
  const int world = question.problem.world;
  std::vector<plan::Rank> ranks{0, world / 2, world - 1};
  if (world <= kLargeWorld) {
    ranks.resize(static_cast<std::size_t>(world));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::int64_t slots = 0;
  cost::KeptBytes kept_bytes;
  for (const plan::Rank rank : ranks) {
    slots = std::max(slots, cost::slot_need(planner, question.passes, rank));
    kept_bytes.grow(cost::kept_by_attention(planner, rank));
  }
  return cost::attention_bytes(static_cast<double>(slots), kept_bytes);
}

/// The longest sequence whose need is within the limit. The need grows with the length.
template <class Need>
std::int64_t longest_seq(double limit, const Need& need) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  std::int64_t fits = 0;
  for (std::int64_t step = kMost; step > 0; step /= 2) {
    if (need(fits + step) <= limit) fits += step;
  }
  return fits;
}

class Adviser {
 public:
  explicit Adviser(const AdviceQuestion& question)
      : question_(question),
        devices_(question.devices == 0 ? question.cluster.devices() : question.devices) {
    if (devices_ > question.cluster.devices()) {
      fail<InvalidArgument>("advise: {} asked for; {} has {}", count_of(devices_, "device"),
                            question.cluster.name, question.cluster.devices());
    }
    const plan::Mask mask = question.mask(question.step.seq);
    if (question.step.kind == cost::StepKind::Dit && !mask.shows_all()) {
      fail<InvalidArgument>(
          "advise: a denoising step with a mask that shows {} of {} and {}; "
          "each token sees all: mask full is required",
          count_of(mask.area(), "pair"), count_of(mask.q_len(), "query", "queries"),
          count_of(mask.kv_len(), "key"));
    }
  }

  /// Costs all meshes and sorts those that fit.
  Advice run() {
    const std::vector<cost::Parallelism> candidates = meshes();
    if (candidates.empty() && !left_out_.empty()) {
      fail<InvalidArgument>("advise: no mesh of {} obeys every key that is set: {}",
                            count_of(devices_, "device"), left_out_);
    }
    for (const cost::Parallelism& parallelism : candidates) {
      if (std::optional<Advised> advised = cost(parallelism)) all_.push_back(std::move(*advised));
    }
    if (all_.empty()) {
      fail<InvalidArgument>(
          "advise: no mesh of {} divides {}{}, {} and {} with at most "
          "{} a sequence; other numbers are required",
          count_of(devices_, "device"), count_of(question_.step.batch, "sequence"),
          question_.microbatch <= 1 ? "" : fmt::format(" in passes of {}", question_.microbatch),
          count_of(question_.step.model.attention.heads, "head"),
          count_of(question_.step.model.attention.layers, "layer"), count_of(kMostRanks, "rank"));
    }
    Advice advice{.longest = *std::max_element(all_.begin(), all_.end(),
                                               [](const Advised& a, const Advised& b) {
                                                 return a.longest_seq < b.longest_seq;
                                               })};
    for (const Advised& advised : all_) {
      if (advised.fits) advice.meshes.push_back(advised);
    }
    if (advice.meshes.empty()) refuse(advice.longest);
    std::stable_sort(
        advice.meshes.begin(), advice.meshes.end(),
        [](const Advised& a, const Advised& b) { return a.time.total() < b.time.total(); });
    add_reasons(advice);
    return advice;
  }

 private:
  /// Every division of the devices that the model and the batch allow.
  std::vector<cost::Parallelism> meshes() {
    const cost::ModelAttention& model = question_.step.model.attention;
    const int per_node = question_.cluster.devices_per_node;
    std::vector<cost::Parallelism> meshes;
    for (const int tp : divisors(devices_)) {
      if (per_node % tp != 0 || model.heads % tp != 0 || !cost::shares_kv_heads(model, tp))
        continue;
      for (const int pp : divisors(devices_ / tp)) {
        if (model.layers % pp != 0) continue;
        for (const int dp : divisors(devices_ / tp / pp)) {
          const int cp = devices_ / tp / pp / dp;
          const std::vector<std::int64_t> passes = passes_of(dp, pp);
          if (passes.empty() || cp > question_.step.seq || cp > kMostRanks) continue;
          for (const int zero : {0, 1, 2, 3}) {
            if (zero > 0 && cp * dp == 1) continue;
            // Forward alone has neither gradients nor state to divide, and computes nothing again.
            if (!trains() && zero != 0 && zero != 3) continue;
            for (const std::int64_t sequences : passes) {
              cost::Parallelism parallelism{
                  .mesh = {.pp = pp, .dp = dp, .cp = cp, .tp = tp},
                  .zero = zero,
                  .microbatch = sequences,
                  .reshard_after_forward = question_.reshard_after_forward};
              if (!is_wanted(parallelism)) continue;
              for (const cost::Recompute recompute : kPolicies) {
                if (recompute != cost::Recompute::None && !trains()) continue;
                parallelism.recompute = recompute;
                meshes.push_back(parallelism);
              }
            }
          }
        }
      }
    }
    return meshes;
  }

  /// Asks the question's check, whatever is computed again.
  bool is_wanted(const cost::Parallelism& parallelism) {
    if (!question_.check) return true;
    try {
      question_.check(parallelism);
    } catch (const InvalidArgument& error) {
      if (left_out_.empty()) left_out_ = error.what();
      return false;
    }
    return true;
  }

  /// The numbers of sequences that a replica may take in one pass.
  std::vector<std::int64_t> passes_of(std::int64_t dp, int pp) const {
    constexpr std::int64_t kMostInPass = 8;  // A pass has a band of the mask for each.
    const std::int64_t only = question_.microbatch;
    const std::int64_t most = only > 0 ? only : pp == 1 ? kMostInPass : 1;
    std::vector<std::int64_t> passes;
    for (std::int64_t sequences = std::max<std::int64_t>(only, 1); sequences <= most; ++sequences) {
      if (question_.step.batch % (dp * sequences) == 0) passes.push_back(sequences);
    }
    return passes;
  }

  bool trains() const { return question_.step.kind == cost::StepKind::Train; }

  /// Nothing if no strategy solves the problem on so many ranks.
  std::optional<Advised> cost(const cost::Parallelism& parallelism) {
    const Attentions& attentions =
        attentions_of(parallelism.mesh.cp, parallelism.mesh.tp, parallelism.microbatch);
    if (attentions.empty()) return std::nullopt;
    const LayerAttention& attention =
        attentions.at(static_cast<std::size_t>(parallelism.recompute));
    Advised advised{.parallelism = parallelism, .attention = attention.candidate};
    advised.time = step_time(question_.step, parallelism, question_.cluster, attention.time);
    advised.memory = step_memory(question_.step, parallelism, attention.bytes);
    const double limit = question_.cluster.device.memory_bytes;
    advised.fits = advised.memory.total() <= limit;
    advised.longest_seq = longest_seq(limit, [&](std::int64_t seq) {
      cost::Step step = question_.step;
      step.seq = seq;
      const double ratio = static_cast<double>(seq) / static_cast<double>(question_.step.seq);
      cost::AttentionBytes bytes = attention.bytes;
      for (double* const one : {&bytes.slots, &bytes.layer, &bytes.output}) *one *= ratio;
      return step_memory(step, parallelism, bytes).total();
    });
    return advised;
  }

  /// The fastest attention by estimate, kept by cp, tp and sequences of a pass. These are joined
  /// into one, as `train` does, so tiles of keys that nobody needs do not travel.
  const Attentions& attentions_of(int cp, int tp, std::int64_t sequences) {
    const auto [at, is_new] = attention_.try_emplace({cp, tp, sequences});
    if (!is_new) return at->second;
    const cost::ModelAttention& model = question_.step.model.attention;
    const std::vector<plan::Mask> masks(static_cast<std::size_t>(sequences),
                                        question_.mask(question_.step.seq));
    Question question{.problem = {.world = cp,
                                  .heads = static_cast<int>(model.heads) / tp,
                                  .kv_heads = std::max(static_cast<int>(model.kv_heads) / tp, 1),
                                  .head_dim = static_cast<int>(model.head_dim),
                                  .value_dim = static_cast<int>(model.head_dim),
                                  .dtype = plan::Dtype::Bf16,
                                  .mask = plan::joined_mask(masks)},
                      .cluster = sim::group_share(question_.cluster, tp),
                      .names = {"ring", "usp", "ulysses", "grid"}};
    if (!trains()) question.passes = {plan::Pass::Forward};
    const std::vector<Candidate> candidates = first_candidates(question);
    if (candidates.empty()) return at->second;
    // Estimates are close enough to simulations to compare meshes.
    const auto estimates = [&](const std::vector<plan::Pass>& passes) {
      Question of_passes = question;
      of_passes.passes = passes;
      return Evaluator(of_passes).estimate(candidates);
    };
    const double bytes_per_s = cost::group_bytes_per_s(question_.cluster, cp, tp);
    const std::vector<Evaluation> once = estimates(question.passes);
    const std::vector<Evaluation> none(candidates.size());
    const auto forward = trains() ? estimates({plan::Pass::Forward}) : once;
    const auto replay = trains() ? estimates({plan::Pass::Replay}) : none;
    for (const std::vector<Evaluation>* again : {&none, trains() ? &forward : &none, &replay}) {
      std::size_t best = 0;
      const auto seconds = [&](std::size_t c) {
        return once[c].estimate_s + (*again)[c].estimate_s;
      };
      for (std::size_t c = 1; c < candidates.size(); ++c) {
        if (seconds(c) < seconds(best)) best = c;
      }
      const auto known =
          std::ranges::find(at->second, candidates[best], &LayerAttention::candidate);
      const cost::AttentionBytes bytes =
          known != at->second.end() ? known->bytes : layer_bytes(question, candidates[best]);
      // A ring of all ranks fills a link with the bytes of one of them.
      const auto sent_bytes =
          static_cast<double>(once[best].sent_bytes + (*again)[best].sent_bytes);
      const cost::AttentionTime time{
          .forward = forward[best].estimate_s,
          .backward = std::max(0.0, seconds(best) - forward[best].estimate_s),
          .link_share = std::min(1.0, sent_bytes / bytes_per_s / seconds(best))};
      at->second.push_back({.candidate = candidates[best], .time = time, .bytes = bytes});
    }
    return at->second;
  }

  /// The error if no mesh fits.
  [[noreturn]] void refuse(const Advised& longest) const {
    const auto least = std::min_element(
        all_.begin(), all_.end(),
        [](const Advised& a, const Advised& b) { return a.memory.total() < b.memory.total(); });
    fail<InvalidArgument>(
        "{} on {}: {}: {}, the longest sequence that fits is {}", question_.model,
        question_.cluster.name, count_of(question_.step.seq, "token"),
        cost::does_not_fit(least->memory.total(), question_.cluster.device.memory_bytes),
        longest.longest_seq);
  }

  /// For each part of the best mesh: the best of the meshes that differ in it. The stage of ZeRO
  /// and recomputation can be changed alone; the axes divide the same devices.
  void add_reasons(Advice& advice) const {
    const Advised& best = advice.meshes.front();
    const cost::Parallelism& parallelism = best.parallelism;
    const MeshShape& mesh = parallelism.mesh;
    const auto add_axis = [&](const char* name, int MeshShape::*axis) {
      const auto differs = [&](const Advised& one) {
        return one.parallelism.mesh.*axis != mesh.*axis;
      };
      const auto other = std::find_if(advice.meshes.begin(), advice.meshes.end(), differs);
      std::string reason = std::any_of(all_.begin(), all_.end(), differs)
                               ? "every other value needs more memory than there is"
                               : "no other value is possible";
      if (other != advice.meshes.end()) reason = slower(best, *other);
      advice.reasons.push_back(fmt::format("{} {}: {}", name, mesh.*axis, reason));
    };
    add_axis("dp", &MeshShape::dp);
    add_axis("cp", &MeshShape::cp);
    add_axis("tp", &MeshShape::tp);
    add_axis("pp", &MeshShape::pp);
    for (int zero = 0; zero <= 3; ++zero) {
      if (zero == parallelism.zero) continue;
      cost::Parallelism other = parallelism;
      other.zero = zero;
      add_alone(advice, fmt::format("ZeRO-{}, not {}", parallelism.zero, zero), other);
    }
    for (const cost::Recompute recompute : kPolicies) {
      if (recompute == parallelism.recompute) continue;
      cost::Parallelism other = parallelism;
      other.recompute = recompute;
      add_alone(advice,
                fmt::format("recomputation {}, not {}", name_of(parallelism.recompute),
                            name_of(recompute)),
                other);
    }
  }

  /// Says what a mesh would take or need.
  void add_alone(Advice& advice, const std::string& part,
                 const cost::Parallelism& parallelism) const {
    const auto other = std::find_if(all_.begin(), all_.end(), [&](const Advised& one) {
      return one.parallelism == parallelism;
    });
    if (other == all_.end()) return;
    const double limit = question_.cluster.device.memory_bytes;
    advice.reasons.push_back(
        part + ": " +
        (other->fits ? slower(advice.meshes.front(), *other)
                     : fmt::format("otherwise it needs {:.2f} GiB of {:.2f}",
                                   other->memory.total() / kBytesInGib, limit / kBytesInGib)));
  }

  /// `otherwise dp 1, .. takes 1.03 times as long, most of it attention: 0.12 s more`.
  static std::string slower(const Advised& best, const Advised& other) {
    const auto terms = [](const cost::StepTime& time) {
      return std::array<std::pair<const char*, double>, 7>{
          {{"products", time.products},
           {"attention", time.attention},
           {"passes over activations", time.passes},
           {"messages of tp", time.tensor_parallel},
           {"pipeline", time.pipeline},
           {"gradients and parameters", time.gradients - time.hidden},
           {"optimizer", time.optimizer}}};
    };
    const auto ours = terms(best.time);
    const auto theirs = terms(other.time);
    std::size_t most = 0;
    const auto more = [&](std::size_t t) { return theirs[t].second - ours[t].second; };
    for (std::size_t t = 1; t < ours.size(); ++t) {
      if (more(t) > more(most)) most = t;
    }
    const double ratio = other.time.total() / best.time.total();
    const std::string text =
        fmt::format("otherwise {} takes {:.3f} times as long", to_string(other), ratio);
    if (more(most) < 0.0005) return text + "; the first of equals is taken";
    return fmt::format("{}: {:.3f} s more for {}", text, more(most), ours[most].first);
  }

  const AdviceQuestion& question_;
  int devices_;
  std::map<std::tuple<int, int, std::int64_t>, Attentions> attention_;
  std::vector<Advised> all_;
  std::string left_out_;  ///< The reason for the first mesh that the question's check refuses.
};

/// A mesh with all its terms.
nlohmann::ordered_json json_of(const Advised& advised) {
  const auto& [parallelism, attention, time, memory, longest, fits] = advised;
  const MeshShape& mesh = parallelism.mesh;
  const Cut cut = cut_of(attention.strategy, mesh.cp);
  return {{"dp", mesh.dp},
          {"cp", mesh.cp},
          {"u", cut.u},
          {"rq", cut.rq},
          {"rk", cut.rk},
          {"tp", mesh.tp},
          {"pp", mesh.pp},
          {"zero", parallelism.zero},
          {"recompute", name_of(parallelism.recompute)},
          {"local_batch_size", parallelism.microbatch},
          {"strategy", to_string(attention.strategy)},
          {"layout", to_string(attention.layout)},
          {"time_s",
           {{"total", time.total()},
            {"products", time.products},
            {"attention", time.attention},
            {"passes", time.passes},
            {"tensor_parallel", time.tensor_parallel},
            {"pipeline", time.pipeline},
            {"gradients", time.gradients},
            {"optimizer", time.optimizer},
            {"hidden", time.hidden}}},
          {"memory_bytes",
           {{"total", memory.total()},
            {"parameters", memory.parameters},
            {"gradients", memory.gradients},
            {"optimizer", memory.optimizer},
            {"activations", memory.activations},
            {"transient", memory.transient},
            {"gathered", memory.gathered},
            {"attention", memory.attention}}},
          {"longest_seq", longest}};
}

}  // namespace

Cut cut_of(const plan::Strategy& strategy, int world) {
  if (strategy.name == "ulysses") return {.u = world};
  if (strategy.name == "usp") {
    const int u = strategy.as<plan::UspOptions>().u;
    return {.u = u, .rq = world / u};
  }
  if (strategy.name == "grid") {
    const auto grid = strategy.as<plan::GridOptions>();
    return {.u = grid.u, .rq = grid.rq, .rk = grid.rk};
  }
  return {.rq = world};
}

std::string to_string(const Advised& advised) {
  const cost::Parallelism& parallelism = advised.parallelism;
  const MeshShape& mesh = parallelism.mesh;
  const Cut cut = cut_of(advised.attention.strategy, mesh.cp);
  return fmt::format("dp {}, cp {} = {} x {} x {}, tp {}, pp {}, ZeRO-{}{}{}", mesh.dp, mesh.cp,
                     cut.u, cut.rq, cut.rk, mesh.tp, mesh.pp, parallelism.zero,
                     parallelism.recompute == cost::Recompute::None
                         ? ""
                         : ", recompute " + name_of(parallelism.recompute),
                     parallelism.microbatch <= 1
                         ? ""
                         : fmt::format(", {} sequences a pass", parallelism.microbatch));
}

Advice advise(const AdviceQuestion& question) {
  return Adviser(question).run();
}

std::string to_json(const Advice& advice) {
  nlohmann::ordered_json json{{"meshes", nlohmann::ordered_json::array()},
                              {"longest", json_of(advice.longest)},
                              {"reasons", advice.reasons}};
  for (const Advised& advised : advice.meshes) json["meshes"].push_back(json_of(advised));
  return json.dump();
}

}  // namespace armillary::tune
