// file_system_test.cpp: both file systems: the one of the machine, with refusals that name path and
// reason, and the one of tests, which undoes at a power cut whatever no sync has covered.
#include "armillary/io/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/io/testing/power_cut.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

class FileSystemTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string bytes_of_file(const std::string& name) const {
    std::ifstream stream(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  FileSystem& files_ = real_file_system();
  const std::string folder_ =
      (fs::temp_directory_path() / ("armillary_file_system_test_" + std::to_string(getpid())))
          .string();
};

TEST_F(FileSystemTest, FilesAndFoldersAreMadeRenamedAndRemoved) {
  make_folders(files_, path("a/b/c"));
  make_folders(files_, path("a/b/c"));
  write_synced(files_, path("a/b/c/file"), "old and long");
  write_synced(files_, path("a/b/c/file"), "new");
  files_.sync_folder(path("a/b/c"));
  files_.rename(path("a/b"), path("a/d"));
  EXPECT_EQ(bytes_of_file("a/d/c/file"), "new");
  fs::create_directory_symlink(path("a"), path("a/d/link"));
  remove_tree(files_, path("a/d"));
  remove_tree(files_, path("a/d"));
  EXPECT_TRUE(fs::is_empty(path("a"))) << "the link was followed, or something is left";
}

TEST_F(FileSystemTest, RefusalsNameThePathAndTheReason) {
  write_synced(files_, path("file"), "x");
  make_folders(files_, path("full/inner"));
  const auto expect_refused = [](const auto& call, const std::string& text) {
    EXPECT_THAT(call, ThrowsMessage<IoError>(HasSubstr(text)));
  };
  expect_refused([&] { files_.create(path("none/file")); }, "none/file cannot be made (No such");
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused([&] { files_.create(path("pipe")); }, "/pipe cannot be made (No such device");
  expect_refused([&] { files_.make_folder(path("file")); }, "/file cannot be made (File exists)");
  expect_refused([&] { make_folders(files_, path("file/a")); },
                 "/file cannot be made (File exists)");
  expect_refused([&] { files_.sync_folder(path("none")); }, "/none cannot be synced (No such");
  expect_refused([&] { files_.remove(path("full")); }, "/full cannot be removed (Directory not");
  expect_refused([&] { files_.rename(path("none"), path("b")); }, "/none cannot be renamed to ");
}

TEST_F(FileSystemTest, ADiskThatIsFullIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "[SKIP] no /dev/full";
  const auto file = files_.create("/dev/full");
  EXPECT_THAT([&] { file->write(std::vector<std::byte>(9)); },
              ThrowsMessage<IoError>(HasSubstr("/dev/full cannot be written (No space left")));
}

/// Exit code of a child that does `action`, or -1.
template <class Action>
int exit_code_of_child(const Action& action) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    action();
    std::_Exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

/// The test of the tool: calls that a sync covers stay, the others go, or half of the last is done.
TEST_F(FileSystemTest, APowerCutUndoesWhatNoSyncCovers) {
  make_folders(files_, path("trash"));
  make_folders(files_, path("disk"));
  write_synced(files_, path("disk/old"), "old");
  const auto cut = [&](std::int64_t at, Unsynced unsynced) {
    return exit_code_of_child([&] {
      PowerCut power(at, unsynced, path("trash"));
      const auto file = power.create(path("disk/file"));      // 1
      file->write(std::as_bytes(std::span("12345678", 8)));   // 2
      file->sync();                                           // 3
      power.sync_folder(path("disk"));                        // 4
      file->write(std::as_bytes(std::span("abcdefgh", 8)));   // 5
      power.remove(path("disk/old"));                         // 6
      power.rename(path("disk/file"), path("disk/renamed"));  // 7
      power.make_folder(path("disk/folder"));                 // 8
    });
  };
  EXPECT_EQ(cut(9, Unsynced::Lost), 0);
  fs::rename(path("trash/6"), path("disk/old"));
  fs::remove_all(path("disk/folder"));
  fs::remove_all(path("disk/renamed"));

  EXPECT_EQ(cut(5, Unsynced::Kept), kPowerCut);
  EXPECT_EQ(bytes_of_file("disk/file"), "12345678abcd");
  EXPECT_EQ(cut(3, Unsynced::Lost), kPowerCut);
  EXPECT_FALSE(fs::exists(path("disk/file")));
  EXPECT_EQ(cut(8, Unsynced::Lost), kPowerCut);
  EXPECT_EQ(bytes_of_file("disk/file"), "12345678");
  EXPECT_EQ(bytes_of_file("disk/old"), "old");
  EXPECT_FALSE(fs::exists(path("disk/folder")));
  EXPECT_FALSE(fs::exists(path("disk/renamed")));
}

}  // namespace
}  // namespace armillary::io
