// Predictions of rows that are made up: ratios that must hold whatever the constants, rows that
// are refused, and the tables that show them.
#include "armillary/lab/validate/predict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "armillary/core/error.h"
#include "armillary/lab/validate/checks.h"
#include "armillary/lab/validate/table.h"
#include "armillary/lab/validate/team_gain.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::validate {
namespace {

using testing::HasSubstr;

PublishedRow ring_row() {
  PublishedRow row;
  row.id = "mine";
  row.cluster = "C6";
  row.gpus = 8;
  row.q_heads = row.kv_heads = 8;
  row.head_dim = 128;
  row.seq = 65536;
  row.causal = true;
  row.pass = "fwd";
  row.strategy = "ring";
  row.iters_per_s = 100;
  return row;
}

TEST(Predict, UnbalancedRingTakesLonger) {
  PublishedRow row = ring_row();
  const double balanced = *predict(row).predicted;
  row.balanced = false;
  const double ratio = balanced / *predict(row).predicted;
  EXPECT_NEAR(ratio, 8.0 / 15, 0.08);  // sums take time in both
}

TEST(Predict, PublishedRingsMoveAllBlocks) {
  PublishedRun run = published_run(ring_row());
  const auto sent_bytes = [&] {
    return simulate(run, constants("C6")).front().ranks.front().sent_bytes;
  };
  const std::int64_t all = sent_bytes();
  EXPECT_EQ(all, 7 * 8192 * 8 * 2 * 128 * 2);
  run.pruned = true;
  EXPECT_LT(sent_bytes(), all);
}

// The program of TokenRing's authors sends queries to the rank before. Its ranks in the middle end
// with half a partial result, so they are done before the last.
TEST(Predict, TokenRingsProgramEndsWithHalvesInTheMiddle) {
  PublishedRow row = ring_row();
  row.cluster = "C8";
  row.gpus = 4;
  row.seq = 24000;
  row.strategy = "tokenring";
  row.implementation = "token-ring";
  PublishedRun run = published_run(row);
  ASSERT_EQ(run.shown_rank, 1);
  EXPECT_EQ(run.problem.mask.area(), std::int64_t{24000} * 24001 / 2);
  const sim::Timeline program = simulate(run, constants("C8")).front();
  EXPECT_LT(program.ranks[1].end_s, 0.97 * program.end_s);
  EXPECT_DOUBLE_EQ(seconds(run, constants("C8")), program.ranks[1].end_s);
  run.shown_rank.reset();
  EXPECT_DOUBLE_EQ(seconds(run, constants("C8")), program.end_s);

  row.implementation = "ours";
  EXPECT_FALSE(published_run(row).shown_rank);
}

TEST(Predict, RowsThatCannotBePredictedSayWhy) {
  PublishedRow row = ring_row();
  row.strategy = "magi_native";
  EXPECT_EQ(predict(row).missing, "strategy not modelled");
  row.strategy = "rinng";
  EXPECT_EQ(predict(row).missing, "strategy not modelled; nearest: ring");
  row.iters_per_s.reset();
  EXPECT_EQ(predict(row).missing, "no time published");
  row.cluster = "";
  EXPECT_EQ(predict(row).missing, "cluster not stated");
}

TEST(Predict, RowsThatMakeNoSenseAreRefused) {
  const auto expect_refused = [](const PublishedRow& row, const std::string& message) {
    try {
      predict(row);
      FAIL() << message;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  PublishedRow row = ring_row();
  row.seq.reset();
  expect_refused(row, "row mine: seq_len_tokens is null");
  row = ring_row();
  row.tp = 3;
  expect_refused(row, "a multiple of 3 is required");
  row = ring_row();
  row.ulysses = 2;
  row.ring = 2;
  expect_refused(row, "their product must be the ranks");
  row = ring_row();
  row.pass = "prefil";
  expect_refused(row, "is prefil; fwd, bwd");
  row = ring_row();
  row.cluster = "C99";
  expect_refused(row, "c99");
  row = ring_row();
  row.tp = 8;
  row.q_heads = row.kv_heads = 12;
  expect_refused(row,
                 "row mine: q_heads 12 and tp_degree 8; a multiple of 8 is required; nearest: 16");
  row.q_heads = 48;
  expect_refused(row, "row mine: kv_heads 12 and tp_degree 8");
  row = ring_row();
  row.dp = 2;
  row.batch = 3;
  expect_refused(row, "row mine: global_batch 3 and dp_degree 2; a multiple of 2 is required");
  row = ring_row();
  row.gpus = 16;
  expect_refused(row, "row mine: gpus = 16; at most the 8 devices of cluster c6 are required");
  row = ring_row();
  row.layers = 2;
  expect_refused(row, "row mine: layers = 2 of a pass that is attention alone");
}

// A file that cannot be read is a fault of its row, and its name keeps its letters.
TEST(Predict, AClusterFileThatDoesNotExistIsRefused) {
  PublishedRow row = ring_row();
  row.cluster = "/none/Mine.toml";
  const Prediction prediction = predict(std::vector<PublishedRow>{row}).front();
  EXPECT_THAT(prediction.refused,
              testing::AllOf(testing::StartsWith("row mine: "), HasSubstr("/none/Mine.toml")));
}

// A number is fitted on a row of the program, not on whatever has its id.
TEST(Table, MarksRowsOfTheProgramAsFitted) {
  const auto is_marked = [](const PublishedRow& row) {
    return table({row}, predict(std::vector<PublishedRow>{row})).find("fitted") !=
           std::string::npos;
  };
  const std::vector<RowFile> files = published_rows();
  const PublishedRow* fitted = nullptr;
  for (const RowFile& file : files) {
    for (const PublishedRow& row : file.rows) {
      if (row.id == "table3_128k_u2_r4_lb-ring") fitted = &row;
    }
  }
  ASSERT_NE(fitted, nullptr);
  EXPECT_TRUE(is_marked(*fitted));
  PublishedRow same = *fitted;
  same.notes = "in other words";
  same.iters_per_s = std::nullopt;
  same.time_s = *fitted->seconds() * 1.001;
  EXPECT_TRUE(is_marked(same)) << "rounded differently";
  same.time_s = *fitted->seconds() * 1.1;
  EXPECT_FALSE(is_marked(same));
  PublishedRow longer = *fitted;
  *longer.seq *= 2;
  EXPECT_FALSE(is_marked(longer));
}

TEST(Predict, UsesTheDtypeOfARow) {
  PublishedRow row = ring_row();
  EXPECT_EQ(published_run(row).problem.dtype, plan::Dtype::Bf16);
  row.dtype = plan::Dtype::F32;
  EXPECT_EQ(published_run(row).problem.dtype, plan::Dtype::F32);
  EXPECT_THAT(
      predict(std::vector<PublishedRow>{row}).front().refused,
      testing::AllOf(testing::StartsWith("row mine: "), HasSubstr("no kernel curve for fp32")));
}

// The first row is wrong, and the cluster of the second has fewer devices.
TEST(Predict, ARowThatIsRefusedHidesNoOther) {
  PublishedRow three = ring_row();
  three.tp = 3;
  PublishedRow step = ring_row();
  step.id = "step";
  step.cluster = "C8";
  step.gpus = 5;
  step.pass = "train_step";
  step.layers = 2;
  step.hidden = 1024;
  step.ffn = 4096;
  step.vocab = 1000;
  const std::vector<PublishedRow> rows{three, step, ring_row()};
  const std::vector<Prediction> predictions = predict(rows);
  EXPECT_THAT(predictions[0].refused, testing::StartsWith("row mine: 8 GPUs with tp_degree 3"));
  EXPECT_THAT(predictions[1].refused,
              testing::StartsWith("row step: gpus = 5; at most the 4 devices of cluster c8"));
  EXPECT_TRUE(predictions[2].predicted);
  EXPECT_THAT(table(rows, predictions), HasSubstr("| step |  |  |  |  | refused |"));
}

TEST(Constants, AreFittedOnRowsThatExist) {
  std::vector<std::string> ids;
  for (const RowFile& file : published_rows()) {
    for (const PublishedRow& row : file.rows) ids.push_back(row.id);
  }
  std::set<std::string> clusters;
  for (const Constants& set : all_constants()) {
    EXPECT_TRUE(clusters.insert(set.id).second) << set.id << " has two sets";
    for (const std::string& name : set.fitted) {
      const Constants one{.fitted = {name}};
      EXPECT_TRUE(std::any_of(ids.begin(), ids.end(), [&](const std::string& id) {
        return one.is_fitted_on(id);
      })) << name;
    }
  }
}

// Both bounds of a statement count, and a cause is given for those outside alone: one that holds
// again must lose it.
TEST(Checks, HoldUnlessACauseIsKnown) {
  for (const Check& check : all_checks()) {
    EXPECT_LE(check.least, check.most) << check.statement;
    EXPECT_EQ(check.holds(), check.cause.empty()) << check.statement << ": " << check.value_text;
    EXPECT_FALSE(check.drifted()) << check.statement << ": " << check.value_text << ", known as "
                                  << check.known;
    EXPECT_FALSE(check.fails()) << check.statement;
  }
  const Check range{.value = 1.5, .least = 1, .most = 2};
  Check more = range;
  more.value = 2.1;
  Check less = range;
  less.value = 0.9;
  EXPECT_TRUE(range.holds());
  EXPECT_FALSE(more.holds());
  EXPECT_FALSE(less.holds());
  EXPECT_TRUE(more.fails());
  EXPECT_THAT(checks_table({more}), HasSubstr("| **outside**: not known before |"));
}

// A value whose cause is known stays where it was when the cause was found, also where it comes
// nearer to the published one.
TEST(Checks, FailIfTheyDriftFromTheirKnownValue) {
  const auto at = [](double value) {
    return Check{.value = value, .least = 1, .most = 2, .cause = "links", .known = 3};
  };
  EXPECT_FALSE(at(3).fails());
  EXPECT_FALSE(at(3.02).fails());
  EXPECT_FALSE(at(2.98).fails());
  for (const double drifted : {3.04, 2.96, 2.1, 1.5, 30.0}) {
    EXPECT_TRUE(at(drifted).fails()) << drifted;
    EXPECT_THAT(checks_table({at(drifted)}), HasSubstr("| **drifted** from 3: links |")) << drifted;
  }
  EXPECT_THAT(checks_table({at(3)}), HasSubstr("| **outside**: links |"));
}

// One rate for a pair of ranks between nodes is the known cause of several values outside: no such
// rate brings GPT and DiT into their published ranges together (checks of figure 7).
TEST(Checks, NoRateOfAPairOfRanksExplainsBothModels) {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("armillary_pair_" + std::to_string(getpid()) + ".toml");
  const auto gain = [&](const PaperModel& model, std::int64_t seq) {
    return team_gain({path, 32, model, seq}).over_ring;
  };
  int limits = 0;
  for (const double rate : {1.25e9, 2.06e9, 3.5e9, 6e9, 12.5e9}) {
    sim::Cluster cluster = sim::load_cluster("c2");
    for (sim::LinkRule& link : cluster.links) {
      if (link.flow_bytes_per_s == sim::kNoCap) continue;
      link.flow_bytes_per_s = rate;
      ++limits;
    }
    std::ofstream(path) << sim::to_toml(cluster);
    const double gpt = gain(kGpt3B, 65536);
    const double dit = gain(kDit1B, 524288);
    EXPECT_FALSE(gpt >= 1.199 && gpt <= 1.771 && dit >= 1.414 && dit <= 2.114)
        << rate << ": " << gpt << ", " << dit;
  }
  EXPECT_GT(limits, 0);
  std::filesystem::remove(path);
}

// Numbers of the preset were read off three steps; TokenRing's ring and totals are predicted.
TEST(Constants, OfTokenRingAreOfThreeSteps) {
  std::set<std::string> fitted;
  for (const RowFile& file : published_rows()) {
    for (const PublishedRow& row : file.rows) {
      if (row.cluster == "C8" && constants("C8").is_fitted_on(row.id)) fitted.insert(row.id);
    }
  }
  EXPECT_EQ(fitted,
            (std::set<std::string>{"tokenring_step0", "tokenring_step1", "tokenring_step2"}));
}

/// A prompt on one rank, and the token behind it: sums of terms.
TEST(Predict, PhasesOfInference) {
  PublishedRow row = ring_row();
  row.gpus = 1;
  row.layers = 2;
  row.hidden = 1024;
  row.ffn = 4096;
  row.vocab = 1000;
  row.pass = "decode";
  const sim::Cluster cluster = sim::load_cluster("c6");
  // Q, K, V and Out, gate, up and down, and the output matrix; K and V of 8 heads of 128.
  const double attention = 2 * 4.0 * 1024 * 1024;
  const double ffn = 2 * 3.0 * 1024 * 4096;
  const double cache = 65536 * 2 * 2.0 * 8 * 128 * 2;
  const double memory = cluster.device.memory_bytes_per_s;
  EXPECT_NEAR(*predict(row).predicted, (2 * (attention + ffn + 1024 * 1000) + cache) / memory,
              1e-12);
  row.implementation = "fp8 feed-forward";
  EXPECT_NEAR(*predict(row).predicted, (2 * (attention + 1024 * 1000) + ffn + cache) / memory,
              1e-12);
  row.pass = "prefill";
  const double prefill = *predict(row).predicted;
  row.pass = "fwd";
  row.layers = 1;
  const double rate = cluster.device.matmul_flops_per_s;
  const double products = (2 * (attention + ffn) * 65536 + 2 * 1024 * 1000) / rate;
  const double passes = 2 * 20 * 2.0 * 1024 * 65536 / memory;
  EXPECT_NEAR(prefill, 2 * *predict(row).predicted + products + passes, 1e-9 * prefill);
}

/// Rows of strategies and parts, each beside another way to its value.
TEST(Predict, ModelsEveryStrategyOfThePapers) {
  PublishedRow row = ring_row();
  row.cluster = "C3";
  row.gpus = 16;
  const auto strategy = [&](const std::string& name, const std::string& implementation) {
    row.strategy = name;
    row.implementation = implementation;
    return to_string(published_run(row).strategy);
  };
  EXPECT_EQ(strategy("double_ring", ""), "double_ring:window=8");
  EXPECT_EQ(strategy("attention2d", "overlap"), "attention2d:overlap=true,rows=4");
  EXPECT_EQ(published_run(row).problem.layout.kind, plan::LayoutKind::Striped);
  row.team = 2;
  EXPECT_EQ(strategy("startrail", "p2p_intra"), "startrail:c=2,placement=p2p_intra");
  EXPECT_EQ(published_run(row).problem.layout.kind, plan::LayoutKind::Zigzag);
  row.team.reset();
  EXPECT_THAT(predict(std::vector<PublishedRow>{row}).front().refused,
              HasSubstr("team_size_c is null"));
  row.gpus = 8;
  row.strategy = "double_ring";
  EXPECT_THAT(predict(std::vector<PublishedRow>{row}).front().refused,
              HasSubstr("double_ring of 8 ranks on nodes of 8; a multiple of 8 above it is "
                        "required; nearest: strategy ring"));
}

/// A gain of one team size is that of the best where no other is legal: on 8 ranks, C = 2.
TEST(Predict, AGainOfOneTeamSize) {
  PublishedRow row = ring_row();
  row.cluster = "C3";
  row.pass = "train_step";
  row.layers = 12;
  row.hidden = 1024;
  row.iters_per_s.reset();
  row.speedup = 1.2;
  row.strategy = "startrail_best_c";
  const Prediction best = predict(row);
  row.strategy = "startrail";
  row.team = 2;
  EXPECT_TRUE(best.is_speedup);
  EXPECT_EQ(predict(row).predicted, best.predicted);
  row.team = 3;
  EXPECT_THAT(predict(std::vector<PublishedRow>{row}).front().refused,
              HasSubstr("startrail on 8 GPUs; a multiple of the square of team_size_c"));
  // Ring hides its messages in a long sequence; teams gather theirs before they attend.
  row.cluster = "C7";
  row.seq = 524288;
  row.team = 2;
  EXPECT_LT(*predict(row).predicted, 1);
}

/// Steps of a ring on one node: all of them are its time.
TEST(Predict, StepsOfAPass) {
  PublishedRow row = ring_row();
  row.cluster = "C8";
  row.gpus = 4;
  const double whole = *predict(row).predicted;
  double sum = 0;
  for (const char* phase : {"step0", "step1", "step2", "step3"}) {
    row.phase = phase;
    sum += *predict(row).predicted;
  }
  // The first rank need not be the last to end.
  EXPECT_LE(sum, whole);
  EXPECT_GT(sum, 0.95 * whole);
  row.phase = "round";
  const double round = *predict(row).predicted;
  row.phase = "step3";
  EXPECT_NEAR((3 * round + *predict(row).predicted) / sum, 1, 1e-9);
  row.phase = "step4";
  EXPECT_THAT(predict(std::vector<PublishedRow>{row}).front().refused, HasSubstr("step0 to step3"));
  row.phase = "trailing_send";
  EXPECT_EQ(predict(row).missing, "part of a pass");
}

TEST(Table, IsAnObjectForPrograms) {
  PublishedRow fast = ring_row();
  PublishedRow slow = ring_row();
  slow.id = "slow";
  slow.iters_per_s = 50;
  const std::vector<Prediction> predictions{{.predicted = 0.011, .published = 0.01},
                                            {.missing = "no time published"}};
  const auto json = to_json(RowFile{.source = "s", .rows = {fast, slow}}, predictions);
  EXPECT_EQ(json.at("rows").at(0).at("predicted"), 0.011);
  EXPECT_NEAR(json.at("rows").at(0).at("error").get<double>(), 0.1, 1e-12);
  EXPECT_TRUE(json.at("rows").at(0).at("place_predicted").is_null()) << "alone in its group";
  EXPECT_EQ(json.at("rows").at(1).at("missing"), "no time published");
  EXPECT_TRUE(json.at("rows").at(1).at("predicted").is_null());
  EXPECT_EQ(json.at("predicted").at("rows"), 1);
  const auto checks =
      to_json({{.statement = "a", .value = 3, .least = 1, .most = 2, .cause = "c"}});
  EXPECT_EQ(checks.at(0).at("holds"), false);
  EXPECT_EQ(checks.at(0).at("cause"), "c");
}

TEST(Table, ShowsOrderAndErrors) {
  PublishedRow fast = ring_row();
  PublishedRow slow = ring_row();
  slow.id = "slow";
  slow.iters_per_s = 50;
  const std::vector<Prediction> predictions{{.predicted = 0.011, .published = 0.01},
                                            {.predicted = 0.01, .published = 0.02}};
  const std::string text = table({fast, slow}, predictions);
  EXPECT_THAT(text, HasSubstr("| mine | 11 ms | 10 ms | +10.0 % | 2 / 1 |  |"));
  EXPECT_THAT(text, HasSubstr("| slow | 10 ms | 20 ms | -50.0 % | 1 / 2 |  |"));
  EXPECT_THAT(summary({fast, slow}, predictions),
              HasSubstr("2 rows, |error| mean 30.0 %, largest 50.0 %"));
}

}  // namespace
}  // namespace armillary::validate
