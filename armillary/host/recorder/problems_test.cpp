#include "armillary/host/recorder/problems.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "armillary/core/error.h"
#include "armillary/host/recorder/testing/run_folder.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::recorder {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string value(const ProblemFlags& flags, const std::string& name) {
  const auto at = std::ranges::find(flags, name, &ProblemFlags::value_type::first);
  return at == flags.end() ? "none" : at->second;
}

TEST(Problems, LastOnesAreReadAsTheyWereWritten) {
  const RunFolder folder;
  ProblemLog log(folder.path());
  EXPECT_TRUE(read_problems(folder.path(), getpid()).empty());
  plan::Problem problem{.world = 2, .heads = 4, .kv_heads = 2, .dtype = plan::Dtype::F32};
  for (std::int64_t i = 1; i <= 40; ++i) {
    const std::string documents = "documents:" + std::to_string(i) + "," + std::to_string(64 - i);
    problem.mask = plan::parse_mask(documents, {64, 64});
    log.begin(problem, "ring");
    log.begin(problem, "ring");  // the same: no problem of its own
  }
  const std::vector<RecordedProblem> read = read_problems(folder.path(), getpid());
  ASSERT_EQ(read.size(), ProblemLog::kKept);
  EXPECT_TRUE(std::ranges::is_sorted(read, {}, &RecordedProblem::since_ns));
  EXPECT_EQ(read.back().flags, flags_of(problem, "ring"));
  EXPECT_EQ(value(read.back().flags, "--dtype"), "fp32");
  EXPECT_EQ(value(read.back().flags, "--mask"), "documents:40,24");
  EXPECT_TRUE(read_problems(folder.path(), getpid() + 1).empty()) << "of another run";
}

TEST(Problems, MasksAreReadBack) {
  for (const char* text : {"full", "causal", "documents:3,1,60", "documents:3,61,within=full",
                           "window:left=5,right=0", "documents:30,34,within=window,left=2,right=1",
                           "causal:align=start", "bands:0-8/0-8/-3..0"}) {
    const plan::Lengths lengths{64, text == std::string("causal:align=start") ? 80 : 64};
    const plan::Problem problem{.mask = plan::parse_mask(text, lengths)};
    const std::string written = value(flags_of(problem, "ring"), "--mask");
    EXPECT_EQ(plan::parse_mask(written, lengths), problem.mask) << text << ": " << written;
  }
}

TEST(Problems, AFileOfOthersIsRefused) {
  const RunFolder folder;
  ProblemLog(folder.path()).begin({}, "ring");
  for (const char* text : {"", "{", "{\"pid\": \"x\"}", "[]"}) {
    std::ofstream(folder.path() + "/flight/problems.json") << text;
    EXPECT_THAT([&] { read_problems(folder.path(), 1); },
                ThrowsMessage<IoError>(HasSubstr("/flight/problems.json' is n")));
  }
  ProblemLog("").begin({}, "ring");  // no folder: nothing is written
}

}  // namespace
}  // namespace armillary::recorder
