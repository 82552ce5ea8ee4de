// verify_test.cpp: `armillary verify`: files of plans, right, wrong and no plans at all, and what
// it says of them as text and JSON.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::Eq;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  EXPECT_EQ(begin, text.size()) << "the last line has no end";
  return lines;
}

const std::vector<std::string>& small_problem() {
  static const std::vector<std::string> flags{
      "--world", "3", "--seq", "24", "--heads", "4", "--layout", "zigzag", "--strategy", "ring"};
  return flags;
}

std::vector<std::string> with_problem(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), small_problem().begin(), small_problem().end());
  return arguments;
}

/// Plans of both passes, as JSON lines.
std::string plans() {
  const ProgramRun plan_run = run(with_problem({"plan", "--json", "--pass", "both"}));
  EXPECT_EQ(plan_run.code, 0) << plan_run.err;
  return plan_run.out;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// ---- proofs that are kept

TEST(Verify, RecordsAProof) {
  const Folder folder;
  const ProgramRun saved = run(with_problem({"verify", "--save-proof", folder.path("proofs")}));
  EXPECT_EQ(saved.code, 0) << saved.err;
  EXPECT_THAT(saved.out, StartsWith("ring: forward, backward and replay are exact on 3 ranks; "
                                    "recorded in " +
                                    folder.path("proofs")));
  const ProgramRun json =
      run(with_problem({"verify", "--json", "--save-proof", folder.path("proofs")}));
  const auto line = nlohmann::json::parse(json.out);
  EXPECT_EQ(line["ok"], true);
  const std::string path = line["proof"];
  EXPECT_THAT(saved.out, HasSubstr(path));
  std::ifstream file(path);
  const auto proof = nlohmann::json::parse(file);
  EXPECT_EQ(proof["programs"]["forward"].size(), 3U);
  EXPECT_EQ(proof["problem"]["layout"], "zigzag");
}

TEST(Verify, RecordsOnlyWhatRuns) {
  const Folder folder;
  const std::string proofs = folder.path("proofs");
  expect_error({"verify", "--save-proof", proofs, "--lower", "fuse"},
               Eq("--save-proof: --lower is 'fuse'; 'all' is required: what runs is lowered"));
  EXPECT_EQ(run(with_problem(
                    {"verify", "--save-proof", proofs, "--lower", "zero_copy,fuse,alias,coalesce"}))
                .code,
            0);
  expect_error({"verify", "--save-proof", proofs, "--break", "1"}, HasSubstr("--break"));
  expect_error({"verify", "--save-proof", proofs, "--pass", "forward"}, HasSubstr("--pass"));
  expect_error({"verify", "--save-proof", folder.write("a file", "")}, HasSubstr("a file"));
}

// ---- right plans

TEST(Verify, ProvesWhatPlanWrites) {
  for (const std::string strategy : {"ring", "allgather", "ulysses", "usp:u=2"}) {
    const ProgramRun plan_run = run({"plan", "--json", "--pass", "both", "--strategy", strategy});
    ASSERT_EQ(plan_run.code, 0) << plan_run.err;
    EXPECT_EQ(lines(plan_run.out).size(), 2u);
    const ProgramRun proved = run({"verify", "--file", "-"}, plan_run.out);
    EXPECT_EQ(proved.code, 0) << proved.err;
    EXPECT_EQ(proved.err, "");
    EXPECT_THAT(proved.out, AllOf(HasSubstr(strategy + " forward: exact."),
                                  HasSubstr(strategy + " backward: exact.")));
  }
}

TEST(Verify, ReadsPlansFromAFile) {
  const Folder folder;
  const std::string path = folder.write("plans.jsonl", plans() + "\n" + plans());
  const ProgramRun proved = run({"verify", "--json", "--file", path});
  EXPECT_EQ(proved.code, 0) << proved.err;
  EXPECT_EQ(lines(proved.out).size(), 4u) << "empty lines are no plans";
}

TEST(Verify, JsonHasOneObjectPerPlanAndAllKeys) {
  const ProgramRun proved = run(with_problem({"verify", "--json"}));
  EXPECT_EQ(proved.code, 0) << proved.err;
  EXPECT_EQ(proved.err, "");
  const std::vector<std::string> objects = lines(proved.out);
  ASSERT_EQ(objects.size(), 2u);
  for (const std::string& line : objects) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object.at("ok"), true);
    EXPECT_EQ(object.at("strategy"), "ring");
    EXPECT_EQ(object.at("world"), 3);
    EXPECT_EQ(object.at("pass"), &line == &objects[0] ? "forward" : "backward");
    for (const char* key : {"sent_bytes_per_rank", "received_bytes_per_rank",
                            "peak_slot_bytes_per_rank", "visible_pairs_per_rank"}) {
      ASSERT_EQ(object.at(key).size(), 3u) << key;
    }
    std::int64_t balance = 0;
    std::int64_t pairs = 0;
    for (int rank = 0; rank < 3; ++rank) {
      balance += object["sent_bytes_per_rank"][rank].get<std::int64_t>();
      balance -= object["received_bytes_per_rank"][rank].get<std::int64_t>();
      pairs += object["visible_pairs_per_rank"][rank].get<std::int64_t>();
    }
    EXPECT_EQ(balance, 0) << "what is sent is received";
    EXPECT_EQ(pairs, 4 * 24 * 25 / 2) << "heads x causal pairs";
    EXPECT_GT(object.at("steps"), 0);
    EXPECT_GT(object.at("ops"), 0);
    EXPECT_EQ(object.at("diagnostics"), nlohmann::json::array());
  }
}

// ---- wrong plans: exit code 1

TEST(Verify, ProvesOneRankOfEachClass) {
  const std::vector<std::string> common{"verify", "--strategy", "usp:u=2", "--mask", "full",
                                        "--fold", "--world",    "8",       "--pass", "forward"};
  const ProgramRun table = run(common);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(StartsWith("usp:u=2 forward: exact. world 8, "),
                    EndsWith("Folded: one rank of each of 2 classes was proved, and 8 of 8 ranks "
                             "were compared with theirs\n")));
  std::vector<std::string> as_json = common;
  as_json.emplace_back("--json");
  const nlohmann::json json = nlohmann::json::parse(run(as_json).out);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["classes"], 2);
  EXPECT_EQ(json["compared"], 8);
  EXPECT_EQ(json["diagnostics"], nlohmann::json::array());
}

TEST(Verify, BreaksAPlanOnPurposeAndShowsWhere) {
  const ProgramRun broken = run(with_problem({"verify", "--break", "0"}));
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.err, StartsWith("broken on purpose: rank 0 op 0: "));
  EXPECT_THAT(broken.out, AllOf(HasSubstr("<-- HERE rank "), HasSubstr("ring backward: exact.")));
}

TEST(Verify, WhatIsBrokenIsTheFirstPlan) {
  const ProgramRun both = run(with_problem({"verify", "--break", "40"}));
  const ProgramRun forward = run(with_problem({"verify", "--break", "40", "--pass", "forward"}));
  EXPECT_THAT(forward.err, StartsWith("broken on purpose: rank "));
  EXPECT_EQ(both.err, forward.err);
}

TEST(Verify, JsonOfAWrongPlanSaysWhere) {
  const ProgramRun broken = run(with_problem({"verify", "--json", "--break", "0"}));
  EXPECT_EQ(broken.code, 1);
  const std::vector<std::string> objects = lines(broken.out);
  ASSERT_EQ(objects.size(), 2u);
  const auto wrong = nlohmann::json::parse(objects[0]);
  EXPECT_EQ(wrong.at("ok"), false);
  ASSERT_GE(wrong.at("diagnostics").size(), 1u);
  const std::set<std::string> rules{"well_formed", "blocks", "match",   "order",
                                    "undefined",   "twice",  "partial", "complete"};
  for (const auto& diagnostic : wrong["diagnostics"]) {
    EXPECT_TRUE(diagnostic.at("rank").is_number_integer());
    EXPECT_TRUE(diagnostic.at("op").is_number_integer());
    EXPECT_EQ(rules.count(diagnostic.at("rule").get<std::string>()), 1u) << diagnostic;
    EXPECT_NE(diagnostic.at("text"), "");
  }
  EXPECT_EQ(nlohmann::json::parse(objects[1]).at("ok"), true) << "backward was not broken";
}

TEST(Verify, PlansThatWereEditedAreWrong) {
  const struct {
    std::string from;
    std::string to;
    std::string rule;
  } edits[] = {{"\"peer\":1", "\"peer\":0", "well_formed"},
               {"\"slot\":4", "\"slot\":400", "well_formed"},
               {"\"count\":4", "\"count\":5", "blocks"},
               {"\"count\":4", "\"count\":9223372036854775807", "blocks"},
               {"\"bytes\":", "\"bytes\":-", "well_formed"},
               {"\"external\":true", "\"external\":false", "blocks"},
               {"\"op\":\"send\",\"lane\":1", "\"op\":\"send\",\"lane\":7", "match"}};
  for (const auto& edit : edits) {
    const std::string text = replaced(plans(), edit.from, edit.to);
    const ProgramRun result = run({"verify", "--json", "--file", "-"}, text);
    EXPECT_EQ(result.code, 1) << edit.to << ": " << result.err;
    ASSERT_FALSE(result.out.empty()) << edit.to;
    const auto first = nlohmann::json::parse(lines(result.out)[0]);
    EXPECT_EQ(first.at("diagnostics").at(0).at("rule"), edit.rule) << edit.to;
    const ProgramRun grid = run({"verify", "--file", "-"}, text);
    EXPECT_EQ(grid.code, 1) << edit.to << ": " << grid.err;
    EXPECT_THAT(grid.out, HasSubstr("<-- HERE")) << edit.to;
  }
}

// ---- no plans: exit code 2

TEST(VerifyError, FilesThatCannotBeRead) {
  const Folder folder;
  const std::string required =
      "; a file of plans as JSON lines, or - for standard input, is required";
  expect_error({"verify", "--file", folder.path("none")},
               Eq("verify: '" + folder.path("none") + "' does not exist" + required));
  expect_error({"verify", "--file", folder.path("")},
               Eq("verify: '" + folder.path("") + "' is a folder" + required));
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  expect_error({"verify", "--file", folder.path("pipe")},
               Eq("verify: '" + folder.path("pipe") + "' is a pipe" + required));
  EXPECT_EQ(run({"verify", "--file", "/dev/stdin"}, plans()).code, 0);
  expect_error({"verify", "--file", ""}, Eq("--file: '' given; a value is required"));
}

TEST(VerifyError, FilesWithoutAPlan) {
  const Folder folder;
  const auto error = [](const std::string& name) {
    return Eq(fmt::format("verify: {} holds no plan; one JSON object per line is required", name));
  };
  for (const std::string text : {"", "\n\n"}) {
    const std::string path = folder.write("plans.jsonl", text);
    expect_error({"verify", "--file", path}, error(path));
    expect_error({"verify", "--file", "-"}, error("standard input"), text);
  }
}

void expect_no_plan(const std::string& text, const testing::Matcher<const std::string&>& error) {
  expect_error({"verify", "--file", "-"}, AllOf(StartsWith("verify: standard input, line "), error),
               text);
}

TEST(VerifyError, TextThatIsNoPlan) {
  const std::string good = plans();
  expect_no_plan("garbage\n", HasSubstr("line 1: parse_json: the text is no JSON at byte "));
  expect_no_plan("{\"format_version\":4", HasSubstr("the text is no JSON at byte "));
  expect_no_plan(good.substr(0, 500), HasSubstr("the text is no JSON at byte "));
  expect_no_plan(good + "]\n", HasSubstr("line 3: parse_json: the text is no JSON at byte "));
  expect_no_plan(std::string("\0\xff\xfe\n", 4), HasSubstr("the text is no JSON at byte "));
  expect_no_plan(std::string(1'000'000, '[') + "\n", HasSubstr("nested deeper than 16"));
  expect_no_plan(
      "{\"format_version\":" + std::string(500'000, '[') + std::string(500'000, ']') + "}",
      HasSubstr("nested deeper than 16"));
  expect_no_plan("[]\n", EndsWith("the text is []; an object is required"));
  expect_no_plan("{}\n", EndsWith("format_version is missing; this key is required"));
}

TEST(VerifyError, PlansOfAnotherFormat) {
  const std::string good = plans();
  const auto edited = [&](const std::string& from, const std::string& to,
                          const std::string& error) {
    expect_no_plan(replaced(good, from, to), EndsWith(error));
  };
  edited("\"format_version\":4", "\"format_version\":1", "format_version is 1; 4 is required");
  edited("\"strategy\"", "\"stratgy\"",
         "stratgy is not a known key; format_version, strategy, pass, problem, blocks or ranks is "
         "required; nearest: 'strategy'");
  edited("\"world\":3", "\"world\":\"3\"",
         "problem.world is \"3\"; an integer of 32 bits is required");
  edited("\"world\":3", "\"world\":0", "problem: problem: world 0 given; 1 to 16384 is required");
  edited(
      "\"op\":\"send\"", "\"op\":\"sned\"",
      "ranks[0].ops[0].op is \"sned\"; send, recv, attend, attend_grad, merge, add, copy, clear, "
      "delta, finish, attend_all or attend_grad_all is required");
  edited("\"dtype\":\"bf16\"", "\"dtype\":\"bf16\",\"dtype\":\"bf16\"",
         "a plan as to_json writes it is required");
  edited("\"lane\":1", "\"lane\":99999999999999999999",
         "ranks[0].ops[0].lane is 1e+20; an integer of 16 bits is required");
}

TEST(VerifyError, AFileSaysWhatItsProblemIs) {
  const Folder folder;
  const std::string path = folder.write("plans.jsonl", plans());
  expect_error({"verify", "--file", path, "--world", "3"}, Eq("--world excludes --file"));
  expect_error({"verify", "--strategy", "ring", "--file", path}, Eq("--strategy excludes --file"));
}

TEST(VerifyError, MutationsThatDoNotExist) {
  for (const std::string number : {"-1", "x", "1e3", "99999999999999999999"}) {
    expect_error({"verify", "--break", number},
                 AllOf(StartsWith("--break: '" + number + "' given; a whole number from 0 to "),
                       EndsWith(" is required")));
  }
}

TEST(VerifyError, APlanThatIsWrongAlreadyIsNotBroken) {
  const Folder folder;
  const std::string path =
      folder.write("plans.jsonl", replaced(plans(), "\"peer\":1", "\"peer\":0"));
  expect_error({"verify", "--file", path, "--break", "0"},
               Eq("--break: the plan is wrong already; one that verifies is required"));
}

/// Forward and backward of different problems are each judged alone, and each is exact.
TEST(Verify, OnlyABackwardOfTheSameProblemFollowsItsForward) {
  const std::string forward = run({"plan", "--json", "--world", "2", "--seq", "8"}).out;
  const auto backward_of = [](const char* seq) {
    return run({"plan", "--json", "--world", "2", "--seq", seq, "--pass", "backward"}).out;
  };
  const ProgramRun other = run({"verify", "--file", "-"}, forward + backward_of("16"));
  EXPECT_EQ(other.code, 0) << other.out << other.err;
  EXPECT_THAT(other.out, HasSubstr("given what forward saves"));
  const ProgramRun same = run({"verify", "--file", "-"}, forward + backward_of("8"));
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_THAT(same.out, testing::Not(HasSubstr("given what forward saves")));
}

TEST(Verify, ProvesEachRankWhereNoTwoAreAlike) {
  const ProgramRun proved = run({"verify", "--strategy", "startrail:c=2", "--mask", "full",
                                 "--fold", "--world", "32", "--pass", "forward"});
  EXPECT_EQ(proved.code, 0) << proved.err;
  EXPECT_THAT(proved.out, AllOf(StartsWith("startrail:c=2 forward: exact. world 32, "),
                                EndsWith("No two ranks are alike: each of 32 was proved\n")));
}

TEST(Verify, OneRankHasNoOtherToBeLike) {
  const ProgramRun proved = run({"verify", "--fold", "--world", "1", "--pass", "forward"});
  EXPECT_EQ(proved.code, 0) << proved.err;
  EXPECT_THAT(proved.out, EndsWith("every pair once. The one rank was proved\n"));
}

/// A replay whose saved tiles stand in another order is refused beside its forward, and beside its
/// backward, wherever they stand in the file.
TEST(Verify, PassesOfAFileAreProvedTogether) {
  const auto plan_of = [](const char* pass) {
    return run(with_problem({"plan", "--json", "--pass", pass})).out;
  };
  auto json = nlohmann::ordered_json::parse(plan_of("replay"));
  std::swap(json["ranks"][1]["saved"][0], json["ranks"][1]["saved"][1]);
  const std::string replay = json.dump() + "\n";
  const ProgramRun alone = run({"verify", "--file", "-"}, replay);
  EXPECT_EQ(alone.code, 0) << alone.out;
  EXPECT_THAT(alone.out, HasSubstr("given what forward saves"));
  for (const std::string& text :
       {replay + plan_of("backward"), plan_of("backward") + replay, plan_of("forward") + replay,
        plan_of("both") + replay, replay + plan_of("both")}) {
    const ProgramRun together = run({"verify", "--file", "-"}, text);
    EXPECT_EQ(together.code, 1) << together.out;
    EXPECT_THAT(together.out, HasSubstr("rank 1 op -1: blocks: "));
  }
}

/// Both are exact alone, but backward starts from tiles that are not where forward left them.
TEST(Verify, ABackwardOfAnotherStrategyIsWrong) {
  const std::vector<std::string> common{"plan",  "--json", "--world", "3",
                                        "--seq", "24",     "--heads", "3"};
  const auto plan_of = [&](const std::string& strategy, const std::string& pass) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), {"--strategy", strategy, "--pass", pass});
    return run(arguments).out;
  };
  const std::string renamed =
      replaced(plan_of("ulysses", "backward"), "\"strategy\":\"ulysses\"", "\"strategy\":\"ring\"");
  EXPECT_EQ(run({"verify", "--file", "-"}, renamed).code, 0) << "alone";
  const ProgramRun both = run({"verify", "--file", "-"}, plan_of("ring", "forward") + renamed);
  EXPECT_EQ(both.code, 1);
  EXPECT_THAT(both.out, HasSubstr("forward saves v{2} heads 0-3 but backward finds"));
}

}  // namespace
}  // namespace armillary::error
