// cache_test.cpp: files of answers, whole, damaged, and shared by processes. Every part of a
// question must change its key, for a wrong answer is worse than none.
#include "armillary/predict/tune/cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <system_error>

#include "armillary/predict/tune/search.h"
#include "armillary/predict/tune/testing/questions.h"

namespace armillary::tune {
namespace {

/// A folder that is removed in the end.
class CacheFolder {
 public:
  CacheFolder() : path_(std::filesystem::temp_directory_path() / ("tuned-" + unique())) {}
  ~CacheFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  std::string file_of(const std::string& key) const { return path() + "/tuned/" + key + ".json"; }
  /// The only file.
  std::string file() const { return std::filesystem::directory_iterator(path_)->path().string(); }

 private:
  static std::string unique() {
    static int count = 0;
    return std::to_string(getpid()) + "-" + std::to_string(++count);
  }
  std::filesystem::path path_;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Question small() {
  Question question = testing::question("c8", 2, "causal", 1024);
  question.names = {"ring", "ulysses"};
  return question;
}

TEST(Cache, GivesBackWhatWasStored) {
  const CacheFolder folder;
  const Answer answer = search(small());
  EXPECT_FALSE(cached(folder.path(), small()));
  EXPECT_TRUE(store(folder.path(), small(), answer));
  EXPECT_EQ(cached(folder.path(), small()), answer);
}

TEST(Cache, KeepsMeasuredAnswersApartAndGivesThemFirst) {
  const CacheFolder folder;
  setenv("ARMILLARY_CACHE", folder.path().c_str(), 1);
  const std::string tuned_folder = folder.path() + "/tuned";
  const Tuned simulated = tune(small());
  EXPECT_FALSE(simulated.from_cache);
  EXPECT_FALSE(cached(tuned_folder, small(), Evidence::Measured));
  Answer measured = simulated.answer;
  measured.evaluations.front().measured_s = 0.125;
  EXPECT_TRUE(store(tuned_folder, small(), measured, Evidence::Measured));
  EXPECT_EQ(cached(tuned_folder, small()), simulated.answer);
  EXPECT_EQ(tune(small()).answer, measured);
  EXPECT_EQ(tune(small()).answer.choice().seconds(), 0.125);
  unsetenv("ARMILLARY_CACHE");
}

// `armillary tune --measure` chooses the layout too, while `auto` has the layout of its call.
TEST(Cache, AMeasuredAnswerWithAFreeLayoutCountsForEachLayoutThatWasMeasured) {
  const CacheFolder folder;
  setenv("ARMILLARY_CACHE", folder.path().c_str(), 1);
  Question free = small();
  free.free = {.layout = true, .transfer_dtype = false, .placement = false};
  Answer measured = search(free);
  // The fastest is contiguous, then two in zigzag of which the slower was the simulated choice.
  std::stable_partition(measured.evaluations.begin(), measured.evaluations.end(),
                        [](const Evaluation& evaluation) {
                          return evaluation.candidate.layout.kind == plan::LayoutKind::Zigzag;
                        });
  const auto contiguous = std::find_if(
      measured.evaluations.begin(), measured.evaluations.end(), [](const Evaluation& evaluation) {
        return evaluation.candidate.layout.kind == plan::LayoutKind::Contiguous;
      });
  std::rotate(measured.evaluations.begin(), contiguous, contiguous + 1);
  const double seconds[] = {0.125, 0.25, 0.5};
  for (Evaluation& evaluation : measured.evaluations) evaluation.outcome = Outcome::Slower;
  measured.evaluations.front().outcome = Outcome::Chosen;
  for (int i = 0; i < 3; ++i) measured.evaluations[i].measured_s = seconds[i];
  const Evaluation second = measured.evaluations[1];
  ASSERT_EQ(second.candidate.layout.kind, plan::LayoutKind::Zigzag);
  EXPECT_TRUE(store(folder.path() + "/tuned", free, measured, Evidence::Measured));

  const auto answer_for = [&](const std::string& layout) {
    Question question = free;
    question.free.layout = false;
    question.problem.layout = plan::parse_layout(layout);
    return tune(question);
  };
  const Tuned zigzag = answer_for("zigzag");
  EXPECT_EQ(zigzag.answer.choice().candidate, second.candidate);
  EXPECT_EQ(zigzag.answer.choice().outcome, Outcome::Chosen);
  EXPECT_EQ(zigzag.answer.choice().seconds(), 0.25);
  EXPECT_EQ(zigzag.file, folder.file_of(key_of(free, Evidence::Measured)));
  for (const Evaluation& evaluation : zigzag.answer.evaluations) {
    EXPECT_EQ(to_string(evaluation.candidate.layout), "zigzag");
  }
  EXPECT_EQ(answer_for("contiguous").answer.choice().seconds(), 0.125);
  EXPECT_EQ(answer_for("striped:4").answer.choice().measured_s, 0) << "none was measured";
  unsetenv("ARMILLARY_CACHE");
}

TEST(Cache, EveryPartOfAQuestionIsInItsKey) {
  std::set<std::string> keys{key_of(small())};
  const auto expect_new = [&](const auto& change) {
    Question other = small();
    change(other);
    EXPECT_TRUE(keys.insert(key_of(other)).second) << keys.size();
  };
  expect_new([](Question& q) { q.problem.world = 4; });
  expect_new([](Question& q) { q.problem.heads = 16; });
  expect_new([](Question& q) { q.problem.kv_heads = 2; });
  expect_new([](Question& q) { q.problem.dtype = plan::Dtype::F32; });
  expect_new([](Question& q) { q.problem.mask = plan::full_mask({1024, 1024}); });
  const auto in_zigzag = [](Question& q) {
    q.free.layout = false;
    q.problem.layout = plan::parse_layout("zigzag");
  };
  expect_new([](Question& q) {
    q.free.layout = false;
    q.problem.layout = {};
  });
  expect_new(in_zigzag);
  expect_new([](Question& q) { q.cluster.links[0].bytes_per_s *= 1.001; });
  expect_new([](Question& q) { q.passes = {plan::Pass::Forward}; });
  expect_new([](Question& q) { q.free.transfer_dtype = true; });
  expect_new([](Question& q) { q.reserved_bytes = 1; });
  expect_new([](Question& q) { q.names = {"ring"}; });
  expect_new([](Question& q) { q.against = {plan::parse_strategy("ring")}; });
  // A layout that is free is none.
  Question free = small();
  in_zigzag(free);
  free.free.layout = true;
  EXPECT_EQ(key_of(free), key_of(small()));
}

TEST(Cache, DamageIsNotRead) {
  const CacheFolder folder;
  store(folder.path(), small(), search(small()));
  const std::string whole = contents(folder.file());
  for (std::size_t at = 0; at < whole.size(); at += 1 + whole.size() / 50) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    std::ofstream(folder.file(), std::ios::binary) << damaged;
    EXPECT_FALSE(cached(folder.path(), small())) << at;
    std::ofstream(folder.file(), std::ios::binary) << whole.substr(0, at);
    EXPECT_FALSE(cached(folder.path(), small())) << at;
  }
  std::ofstream(folder.file(), std::ios::binary) << whole;
  EXPECT_TRUE(cached(folder.path(), small()));
}

TEST(Cache, AFolderThatCannotBeMadeIsNoError) {
  EXPECT_FALSE(store("/dev/null/tuned", small(), search(small())));
  EXPECT_FALSE(cached("/dev/null/tuned", small()));
}

// Readers see a whole answer or none, whoever writes meanwhile.
TEST(Cache, IsSharedByProcesses) {
  const CacheFolder folder;
  const Answer answer = search(small());
  store(folder.path(), small(), answer);
  const pid_t writer = fork();
  ASSERT_GE(writer, 0);
  if (writer == 0) {
    bool good = true;
    for (int i = 0; i < 100; ++i) good &= store(folder.path(), small(), answer);
    _exit(good ? 0 : 1);
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cached(folder.path(), small()), answer);
  int status = 0;
  ASSERT_EQ(waitpid(writer, &status, 0), writer);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Cache, FolderIsTheUsers) {
  setenv("ARMILLARY_CACHE", "/a", 1);
  EXPECT_EQ(user_cache_folder(), "/a");
  unsetenv("ARMILLARY_CACHE");
  setenv("XDG_CACHE_HOME", "/b", 1);
  EXPECT_EQ(user_cache_folder(), "/b/armillary");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/c", 1);
  EXPECT_EQ(user_cache_folder(), "/c/.cache/armillary");
}

}  // namespace
}  // namespace armillary::tune
