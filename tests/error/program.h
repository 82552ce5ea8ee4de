// program.h: runs command lines of the program, each in a process of its own.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "cli/program.h"

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

struct ProgramRun {
  int code = -1;  ///< -1: killed by a signal.
  std::string out;
  std::string err;
};

inline void redirect(int stream, const std::string& path, int flags) {
  const int file = open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (file < 0 || dup2(file, stream) < 0) std::_Exit(125);
}

inline void redirect_all(const Folder& folder) {
  redirect(STDIN_FILENO, folder.path("in"), O_RDONLY);
  redirect(STDOUT_FILENO, folder.path("out"), O_WRONLY | O_CREAT);
  redirect(STDERR_FILENO, folder.path("err"), O_WRONLY | O_CREAT);
  alarm(60);
}

/// Starts the file of the program.
inline void start_the_file(const std::vector<std::string>& arguments, const Folder& folder) {
  redirect_all(folder);
  std::vector<std::string> words{ARMILLARY_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(ARMILLARY_PROGRAM, argv.data());
  std::_Exit(126);
}

inline void be_the_program(const std::vector<std::string>& arguments, const Folder& folder) {
  redirect_all(folder);
  std::vector<const char*> argv{"armillary"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  const int code = cli::run_program(argc, argv.data(), cli::all_verbs());
  std::fflush(nullptr);
  std::_Exit(code);
}

/// How a child of this process becomes the program.
using Become = void (*)(const std::vector<std::string>& arguments, const Folder& folder);

/// Runs the program with `arguments`, and `input` on standard input, in a fork of this process: a
/// new process would load libtorch for a quarter of a second. Ends it with code -1 after a minute,
/// since bad input has to be refused at once.
inline ProgramRun run(const std::vector<std::string>& arguments, const std::string& input = "",
                      Become become = be_the_program) {
  const Folder folder;
  folder.write("in", input);
  std::fflush(nullptr);  // or the child would print what this process has not yet printed
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) become(arguments, folder);
  int status = 0;
  if (waitpid(child, &status, 0) != child) {
    throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, folder.read("out"), folder.read("err")};
}

/// Whether verbs that need libtorch were built.
inline bool has_torch() {
  return run({"train", "--help"}).err.find("built without") == std::string::npos;
}

/// Expects exit code 2, nothing on standard output, and on standard error one line that matches.
inline void expect_error(const std::vector<std::string>& arguments,
                         const testing::Matcher<const std::string&>& text,
                         const std::string& input = "") {
  const ProgramRun result = run(arguments, input);
  SCOPED_TRACE(fmt::format("armillary {}", fmt::join(arguments, " ")));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  ASSERT_THAT(result.err, testing::StartsWith("armillary: "));
  ASSERT_EQ(result.err.find('\n'), result.err.size() - 1) << "more than one line: " << result.err;
  EXPECT_THAT(result.err.substr(11, result.err.size() - 12), text);
}

}  // namespace armillary::error
