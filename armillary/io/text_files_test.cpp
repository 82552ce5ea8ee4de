// text_files_test.cpp: text files and folders of them as training data: which files are read and in
// which order, and UTF-8 that is checked to the byte.
#include "armillary/io/text_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TextFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("armillary_text_files_" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string put(const std::string& name, std::string_view bytes) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }
  std::string folder() const { return folder_.string(); }

 private:
  fs::path folder_;
};

TEST_F(TextFilesTest, FolderIsWalkedSortedAndFilteredByExtension) {
  const std::string b = put("b.py", "b");
  const std::string a = put("sub/deeper/a.py", "a\n");
  put("c.so", "\xFF\xFE");
  put("empty.py", "");
  const auto files = read_text(folder(), {".py"});
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].path, b);
  EXPECT_EQ(files[0].bytes, "b");
  EXPECT_EQ(files[1].path, a);
  EXPECT_EQ(files[1].bytes, "a\n");
}

TEST_F(TextFilesTest, OneFileIsReadWhateverItsExtension) {
  const std::string path = put("notes", std::string("z\0z", 3));
  const auto files = read_text(path, {".py"});
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].bytes, std::string("z\0z", 3));
}

TEST_F(TextFilesTest, MissingPathIsRefused) {
  EXPECT_THAT([&] { read_text(folder() + "/nowhere"); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("nowhere"), HasSubstr("does not exist"))));
}

TEST_F(TextFilesTest, FolderWithoutTextIsRefused) {
  put("empty.py", "");
  put("other.md", "# text");
  EXPECT_THAT(
      [&] {
        read_text(folder(), {".py", ".txt"});
      },
      ThrowsMessage<IoError>(AllOf(HasSubstr(folder() + " holds no text"),
                                   HasSubstr("one .py, .txt file that is not empty"))));
  EXPECT_THAT([&] { read_text(folder() + "/empty.py"); },
              ThrowsMessage<IoError>(HasSubstr("at least one byte is required")));
}

/// While it lives, the process can open one more file or folder, but no second one.
class OneMoreFile {
 public:
  OneMoreFile() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest = open("/dev/null", O_RDONLY);
    close(lowest);
    const rlimit limit{static_cast<rlim_t>(lowest) + 1, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~OneMoreFile() { setrlimit(RLIMIT_NOFILE, &before_); }
  OneMoreFile(const OneMoreFile&) = delete;
  OneMoreFile& operator=(const OneMoreFile&) = delete;

 private:
  rlimit before_ = {};
};

TEST_F(TextFilesTest, FolderThatFailsWhileItIsReadIsRefused) {
  put("a.py", "a");
  put("sub/b.py", "b");
  const OneMoreFile folder_alone;
  EXPECT_THAT([&] { read_text(folder()); },
              ThrowsMessage<IoError>("read_text: folder " + folder() +
                                     " cannot be read (Too many open files); a readable folder is "
                                     "required"));
}

TEST_F(TextFilesTest, FileThatIsNotUtf8IsRefusedWithItsOffset) {
  const std::string path = put("latin1.py", "caf\xE9 = 1");
  EXPECT_THAT([&] { read_text(folder()); },
              ThrowsMessage<IoError>(AllOf(HasSubstr(path), HasSubstr("not UTF-8 at byte 3"))));
}

TEST_F(TextFilesTest, LinksToNothingAndToFoldersAreNoDocuments) {
  const std::string path = put("text/a.txt", "a");
  fs::create_symlink(folder() + "/nowhere", folder() + "/text/dangling.txt");
  fs::create_directory_symlink(folder() + "/text", folder() + "/text/loop.txt");
  const auto files = read_text(folder() + "/text");
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].path, path);
}

// A pipe that nobody writes to would be waited for; left out, its text would be missed in silence.
TEST_F(TextFilesTest, PipesInFoldersAreRefused) {
  put("text/a.txt", "a");
  ASSERT_EQ(mkfifo((folder() + "/text/z.txt").c_str(), 0600), 0);
  const auto refused = ThrowsMessage<IoError>("read_text: '" + folder() +
                                              "/text/z.txt' is a pipe; a file of text is required");
  EXPECT_THAT([&] { read_text(folder() + "/text"); }, refused);
  EXPECT_THAT([&] { read_text(folder()); }, refused);
  put("text/b.py", "b");
  EXPECT_EQ(read_text(folder() + "/text", {".py"}).size(), 1U) << "others are not looked at";
}

TEST_F(TextFilesTest, FilesAreSortedBytewiseByTheirWholePath) {
  std::vector<std::string> paths;
  for (const char* name : {"B.txt", "a/9.txt", "a/b/1.txt", "a/b.txt", "ab.txt", "b.txt",
                           "c/d/e.txt", "c/d/f.txt", "c/dd.txt", "z.txt"}) {
    paths.push_back(put(name, name));
  }
  std::sort(paths.begin(), paths.end());
  const auto files = read_text(folder());
  ASSERT_EQ(files.size(), paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) EXPECT_EQ(files[i].path, paths[i]) << i;
}

}  // namespace
}  // namespace armillary::io
