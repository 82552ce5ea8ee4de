#include "armillary/core/file_kind.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace armillary {
namespace {

namespace fs = std::filesystem;

TEST(FileKind, RegularFilesAndNothingAreWritten) {
  const fs::path folder =
      fs::temp_directory_path() / ("armillary_file_kind_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const std::string file = folder / "file";
  const std::string pipe = folder / "pipe";
  const std::string link = folder / "link";
  std::ofstream(file) << "text";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, link);
  for (const auto& why : {why_no_output, kind_at}) {
    EXPECT_EQ(why(file), "");
    EXPECT_EQ(why(folder / "none"), "");
    EXPECT_EQ(why(folder / "none/none"), "");
    EXPECT_EQ(why(folder), "is a folder");
    EXPECT_EQ(why(pipe), "is a pipe");
    EXPECT_EQ(why(link), "is a pipe");
  }
  EXPECT_EQ(why_no_output("/dev/null"), "");
  EXPECT_EQ(kind_at("/dev/null"), "is a device");
  fs::remove_all(folder);
}

/// A stream of this process is written to whatever it is.
TEST(FileKind, OpenStreamsAreWritten) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const std::string folder : {"/dev/fd/", "/proc/self/fd/"}) {
    const std::string path = folder + std::to_string(ends[1]);
    EXPECT_EQ(why_no_output(path), "") << path;
    EXPECT_EQ(kind_at(path), "is a pipe") << path;
  }
  EXPECT_EQ(why_no_output("/dev/stdout"), "");
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace armillary
