// simulate_published_test.cpp: published measurements of the verb `simulate`: their tables, and row
// files that cannot be used.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

/// A file with one row of a ring on 8 A100; `cells` come first.
std::string rows_with(const std::string& cells) {
  return R"({"source": "mine", "common": {"source": "", "cluster_id": "C6", "gpus": 8, "model_id": null,
  "layers": 1, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "hidden_dim": null, "ffn_dim": null,
  "vocab_size": null, "seq_len_tokens": 32768, "tokens_per_gpu": null, "global_batch": 1,
  "dtype": "bf16", "mask": "causal", "pass": "fwd", "corrected_pass": "fwd", "phase": null,
  "strategy": "ring", "implementation": null, "load_balanced": true, "tp_degree": 1,
  "dp_degree": 1, "ulysses_degree": 1, "ring_degree": 8, "team_size_c": null,
  "reported_iters_per_s": 113.79, "reported_time_s": null, "reported_tflops_per_gpu": null,
  "reported_mfu": null, "reported_speedup_vs_ring": null, "reported_efficiency_vs_single_gpu": null,
  "derived_time_s": null, "derived_tokens_per_s_per_gpu": null,
  "derived_causal_tflops_per_gpu": null, "derived_causal_mfu": null, "value_kind": "table",
  "relative_uncertainty": 0.02, "confidence": "high", "notes": ""}, "rows": [{)" +
         cells + "}]}";
}

TEST(SimulatePublished, PredictsTheRowsOfAFile) {
  const Folder folder;
  const std::string path = folder.write("rows.json", rows_with("\"id\": \"my_row\""));
  const ProgramRun result = run({"simulate", "--rows", path});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("| my_row | "), HasSubstr(" | 8.788 ms | "),
                                HasSubstr("Predicted: 1 row")));
}

TEST(SimulatePublished, PrintsOneObjectForPrograms) {
  const Folder folder;
  const std::string path = folder.write("rows.json", rows_with("\"id\": \"my_row\""));
  const ProgramRun result = run({"simulate", "--json", "--rows", path});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr(R"("id":"my_row","unit":"s","predicted":0.00)"),
                                HasSubstr(R"({"statements":[],"files":[{"source":"mine")"),
                                HasSubstr(R"("fitted":{"rows":0,"mean":null,"largest":null})")));
}

TEST(SimulatePublished, RefusesFilesThatCannotBeUsed) {
  const Folder folder;
  const auto expect_refused = [&](const std::string& text,
                                  const testing::Matcher<const std::string&>& error) {
    const std::string path = folder.write("rows.json", text);
    expect_error({"simulate", "--rows", path}, error);
  };
  std::string text = rows_with("\"id\": \"my_row\"");
  text.replace(text.find("\"gpus\": 8, "), 11, "");
  expect_refused(text, HasSubstr("row 0: column gpus is missing"));
  expect_refused(rows_with("\"gpus\": 8"), HasSubstr("row 0: column id is missing"));
  expect_refused(rows_with("\"id\": \"x\", \"gpus\": -1"), HasSubstr("row 0 (x): gpus = -1"));
  text = rows_with("\"id\": \"x\"");
  text.replace(text.find("\"mine\""), 6, "3");
  expect_refused(text, AllOf(HasSubstr("rows.json: source = 3; "), EndsWith("text is required")));
  expect_refused("no JSON", EndsWith("an object with a list `rows` is required"));
  expect_error({"simulate", "--rows", folder.path("none.json")},
               HasSubstr("none.json' does not exist; a file of rows"));
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  expect_error({"simulate", "--rows", folder.path("pipe")},
               HasSubstr("pipe' is a pipe; a file of"));
  expect_error({"simulate", "--rows", folder.path("")}, HasSubstr("' is a folder; a file of rows"));
}

TEST(SimulatePublished, PrintsTheRowsBesideOnesThatMakeNoSense) {
  const Folder folder;
  const std::string path = folder.write(
      "rows.json",
      rows_with(R"("id": "x", "ring_degree": 3}, {"id": "y", "cluster_id": "D6"}, {"id": "z")"));
  const ProgramRun result = run({"simulate", "--rows", path});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, AllOf(HasSubstr("| x |  |  |  |  | refused |"), HasSubstr("| z | "),
                                HasSubstr("Predicted: 1 row")));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("armillary: row x: "), HasSubstr("their product must be the ranks"),
                    HasSubstr("; row y: "), HasSubstr("d6")));
}

TEST(SimulatePublished, TakesNoProblem) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--world", "8"}, {"--cluster", "c6"}, {"--csv", "a.csv"}, {"--compare"}}) {
    for (std::vector<std::string> line :
         {std::vector<std::string>{"simulate", "--published"}, {"simulate", "--rows", "r.json"}}) {
      line.insert(line.end(), flags.begin(), flags.end());
      expect_error(line, AllOf(HasSubstr(" excludes "), HasSubstr(flags[0])));
    }
  }
  expect_error({"simulate", "--rows", ""}, HasSubstr("--rows"));
}

}  // namespace
}  // namespace armillary::error
