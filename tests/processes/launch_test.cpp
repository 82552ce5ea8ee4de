// Ranks as processes: `armillary launch` with a small recipe, against the same run on threads, and
// runs that are refused. Processes are real; so are exit codes. tests/faults/ has ranks that fail.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/mpi.h"

namespace armillary {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Pids of processes whose command line has all texts.
std::vector<pid_t> processes_with(const std::vector<std::string>& texts) {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string line = read_text(entry.path() / "cmdline");
    bool all = !line.empty();
    for (const std::string& text : texts) all &= line.find(text) != std::string::npos;
    if (all) pids.push_back(std::stoi(name));
  }
  return pids;
}

struct LaunchEnd {
  int code = -1;  ///< -1: ended by a signal.
  std::string output;
  double seconds = 0;  ///< From the fault, if there is one, to the end.
};

class Launch : public testing::Test {
 protected:
  void SetUp() override {
    if (!comm::mpi_available()) GTEST_SKIP() << "[SKIP] no MPI";
    static int count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("armillary_launch_{}_{}", getpid(), count++);
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "text.txt") << std::string(4000, 'a') + std::string(4000, 'b');
  }
  void TearDown() override {
    if (folder_.empty()) return;
    EXPECT_THAT(processes_with({folder_.string()}), testing::IsEmpty());
    EXPECT_THAT(segments(), testing::IsEmpty()) << "shared memory is left";
    std::filesystem::remove_all(folder_);
  }

  /// Folders of shared memory that the launchers of this test have left.
  std::vector<std::string> segments() const {
    std::vector<std::string> texts;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename();
      for (const pid_t pid : launchers_) {
        if (name.starts_with(fmt::format("armillary-{}-", pid))) texts.push_back(name);
      }
    }
    return texts;
  }

  /// `train` with a small recipe on `world` ranks.
  std::vector<std::string> train(int world, int steps,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"train", ARMILLARY_SOURCE_DIR "/recipes/default.toml"};
    std::vector<std::string> settings{
        fmt::format("training.dataset_path={}/text.txt", folder_.string()),
        fmt::format("job.dump_folder={}/run", folder_.string()),
        fmt::format("parallelism.context_parallel_degree={}", world),
        fmt::format("training.steps={}", steps),
        "training.seq_len=96",
        "model.dim=16",
        "model.n_layers=1",
        "lr_scheduler.warmup_steps=1"};
    settings.insert(settings.end(), more.begin(), more.end());
    for (const std::string& setting : settings) {
      words.emplace_back("--set");
      words.push_back(setting);
    }
    return words;
  }
  static std::vector<std::string> launched(int processes, std::vector<std::string> words,
                                           const std::vector<std::string>& flags = {}) {
    std::vector<std::string> all{"launch", "-n", std::to_string(processes)};
    all.insert(all.end(), flags.begin(), flags.end());
    all.emplace_back("--");
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

  /// Runs the program. When the output has `sign`, calls `fault` with the pid of the program.
  LaunchEnd run(const std::vector<std::string>& words, const std::string& sign = "",
                const std::function<void(pid_t)>& fault = {}) const {
    std::vector<std::string> all{ARMILLARY_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> argv;
    argv.reserve(all.size() + 1);
    for (std::string& word : all) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string output = folder_ / "output";
    std::ofstream(output).close();
    Clock::time_point begin = Clock::now();
    const pid_t child = fork();
    if (child == 0) {
      const int file = open(output.c_str(), O_WRONLY | O_APPEND);
      dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(126);
    }
    launchers_.push_back(child);
    if (fault) {
      EXPECT_TRUE(soon([&] { return read_text(output).find(sign) != std::string::npos; }, 120))
          << read_text(output);
      begin = Clock::now();
      fault(child);
    }
    int status = 0;
    const bool ended = soon([&] { return waitpid(child, &status, WNOHANG) == child; }, 120);
    if (!ended) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
    }
    EXPECT_TRUE(ended) << "it hangs";
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(output),
            std::chrono::duration<double>(Clock::now() - begin).count()};
  }

  static bool soon(const std::function<bool()>& condition, int seconds) {
    for (const auto begin = Clock::now(); Clock::now() - begin < std::chrono::seconds(seconds);) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  /// Loss and gradient norm of each step, as metrics.jsonl has them.
  std::vector<std::string> losses() const {
    std::vector<std::string> texts;
    std::ifstream stream(folder_ / "run" / "metrics.jsonl");
    for (std::string line; std::getline(stream, line);) {
      const auto step = nlohmann::json::parse(line);
      texts.push_back(step["loss"].dump() + " " + step["grad_norm"].dump());
    }
    return texts;
  }

  std::filesystem::path folder_;
  mutable std::vector<pid_t> launchers_;  ///< Programs that were started.
};

TEST_F(Launch, TrainsTheSameBitsOnProcessesAsOnThreads) {
  ASSERT_EQ(run(train(4, 20)).code, 0);
  const std::vector<std::string> on_threads = losses();
  const LaunchEnd outcome = run(launched(4, train(4, 20)));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(on_threads.size(), 20);
  EXPECT_EQ(losses(), on_threads);
  EXPECT_THAT(outcome.output, HasSubstr("[rank 0] step: 20"));
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("[rank 1] step:")));
}

TEST_F(Launch, MeasuresALayerOnProcesses) {
  const LaunchEnd outcome =
      run(launched(2,
                   {"bench", "layer", "--tokens", "16", "--heads", "2", "--head-dim", "8",
                    "--strategy", "ring", "--strategy", "ulysses", "--seconds", "0", "--json"},
                   {"--no-prefix"}));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  std::istringstream lines(outcome.output);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto row = nlohmann::json::parse(line);
    EXPECT_EQ(row["engine"], "mpi");
    EXPECT_LT(row["max_error"], 1e-5);
    EXPECT_GT(row["seconds"], row["kernel_seconds"]);
  }
  EXPECT_EQ(count, 4) << "two strategies, two passes";
}

TEST_F(Launch, ALauncherThatIsKilledLeavesNoRank) {
  const LaunchEnd outcome = run(launched(2, train(2, 100000)), "step:  3", [&](pid_t launcher) {
    EXPECT_THAT(segments(), testing::SizeIs(1)) << "while it runs";
    kill(launcher, SIGKILL);
  });
  EXPECT_EQ(outcome.code, -1);
  EXPECT_TRUE(soon([&] { return processes_with({folder_.string()}).empty(); }, 60));
}

TEST_F(Launch, ARunFolderThatCannotBeWrittenEndsAllRanks) {
  std::ofstream(folder_ / "run") << "a file";
  const LaunchEnd outcome = run(launched(2, train(2, 2)));
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("\\[rank 0\\] armillary: .*/run"));
}

TEST_F(Launch, RefusesOtherWorldsAndEngines) {
  const LaunchEnd world = run(launched(2, train(3, 2)));
  EXPECT_EQ(world.code, 2);
  EXPECT_THAT(world.output,
              HasSubstr("2 processes that Open MPI started, and "
                        "parallelism.context_parallel_degree = 3; equal numbers are required"));
  std::vector<std::string> on_threads = train(2, 2);
  on_threads.insert(on_threads.end(), {"--engine", "threads"});
  const LaunchEnd threads = run(launched(2, on_threads));
  EXPECT_EQ(threads.code, 2);
  EXPECT_THAT(threads.output, HasSubstr("each of which would do the whole run; --engine mpi is"));
}

TEST_F(Launch, RefusesBadCommandLines) {
  const auto refused = [&](const std::vector<std::string>& words, const std::string& text) {
    const LaunchEnd outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  };
  refused({"launch", "-n", "2"}, "launch: no verb given; `launch -n 2 -- train ..`");
  refused({"launch", "--", "train", "x.toml"}, "launch: -n is not given");
  refused({"launch", "-n", "0", "--", "train"}, "launch: -n");
  refused({"launch", "-n", "2", "--", "plan"}, "launch: verb");
  refused({"launch", "-n", "2", "--", "bench", "kernel"},
          "launch: bench kernel, which runs no ranks; bench layer, overlap, live or collectives is "
          "required");
  refused({"launch", "-n", "2", "--engine", "mip", "--", "train"}, "--engine");
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  refused({"launch", "-n", "2", "--", "train"},
          "launch: this is rank 1 of 2 that Open MPI started; launch starts ranks itself");
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

// Open MPI itself refuses more ranks than cores, and root.
TEST_F(Launch, AnMpirunThatRefusesEndsAtOnce) {
  const std::filesystem::path mpirun = folder_ / "mpirun";
  std::ofstream(mpirun) << "#!/bin/sh\n[ \"$1\" = --version ] && echo 'mpirun (Open MPI) 4.1.4' && "
                           "exit 0\necho 'There are not enough slots available' >&2\nexit 1\n";
  std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
  setenv("ARMILLARY_MPIEXEC", mpirun.c_str(), 1);
  const LaunchEnd outcome = run(launched(2, train(2, 2)));
  unsetenv("ARMILLARY_MPIEXEC");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("There are not enough slots available"));
  EXPECT_LT(outcome.seconds, 60);
}

}  // namespace
}  // namespace armillary
