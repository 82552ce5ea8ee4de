// fields_test.cpp: every field of small plans, as they stand in a file, changed to other values:
// the reader or verify refuses the plan, or played (interpreter.h) it gives the very sums of the
// plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/json.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/verify/verify.h"
#include "tests/mutation/interpreter.h"

namespace armillary::mutation {
namespace {

using Json = nlohmann::ordered_json;

/// The strings that stand under each key anywhere in a document.
using Strings = std::map<std::string, std::set<std::string>>;

void collect(const Json& json, const std::string& key, Strings& strings) {
  if (json.is_string()) strings[key].insert(json.get<std::string>());
  for (const auto& [name, value] : json.items()) {
    if (json.is_structured()) collect(value, json.is_object() ? name : key, strings);
  }
}

/// Changes the fields below a value one by one, and calls `judge` with the name of each change.
class FieldChanges {
 public:
  FieldChanges(Strings strings, std::function<void(const std::string&)> judge)
      : strings_(std::move(strings)), judge_(std::move(judge)) {}

  void visit(Json& json, const std::string& path, const std::string& key) {
    for (Json& other : others(json, key)) replace(json, std::move(other), path);
    if (json.is_object()) {
      for (const auto& [name, value] : json.items())
        visit(value, fmt::format("{}.{}", path, name), name);
    } else if (json.is_array()) {
      for (std::size_t i = 0; i < json.size(); ++i) {
        visit(json[i], fmt::format("{}[{}]", path, i), key);
      }
    }
  }

 private:
  void replace(Json& json, Json other, const std::string& path) {
    std::swap(json, other);
    judge_(fmt::format("{} = {}", path, json.dump().substr(0, 80)));
    std::swap(json, other);
  }

  /// Other values of the kind, and of an op also the marks that it does not have.
  std::vector<Json> others(const Json& json, const std::string& key) const {
    std::vector<Json> values;
    if (json.is_boolean()) values.emplace_back(!json.get<bool>());
    if (json.is_number_integer()) {
      const auto value = json.get<std::int64_t>();
      for (const std::int64_t other : {value - 1, value + 1, 2 * value + 2})
        values.emplace_back(other);
    }
    if (json.is_string()) {
      for (const std::string& other : strings_.at(key)) {
        if (other != json.get_ref<const std::string&>()) values.emplace_back(other);
      }
    }
    if (json.is_array()) add_orders(json, key, values);
    if (json.is_object() && json.contains("op")) {
      for (const char* mark : {"init_q", "init_kv", "zero_copy"}) {
        if (json.contains(mark)) continue;
        values.push_back(json);
        values.back()[mark] = true;
      }
    }
    return values;
  }

  /// Lists without one element, and with two neighbours exchanged where order has a meaning.
  static void add_orders(const Json& json, const std::string& key, std::vector<Json>& values) {
    for (std::size_t i = 0; i < json.size(); ++i) {
      values.push_back(json);
      values.back().erase(i);
      if (i + 1 == json.size() || key == "inputs" || key == "outputs") continue;
      values.push_back(json);
      std::swap(values.back()[i], values.back()[i + 1]);
    }
  }

  Strings strings_;
  std::function<void(const std::string&)> judge_;
};

struct MutationCounts {
  int refused = 0;
  int as_good = 0;
};

/// Judges every change of one field in the programs of a plan.
MutationCounts judge_fields(const plan::Plan& plan) {
  const Interpretation expected = interpret(plan);
  Json json = Json::parse(to_json(plan));
  Strings strings;
  collect(json, "", strings);
  MutationCounts counts;
  FieldChanges changes(strings, [&](const std::string& change) {
    plan::Plan changed;
    try {
      changed = plan::parse_json(json.dump());
    } catch (const InvalidArgument&) {
      ++counts.refused;
      return;
    }
    if (!verify(changed, 1).empty() || !verify_saved(plan, changed, 1).empty()) {
      ++counts.refused;
      return;
    }
    EXPECT_TRUE(interpret(changed) == expected)
        << plan.strategy << ' ' << to_string(plan.pass) << change << ": accepted, with other sums";
    ++counts.as_good;
  });
  changes.visit(json["ranks"], "", "ranks");
  return counts;
}

TEST(Fields, AreRefusedOrAsGood) {
  const struct {
    const char* strategy;
    plan::Pass pass;
    const char* lowered;
  } plans[] = {{"ring", plan::Pass::Forward, "zero_copy"},
               {"ring", plan::Pass::Backward, "all"},
               {"ulysses", plan::Pass::Forward, "zero_copy"},
               {"ulysses", plan::Pass::Replay, "all"},
               {"grid:rk=2,row=ring,rq=1,u=1", plan::Pass::Forward, "all"}};
  for (const auto& [strategy, pass, lowered] : plans) {
    const plan::Problem problem{.world = 2,
                                .heads = 2,
                                .kv_heads = 2,
                                .head_dim = 2,
                                .value_dim = 2,
                                .dtype = plan::Dtype::F32,
                                .mask = plan::parse_mask("causal", {4, 4}),
                                .return_lse = true};
    const plan::Plan plan = lower(make_plan(problem, plan::parse_strategy(strategy), pass),
                                  plan::parse_lowerings(lowered));
    const MutationCounts counts = judge_fields(plan);
    fmt::print("{} {}: {} refused, {} as good\n", strategy, to_string(pass), counts.refused,
               counts.as_good);
    EXPECT_GT(counts.refused, counts.as_good);
    EXPECT_GT(counts.as_good, 0);
  }
}

}  // namespace
}  // namespace armillary::mutation
