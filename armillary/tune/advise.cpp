// advise.cpp: every division of the devices that the model and the batch allow is costed. The
// attention of a mesh depends on its cp, its tp and its recomputation alone, so it is estimated
// once for each; all other terms are formulas, which cost nothing.
#include "armillary/tune/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/sim/group_share.h"
#include "armillary/sim/memory.h"
#include "armillary/tune/evaluator.h"
#include "armillary/tune/space.h"

namespace armillary::tune {
namespace {

constexpr double kBytesInGib = 1 << 30;

std::vector<int> divisors(int n) {
  std::vector<int> found;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) found.push_back(d);
  }
  return found;
}

constexpr std::array kPolicies{sim::Recompute::None, sim::Recompute::Full,
                               sim::Recompute::AttentionOutput};

const std::string& name_of(sim::Recompute policy) {
  return sim::recompute_names().at(static_cast<std::size_t>(policy));
}

/// Attention of one layer on cp ranks, each with a share of the heads.
struct Attention {
  Candidate candidate;
  double seconds = 0;
  double bytes = 0;  ///< Slots.
};
/// One for each policy of recomputation, in their order; nothing if no strategy solves the problem.
using Attentions = std::vector<Attention>;

/// Slots of the rank that needs most; of more than kLargeWorld ranks the first, the middle one and
/// the last are asked.
double slots_of(const Question& question, const Candidate& candidate) {
  const plan::Planner planner(problem_of(question, candidate), candidate.strategy);
  const int world = question.problem.world;
  std::vector<plan::Rank> ranks{0, world / 2, world - 1};
  if (world <= kLargeWorld) {
    ranks.resize(static_cast<std::size_t>(world));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::int64_t most = 0;
  for (const plan::Rank rank : ranks) {
    most = std::max(most, sim::slot_need(planner, question.passes, rank));
  }
  return static_cast<double>(most);
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
      fail<InvalidArgument>("advise: {} devices asked for; {} has {}", devices_,
                            question.cluster.name, question.cluster.devices());
    }
    const plan::Mask mask = question.mask(question.step.seq);
    if (question.step.kind == sim::StepKind::Dit && !mask.shows_all()) {
      fail<InvalidArgument>(
          "advise: a denoising step with a mask that shows {} pairs of {} queries and {} keys; "
          "each token sees all: mask full is required",
          mask.area(), mask.q_len(), mask.kv_len());
    }
  }

  /// Costs all meshes and sorts those that fit.
  Advice run() {
    for (const Mesh& mesh : meshes()) {
      if (std::optional<Advised> advised = cost(mesh)) all_.push_back(std::move(*advised));
    }
    if (all_.empty()) {
      fail<InvalidArgument>(
          "advise: no mesh of {} devices divides {} sequences, {} heads and {} layers with at most "
          "{} ranks a sequence; other numbers are required",
          devices_, question_.step.batch, question_.step.model.attention.heads,
          question_.step.model.attention.layers, kMostRanks);
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
  std::vector<Mesh> meshes() const {
    const sim::ModelAttention& model = question_.step.model.attention;
    const int per_node = question_.cluster.devices_per_node;
    std::vector<Mesh> found;
    for (const int tp : divisors(devices_)) {
      if (per_node % tp != 0 || model.heads % tp != 0 || model.kv_heads % tp != 0) continue;
      for (const int pp : divisors(devices_ / tp)) {
        if (model.layers % pp != 0) continue;
        for (const int dp : divisors(devices_ / tp / pp)) {
          const int cp = devices_ / tp / pp / dp;
          const bool divides = question_.step.batch % dp == 0;
          if (!divides || cp > question_.step.seq || cp > kMostRanks) continue;
          for (const int zero : {0, 1, 2, 3}) {
            if (zero > 0 && cp * dp == 1) continue;
            // Forward alone has neither gradients nor state to divide, and computes nothing again.
            if (!trains() && zero != 0 && zero != 3) continue;
            for (const sim::Recompute recompute : kPolicies) {
              if (recompute != sim::Recompute::None && !trains()) continue;
              found.push_back(
                  {.tp = tp, .cp = cp, .dp = dp, .pp = pp, .zero = zero, .recompute = recompute});
            }
          }
        }
      }
    }
    return found;
  }

  bool trains() const { return question_.step.kind == sim::StepKind::Train; }

  /// Nothing if no strategy solves the problem on so many ranks.
  std::optional<Advised> cost(const Mesh& mesh) {
    const Attentions& attentions = attentions_of(mesh.cp, mesh.tp);
    if (attentions.empty()) return std::nullopt;
    const Attention& attention = attentions.at(static_cast<std::size_t>(mesh.recompute));
    Advised advised{.mesh = mesh, .attention = attention.candidate};
    advised.time = mesh_time(question_.step, mesh, question_.cluster, attention.seconds);
    advised.memory = mesh_memory(question_.step, mesh, attention.bytes);
    const double limit = question_.cluster.device.memory_bytes;
    advised.fits = advised.memory.total() <= limit;
    const double slots_a_token = attention.bytes / static_cast<double>(question_.step.seq);
    advised.longest_seq = longest_seq(limit, [&](std::int64_t seq) {
      StepShape step = question_.step;
      step.seq = seq;
      return mesh_memory(step, mesh, slots_a_token * static_cast<double>(seq)).total();
    });
    return advised;
  }

  /// The fastest attention by estimate, kept by cp and tp.
  const Attentions& attentions_of(int cp, int tp) {
    const auto [at, is_new] = attention_.try_emplace({cp, tp});
    if (!is_new) return at->second;
    const sim::ModelAttention& model = question_.step.model.attention;
    Question question{.problem = {.world = cp,
                                  .heads = static_cast<int>(model.heads) / tp,
                                  .kv_heads = static_cast<int>(model.kv_heads) / tp,
                                  .head_dim = static_cast<int>(model.head_dim),
                                  .value_dim = static_cast<int>(model.head_dim),
                                  .dtype = plan::Dtype::Bf16,
                                  .mask = question_.mask(question_.step.seq)},
                      .cluster = sim::group_share(question_.cluster, tp),
                      .names = {"ring", "usp", "ulysses", "grid"}};
    if (!trains()) question.passes = {plan::Pass::Forward};
    const std::vector<Candidate> candidates = first_candidates(question);
    if (candidates.empty()) return at->second;
    // Estimates are close enough to simulations to compare meshes.
    const auto estimates = [&](const std::vector<plan::Pass>& passes) {
      Question of_passes = question;
      of_passes.passes = passes;
      std::vector<double> seconds;
      for (const Rival& rival : Evaluator(of_passes).estimate(candidates)) {
        seconds.push_back(rival.estimate_s);
      }
      return seconds;
    };
    const std::vector<double> once = estimates(question.passes);
    const std::vector<double> none(candidates.size());
    const std::vector<double> forward = trains() ? estimates({plan::Pass::Forward}) : none;
    const std::vector<double> replay = trains() ? estimates({plan::Pass::Replay}) : none;
    for (const std::vector<double>* again : {&none, &forward, &replay}) {
      std::size_t best = 0;
      const auto seconds = [&](std::size_t c) { return once[c] + (*again)[c]; };
      for (std::size_t c = 1; c < candidates.size(); ++c) {
        if (seconds(c) < seconds(best)) best = c;
      }
      const auto known = std::ranges::find(at->second, candidates[best], &Attention::candidate);
      const double bytes =
          known != at->second.end() ? known->bytes : slots_of(question, candidates[best]);
      at->second.push_back(
          {.candidate = candidates[best], .seconds = seconds(best), .bytes = bytes});
    }
    return at->second;
  }

  /// The error if no mesh fits.
  [[noreturn]] void refuse(const Advised& longest) const {
    const auto least = std::min_element(
        all_.begin(), all_.end(),
        [](const Advised& a, const Advised& b) { return a.memory.total() < b.memory.total(); });
    fail<InvalidArgument>(
        "{} on {}: {}: {}, the longest sequence that fits is {}", question_.step.model.name,
        question_.cluster.name, count_of(question_.step.seq, "token"),
        sim::does_not_fit(least->memory.total(), question_.cluster.device.memory_bytes),
        longest.longest_seq);
  }

  /// For each part of the best mesh: the best of the meshes that differ in it. The stage of ZeRO
  /// and recomputation can be changed alone; the axes divide the same devices.
  void add_reasons(Advice& advice) const {
    const Advised& best = advice.meshes.front();
    const Mesh& mesh = best.mesh;
    const auto add_axis = [&](const char* name, int Mesh::*axis) {
      const auto differs = [&](const Advised& one) { return one.mesh.*axis != mesh.*axis; };
      const auto other = std::find_if(advice.meshes.begin(), advice.meshes.end(), differs);
      std::string reason = std::any_of(all_.begin(), all_.end(), differs)
                               ? "every other value needs more memory than there is"
                               : "no other value is possible";
      if (other != advice.meshes.end()) reason = slower(best, *other);
      advice.reasons.push_back(fmt::format("{} {}: {}", name, mesh.*axis, reason));
    };
    add_axis("dp", &Mesh::dp);
    add_axis("cp", &Mesh::cp);
    add_axis("tp", &Mesh::tp);
    add_axis("pp", &Mesh::pp);
    for (int zero = 0; zero <= 3; ++zero) {
      if (zero == mesh.zero) continue;
      Mesh other = mesh;
      other.zero = zero;
      add_alone(advice, fmt::format("ZeRO-{}, not {}", mesh.zero, zero), other);
    }
    for (const sim::Recompute recompute : kPolicies) {
      if (recompute == mesh.recompute) continue;
      Mesh other = mesh;
      other.recompute = recompute;
      add_alone(
          advice,
          fmt::format("recomputation {}, not {}", name_of(mesh.recompute), name_of(recompute)),
          other);
    }
  }

  /// Says what a mesh would take or need.
  void add_alone(Advice& advice, const std::string& part, const Mesh& mesh) const {
    const auto other = std::find_if(all_.begin(), all_.end(),
                                    [&](const Advised& one) { return one.mesh == mesh; });
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
    const auto terms = [](const MeshTime& time) {
      return std::array<std::pair<const char*, double>, 7>{
          {{"products", time.stage.products},
           {"attention", time.stage.attention},
           {"passes over activations", time.stage.passes},
           {"messages of tp", time.stage.tensor_parallel},
           {"pipeline", time.pipeline},
           {"gradients and parameters", time.stage.gradients},
           {"optimizer", time.stage.optimizer}}};
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
  std::map<std::pair<int, int>, Attentions> attention_;
  std::vector<Advised> all_;
};

/// A mesh with all its terms.
nlohmann::ordered_json json_of(const Advised& advised) {
  const auto& [mesh, attention, time, memory, longest, fits] = advised;
  const Cut cut = cut_of(attention.strategy, mesh.cp);
  return {{"dp", mesh.dp},
          {"cp", mesh.cp},
          {"u", cut.u},
          {"rq", cut.rq},
          {"rk", cut.rk},
          {"tp", mesh.tp},
          {"pp", mesh.pp},
          {"zero", mesh.zero},
          {"recompute", name_of(mesh.recompute)},
          {"strategy", to_string(attention.strategy)},
          {"layout", to_string(attention.layout)},
          {"time_s",
           {{"total", time.total()},
            {"products", time.stage.products},
            {"attention", time.stage.attention},
            {"passes", time.stage.passes},
            {"tensor_parallel", time.stage.tensor_parallel},
            {"pipeline", time.pipeline},
            {"gradients", time.stage.gradients},
            {"optimizer", time.stage.optimizer}}},
          {"memory_bytes",
           {{"total", memory.total()},
            {"parameters", memory.stage.parameters},
            {"gradients", memory.stage.gradients},
            {"optimizer", memory.stage.optimizer},
            {"activations", memory.stage.activations},
            {"transient", memory.stage.transient},
            {"attention", memory.attention}}},
          {"longest_seq", longest}};
}

}  // namespace

Cut cut_of(const plan::Strategy& strategy, int world) {
  const auto number = [&](const char* key) {
    const auto found = strategy.keys.find(key);
    return found == strategy.keys.end() ? 1 : std::stoi(found->second);
  };
  if (strategy.name == "ulysses") return {.u = world};
  if (strategy.name == "usp") return {.u = number("u"), .rq = world / number("u")};
  if (strategy.name == "grid") return {.u = number("u"), .rq = number("rq"), .rk = number("rk")};
  return {.rq = world};
}

std::string to_string(const Advised& advised) {
  const Mesh& mesh = advised.mesh;
  const Cut cut = cut_of(advised.attention.strategy, mesh.cp);
  return fmt::format(
      "dp {}, cp {} = {} x {} x {}, tp {}, pp {}, ZeRO-{}{}", mesh.dp, mesh.cp, cut.u, cut.rq,
      cut.rk, mesh.tp, mesh.pp, mesh.zero,
      mesh.recompute == sim::Recompute::None ? "" : ", recompute " + name_of(mesh.recompute));
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
