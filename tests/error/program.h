// program.h: runs the real program as a child process.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace armillary::error {

/// A folder that is empty at first and gone at the end.
class Folder {
 public:
  Folder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("armillary_error_test_{}_{}", getpid(), count++);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream stream(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::filesystem::path path_;
};

struct Result {
  int code = -1;  ///< -1: killed by a signal.
  std::string out;
  std::string err;
};

inline std::string quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

/// `input` is what the program reads from standard input. Stops it, with code 124, after a minute:
/// what is refused is refused at once.
inline Result run(const std::vector<std::string>& arguments, const std::string& input = "") {
  const Folder folder;
  folder.write("in", input);
  std::string command = "timeout 60 " + quoted(ARMILLARY_PROGRAM);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  command += fmt::format(" <{} >{} 2>{}", quoted(folder.path("in")), quoted(folder.path("out")),
                         quoted(folder.path("err")));
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, folder.read("out"), folder.read("err")};
}

/// Expects exit code 2, nothing on standard output, and on standard error one line that matches.
inline void expect_refused(const std::vector<std::string>& arguments,
                           const testing::Matcher<const std::string&>& message,
                           const std::string& input = "") {
  const Result result = run(arguments, input);
  SCOPED_TRACE(fmt::format("armillary {}", fmt::join(arguments, " ")));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  ASSERT_THAT(result.err, testing::StartsWith("armillary: "));
  ASSERT_EQ(result.err.find('\n'), result.err.size() - 1) << "more than one line: " << result.err;
  EXPECT_THAT(result.err.substr(11, result.err.size() - 12), message);
}

}  // namespace armillary::error
