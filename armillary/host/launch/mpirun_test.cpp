// mpirun_test.cpp: launchers of MPI that are none, or do not answer.
#include "armillary/host/launch/mpirun.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "armillary/core/error.h"

namespace armillary::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A launcher that is a shell script.
class Script {
 public:
  explicit Script(const std::string& lines)
      : path_(std::filesystem::temp_directory_path() /
              ("armillary_mpirun_test_" + std::to_string(getpid()))) {
    std::ofstream(path_) << "#!/bin/sh\n" << lines << "\n";
    chmod(path_.c_str(), 0700);
  }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;
  ~Script() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(FamilyOf, IsReadFromTheVersion) {
  EXPECT_EQ(family_of(Script("echo 'mpirun (Open MPI) 4.1.4'").path()), MpiFamily::OpenMpi);
  EXPECT_EQ(family_of(Script("echo HYDRA build details >&2").path()), MpiFamily::Mpich);
  const Script other("echo version 3; echo more");
  EXPECT_THAT(
      [&] { family_of(other.path()); },
      ThrowsMessage<InvalidArgument>(HasSubstr("--version says 'version 3'; the launcher")));
  EXPECT_THAT([] { family_of("/no/such/mpirun"); },
              ThrowsMessage<InvalidArgument>(
                  "launch: /no/such/mpirun cannot be started: No such file or directory"));
}

TEST(FamilyOf, DoesNotWaitForALauncherThatDoesNotEnd) {
  for (const char* lines : {"sleep 600", "kill -STOP $$"}) {
    const Script script(lines);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT([&] { family_of(script.path(), 0.3); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr(script.path()), HasSubstr("has not ended after 0.3 s; the"))))
        << lines;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << lines;
  }
}

}  // namespace
}  // namespace armillary::launch
