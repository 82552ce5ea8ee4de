// input_file_test.cpp: what is no regular file is refused at once, with its kind.
#include "armillary/core/input_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "armillary/core/error.h"

namespace armillary {
namespace {

namespace fs = std::filesystem;

class InputFileTest : public testing::Test {
 protected:
  InputFileTest() {
    folder_ = fs::temp_directory_path() / fmt::format("armillary_input_{}", getpid());
    fs::create_directories(folder_);
    alarm(20);  // A reader that waits fails here, not after the deadline of the suite.
  }
  ~InputFileTest() override {
    alarm(0);
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return path(name);
  }
  static std::string refusal(const std::string& path, std::int64_t most = 100) {
    try {
      read_input({.where = "read", .required = "a text", .most_bytes = most}, path);
    } catch (const IoError& error) {
      return error.what();
    }
    return "none";
  }

 private:
  fs::path folder_;
};

TEST_F(InputFileTest, IsReadWhole) {
  const std::string text("a\0b\n", 4);
  EXPECT_EQ(read_input({.where = "", .required = ""}, write("a", text)), text);
  EXPECT_EQ(read_input({.where = "", .required = ""}, write("empty", "")), "");
  const std::string large(1 << 18, 'x');
  EXPECT_EQ(read_input({.where = "", .required = ""}, write("large", large)), large);
  fs::create_symlink(path("a"), path("link"));
  EXPECT_EQ(read_input({.where = "", .required = ""}, path("link")), text);
  // A file that states no size.
  EXPECT_THAT(read_input({.where = "", .required = ""}, "/proc/self/status"),
              testing::HasSubstr("VmPeak"));
}

TEST_F(InputFileTest, OthersAreNamedForWhatTheyAre) {
  EXPECT_EQ(refusal(path("none")),
            "read: '" + path("none") + "' does not exist; a text is required");
  EXPECT_EQ(refusal(path("")), "read: '" + path("") + "' is a folder; a text is required");
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path("pipe")), "read: '" + path("pipe") + "' is a pipe; a text is required");
  EXPECT_EQ(refusal("/dev/zero"), "read: '/dev/zero' is a device; a text is required");
  EXPECT_EQ(refusal(write("file", "") + "/x"),
            "read: '" + path("file/x") + "' cannot be read (Not a directory); a text is required");
  fs::create_symlink(path("loop"), path("loop"));
  EXPECT_THAT(refusal(path("loop")), testing::HasSubstr("cannot be read (Too many levels"));
  sockaddr_un address{.sun_family = AF_UNIX};
  std::ranges::copy(path("socket"), address.sun_path);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(refusal(path("socket")),
            "read: '" + path("socket") + "' is a socket; a text is required");
  close(listener);
}

TEST_F(InputFileTest, SizesAreBounded) {
  EXPECT_EQ(refusal(write("a", "12345"), 5), "none");
  EXPECT_EQ(refusal(path("a"), 4),
            "read: '" + path("a") + "' has 5 bytes, more than 4; a text is required");
  // No byte of a large file is read.
  fs::resize_file(path("a"), std::uintmax_t{1} << 40);
  EXPECT_THAT(refusal(path("a")), testing::HasSubstr("has 1099511627776 bytes, more than 100;"));
  EXPECT_THAT(refusal("/proc/self/status"), testing::HasSubstr("has more than 100 bytes;"));
}

}  // namespace
}  // namespace armillary
