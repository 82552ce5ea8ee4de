// launch_folder.cpp: the folder that a launcher and the processes of its run share. Endings travel
// as lines through a named pipe in it: short writes to a pipe are not mixed. The launcher removes
// the folder; if it was killed, nobody reads the pipe, and the processes remove it.
#include "armillary/host/launch/launch_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::launch {
namespace {

constexpr const char* kEndings = "/endings";
constexpr const char* kStop = "/stop";
constexpr const char* kFailure = "/failure";
constexpr const char* kRunFolder = "/run_folder";
constexpr const char* kFlight = "/flight";

/// The folder of the run that this process belongs to; empty without one.
std::string own_launch_folder() {
  const char* const folder = std::getenv(kLaunchFolderVariable);
  return folder == nullptr ? "" : folder;
}

/// A named pipe. It is open for reading and writing, so that it lasts whoever comes and goes.
Descriptor make_pipe_at(const std::string& path) {
  if (mkfifo(path.c_str(), 0600) != 0) return {};
  return Descriptor(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
}

// Nobody takes the word out, so every rank finds it, whenever it looks.
void say(const Descriptor& line) {
  const char word = 0;
  [[maybe_unused]] const ssize_t told = write(line.get(), &word, 1);
}

Descriptor open_line(const char* name) {
  const std::string folder = own_launch_folder();
  if (folder.empty()) return {};
  return Descriptor(open((folder + name).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

}  // namespace

LaunchFolder::LaunchFolder() {
  std::error_code error;
  int reason = 0;
  for (const std::string& place :
       {std::string("/dev/shm"), std::filesystem::temp_directory_path(error).string()}) {
    path_ = fmt::format("{}/armillary-{}-{:08x}", place, getpid(), std::random_device{}());
    // Before the folder: this process may be killed between the two.
    guard_.emplace(path_);
    if (mkdir(path_.c_str(), 0700) == 0) break;
    reason = errno;
    guard_.reset();
    path_.clear();
  }
  if (path_.empty()) {
    fail<Error>("launch: no folder can be made in /dev/shm or {}: {}",
                excerpt(std::filesystem::temp_directory_path(error).string()),
                std::strerror(reason));
  }
  endings_ = make_pipe_at(path_ + kEndings);
  stop_ = make_pipe_at(path_ + kStop);
  failure_ = make_pipe_at(path_ + kFailure);
}

LaunchFolder::~LaunchFolder() {
  std::error_code error;  // Nobody is left to be told.
  std::filesystem::remove_all(path_, error);
  guard_.reset();
}

std::string LaunchFolder::run_folder() const {
  std::ifstream stream(path_ + kRunFolder, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void LaunchFolder::ask_to_stop() const {
  say(stop_);
}

void LaunchFolder::tell_failure() const {
  say(failure_);
}

Descriptor open_stop_line() {
  return open_line(kStop);
}

Descriptor open_failure_line() {
  return open_line(kFailure);
}

void tell(const Ending& ending) {
  const std::string folder = own_launch_folder();
  if (folder.empty()) return;
  const Descriptor pipe(open((folder + kEndings).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (!pipe.open()) return;  // The launcher is gone.
  const std::string line = to_line(ending) + "\n";
  [[maybe_unused]] const ssize_t told = write(pipe.get(), line.data(), line.size());
}

void tell_run_folder(const std::string& folder) {
  const std::string launch_folder = own_launch_folder();
  if (launch_folder.empty()) return;
  std::error_code error;
  std::ofstream(launch_folder + kRunFolder, std::ios::binary)
      << std::filesystem::absolute(folder, error).string();
}

std::string own_flight_folder() {
  const std::string folder = own_launch_folder();
  return folder.empty() ? "" : folder + kFlight;
}

std::string to_line(const Ending& ending) {
  return fmt::format("{} {} {} {:d} {:d} {} {}", ending.pid, ending.code, ending.signal,
                     ending.stopped, ending.suspended, ending.host, ending.label);
}

std::optional<Ending> parse_ending(const std::string& line) {
  std::istringstream stream(line);
  Ending ending;
  if (!(stream >> ending.pid >> ending.code >> ending.signal >> ending.stopped >>
        ending.suspended >> ending.host)) {
    return {};
  }
  std::getline(stream >> std::ws, ending.label);
  return ending;
}

}  // namespace armillary::launch
