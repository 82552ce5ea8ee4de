// run_files_test.cpp: files of runs, written whole or not at all, and what may not be written over.
// Full disks are /dev/full.
#include "armillary/io/run_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "armillary/core/error.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class RunFilesTest : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  const std::string folder_ = (fs::temp_directory_path() / "armillary_run_files_test").string();
};

TEST_F(RunFilesTest, WriteFileMakesFoldersReplacesAndLeavesNothingElse) {
  const std::string path = folder_ + "/a/b/recipe.toml";
  write_file(path, "old");
  write_file(path, "new");
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ + "/a/b"), fs::directory_iterator()), 1);
}

// Renamed to, a pipe would leave its reader waiting, and a device would be gone.
TEST_F(RunFilesTest, OnlyRegularFilesAreReplaced) {
  fs::create_directories(folder_);
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT([&] { write_file(pipe, "x"); },
              ThrowsMessage<IoError>(HasSubstr("/pipe cannot be written (is a pipe); a path")));
  EXPECT_THAT([&] { write_file("/dev/null", "x"); },
              ThrowsMessage<IoError>(HasSubstr("/dev/null cannot be written (is a device); a")));
  EXPECT_THAT([&] { JsonLines lines(pipe); },
              ThrowsMessage<IoError>(HasSubstr("/pipe cannot be written (is a pipe); a path")));
  // A pipe that another program left under the name of the unfinished file.
  ASSERT_EQ(mkfifo((folder_ + "/file.tmp").c_str(), 0600), 0);
  EXPECT_THAT([&] { write_file(folder_ + "/file", "x"); },
              ThrowsMessage<IoError>(HasSubstr("/file.tmp cannot be written (is a pipe); a path")));
}

TEST_F(RunFilesTest, FileInTheWayIsRefusedAndLeftAlone) {
  write_file(folder_ + "/file", "keep");
  EXPECT_THAT([&] { write_file(folder_ + "/file/recipe.toml", "x"); },
              ThrowsMessage<IoError>(HasSubstr(folder_ + "/file cannot be made")));
  fs::create_directories(folder_ + "/taken");
  EXPECT_THAT([&] { write_file(folder_ + "/taken", "x"); },
              ThrowsMessage<IoError>(HasSubstr("/taken cannot be written (is a folder)")));
  EXPECT_FALSE(fs::exists(folder_ + "/taken.tmp"));
  EXPECT_THAT([&] { JsonLines lines(folder_ + "/taken"); },
              ThrowsMessage<IoError>(HasSubstr("/taken cannot be written")));
  EXPECT_EQ(contents(folder_ + "/file"), "keep");
}

TEST_F(RunFilesTest, EveryLineIsOnDiskWhenWriteReturns) {
  const std::string path = folder_ + "/metrics.jsonl";
  JsonLines lines(path);
  lines.write({{"step", 1}, {"note", "two\nlines"}});
  EXPECT_EQ(contents(path), "{\"note\":\"two\\nlines\",\"step\":1}\n");
  lines.write({{"step", 2}});
  EXPECT_EQ(contents(path), "{\"note\":\"two\\nlines\",\"step\":1}\n{\"step\":2}\n");
  const JsonLines again(path);
  EXPECT_EQ(contents(path), "");
}

TEST(RunFiles, ALineThatIsNotOnDiskIsAFailure) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "[SKIP] no /dev/full";
  JsonLines lines("/dev/full");
  EXPECT_THAT(
      [&] {
        lines.write({{"step", 1}});
      },
      ThrowsMessage<Error>(HasSubstr("write: /dev/full cannot be written any more (No ")));
}

TEST_F(RunFilesTest, AFileThatIsNotOnDiskDoesNotReplaceTheOldOne) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "[SKIP] no /dev/full";
  const std::string path = folder_ + "/recipe.toml";
  write_file(path, "old");
  fs::create_symlink("/dev/full", path + ".tmp");
  EXPECT_THAT([&] { write_file(path, "new"); },
              ThrowsMessage<IoError>(HasSubstr(path + ".tmp cannot be written (No ")));
  EXPECT_EQ(contents(path), "old");
}

}  // namespace
}  // namespace armillary::io
