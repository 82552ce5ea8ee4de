// second_opinion_test.cpp: verify and check_plan.py, which share no code, judge plans and mutants
// alike.
//
// Every plan of the grid of tests/mutation/cases.h up to 8 ranks. Mutants are a sample, chosen
// by a printed seed; with ARMILLARY_TEST_ALL=1 every mutant of every n-th plan (n grows with the
// world).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/json.h"
#include "armillary/plan/mutate.h"
#include "armillary/plan/testing/broken_plan.h"
#include "armillary/plan/verify/verify.h"
#include "tests/mutation/cases.h"

namespace armillary::second_opinion {
namespace {

using mutation::Case;
using mutation::cases;

/// Mutants per plan; the grid has few plans for large worlds.
std::size_t sampled(int world) {
  return world > 4 ? 3 : 2;
}

/// Plans that are judged, without ARMILLARY_TEST_ALL.
constexpr unsigned kOneIn = 20;

/// With ARMILLARY_TEST_ALL: all mutants of every n-th plan, by world: some 30 minutes. Odd, so that
/// strategies, shapes, layouts and passes all occur.
constexpr std::array<std::size_t, 9> kEvery{1, 5, 11, 31, 61, 11, 17, 13, 17};

std::string opinion_of(const plan::Diagnostic& d) {
  return fmt::format("error {} {} {}: {}", d.rank, d.op, d.rule, d.text);
}

/// Collects plans with verify's verdicts, and compares them with the checker's.
class VerdictComparison {
 public:
  ~VerdictComparison() { std::filesystem::remove(file_); }

  void add(const std::string& name, const plan::Plan& plan) {
    const std::vector<plan::Diagnostic> diagnostics = verify(plan, 1);
    asked_.push_back({name, diagnostics.empty() ? "ok" : opinion_of(diagnostics[0])});
    plans_ << to_json(plan) << "\n";
    ++(diagnostics.empty() ? accepted_ : refused_);
    if (asked_.size() == 1000) compare();
  }

  /// Plans that run together: exact if verify_together finds nothing wrong with any.
  void add(const std::string& name, const std::vector<plan::Plan>& plans) {
    std::string verdict = "ok";
    for (const plan::PassVerdict& one : verify_together(plans, 1)) {
      if (verdict == "ok" && !one.diagnostics.empty()) verdict = opinion_of(one.diagnostics[0]);
    }
    ++(verdict == "ok" ? accepted_ : refused_);
    asked_.push_back({name, verdict});
    std::string list;
    for (const plan::Plan& plan : plans) list += (list.empty() ? "[" : ",") + to_json(plan);
    plans_ << list << "]\n";
  }

  void compare() {
    plans_.close();
    const std::vector<std::string> opinions = ask_python();
    ASSERT_EQ(opinions.size(), asked_.size()) << "check_plan.py did not answer for every plan";
    for (std::size_t i = 0; i < opinions.size(); ++i) {
      EXPECT_EQ(opinions[i] == "ok", asked_[i].verdict == "ok")
          << asked_[i].name << "\n  verify:        " << asked_[i].verdict
          << "\n  check_plan.py: " << opinions[i];
    }
    asked_.clear();
    plans_.open(file_);
  }

  int accepted() const { return accepted_; }
  int refused() const { return refused_; }

 private:
  struct PlanVerdict {
    std::string name;
    std::string verdict;
  };

  std::vector<std::string> ask_python() const {
    const auto script = std::filesystem::path(__FILE__).parent_path() / "check_plan.py";
    const std::string command = fmt::format("python3 '{}' < '{}'", script.string(), file_);
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    std::vector<std::string> lines;
    std::array<char, 4096> line;
    while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
      lines.emplace_back(line.data());
      if (lines.back().back() == '\n') lines.back().pop_back();
    }
    return lines;
  }

  std::string file_ = fmt::format("{}armillary_plans_{}.jsonl", ::testing::TempDir(), getpid());
  std::ofstream plans_{file_};
  std::vector<PlanVerdict> asked_;
  int accepted_ = 0;
  int refused_ = 0;
};

std::vector<plan::Mutation> sample(const plan::Plan& plan, std::size_t place,
                                   std::mt19937& random) {
  std::vector<plan::Mutation> all = mutations(plan);
  if (test_all()) {
    if (place % kEvery.at(static_cast<std::size_t>(plan.problem.world)) != 0) all.clear();
  } else {
    std::shuffle(all.begin(), all.end(), random);
    all.resize(std::min(all.size(), sampled(plan.problem.world)));
  }
  return all;
}

class SecondOpinionTest : public ::testing::TestWithParam<int> {};

TEST_P(SecondOpinionTest, AgreesOnPlansAndMutants) {
  std::mt19937 random(test_seed() + static_cast<unsigned>(GetParam()));
  VerdictComparison comparison;
  std::size_t place = 0;
  for (const Case& example : cases(GetParam())) {
    if (!test_all() && random() % kOneIn != 0) continue;
    const plan::Plan plan = example.plan();
    comparison.add(example.name, plan);
    for (const plan::Mutation& mutation : sample(plan, place++, random)) {
      comparison.add(example.name + ": " + to_string(mutation), apply(plan, mutation));
    }
  }
  comparison.compare();
  EXPECT_GT(comparison.refused(), 0);
  fmt::print("world {}: verify accepts {} plans and mutants, refuses {}\n", GetParam(),
             comparison.accepted(), comparison.refused());
}

/// Mutants of what few mutants touch: the rows that pass `delta`, the dtypes of sums. One in 16.
TEST(SecondOpinion, AgreesOnSinksAndOnTransferDtypes) {
  std::mt19937 random(test_seed());
  VerdictComparison comparison;
  for (const Case& example : cases(2)) {
    if (example.problem.layout != plan::parse_layout("zigzag")) continue;
    const plan::Plan plan = example.plan();
    for (const plan::Mutation& mutation : mutations(plan)) {
      const bool delta = mutation.op >= 0 &&
                         plan.ranks[mutation.rank].ops[mutation.op].kind == plan::OpKind::Delta;
      if (!delta && mutation.kind != plan::MutationKind::OtherDtype) continue;
      if (!test_all() && random() % 16 != 0) continue;
      comparison.add(example.name + ": " + to_string(mutation), apply(plan, mutation));
    }
  }
  comparison.compare();
  EXPECT_GT(comparison.refused(), 40);
}

/// Passes that run together, in pairs and all three, in any order; then with one of them changed in
/// what it says of the caller's tiles. Each such change is refused by both.
TEST(SecondOpinion, AgreesOnPassesThatRunTogether) {
  std::mt19937 random(test_seed());
  VerdictComparison comparison;
  int changed = 0;
  for (const Case& example : cases(2)) {
    if (example.pass != plan::Pass::Forward || random() % 16 != 0) continue;
    std::vector<plan::Plan> passes =
        make_plans(example.problem, example.strategy,
                   {plan::Pass::Forward, plan::Pass::Backward, plan::Pass::Replay});
    if (example.lowered) {
      for (plan::Plan& plan : passes) plan = lower(std::move(plan));
    }
    std::shuffle(passes.begin(), passes.end(), random);
    if (random() % 2 == 0) passes.pop_back();
    comparison.add(example.name, passes);
    for (plan::Plan& plan : passes) {
      std::vector<plan::Mutation> all = mutations(plan);
      std::erase_if(all, [](const plan::Mutation& mutation) {
        return mutation.kind != plan::MutationKind::OtherExternal &&
               mutation.kind != plan::MutationKind::OtherSaved;
      });
      const plan::Mutation& mutation = all[random() % all.size()];
      const plan::Plan right = std::exchange(plan, apply(plan, mutation));
      comparison.add(example.name + " together: " + to_string(mutation), passes);
      plan = right;
      ++changed;
    }
  }
  comparison.compare();
  EXPECT_EQ(comparison.refused(), changed) << "one is not caught";
}

/// Sums of dK and of dV that are added to at different times: right, until an add is missing, or is
/// done twice.
TEST(SecondOpinion, AgreesThatGradientsAreIndependent) {
  VerdictComparison comparison;
  const plan::Plan plan = plan::gradients_apart();
  comparison.add("apart", plan);
  EXPECT_EQ(comparison.accepted(), 1);
  for (const plan::Mutation& mutation : mutations(plan)) {
    comparison.add("apart: " + to_string(mutation), apply(plan, mutation));
  }
  comparison.compare();
  EXPECT_GT(comparison.refused(), 50);
}

INSTANTIATE_TEST_SUITE_P(Worlds, SecondOpinionTest, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace armillary::second_opinion
