// run_lock.cpp: flock() on a file that the holder removes. A lock counts only if the file that was
// opened is still the one at the path.
#include "armillary/io/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/core/user_text.h"

namespace armillary::io {
namespace {

/// Ranks outlive a launcher that was killed, but not for so long.
constexpr std::chrono::seconds kGrace(2);

/// " (host H, pid P)" of the run that wrote into the file, or nothing: it may be about to.
std::string holder_of(const std::string& path) {
  std::string holder;
  std::getline(std::ifstream(path), holder);
  const std::size_t blank = holder.find(' ');
  if (blank == std::string::npos) return "";
  return fmt::format(" (host {}, pid {})", holder.substr(0, blank), holder.substr(blank + 1));
}

}  // namespace

RunLock::RunLock(const std::string& folder)
    : path_((std::filesystem::path(folder) / "lock").string()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail<IoError>("write: folder {} cannot be made ({}); a folder that can be written is required",
                  excerpt(folder), error.message());
  }
  const auto deadline = std::chrono::steady_clock::now() + kGrace;
  while (!take()) {
    if (std::chrono::steady_clock::now() > deadline) {
      fail<IoError>(
          "run folder: another run{} writes into {}; another folder is required, or the end of "
          "that run",
          holder_of(path_), excerpt(folder));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool RunLock::take() {
  file_ = Descriptor(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file_.open()) {
    fail<IoError>("write: {} cannot be made ({}); a folder that can be written is required",
                  excerpt(path_), std::strerror(errno));
  }
  if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno != EWOULDBLOCK;  // Others say that there are no locks here.
  }
  // The run that held it may have removed the file after it was opened here.
  struct stat opened = {};
  struct stat there = {};
  const bool is_there = fstat(file_.get(), &opened) == 0 && stat(path_.c_str(), &there) == 0 &&
                        opened.st_ino == there.st_ino && opened.st_dev == there.st_dev;
  if (!is_there) return false;
  // A disk that is full costs the text, not the lock.
  const std::string text = fmt::format("{} {}", this_host(), getpid());
  [[maybe_unused]] const int emptied = ftruncate(file_.get(), 0);
  [[maybe_unused]] const ssize_t written = pwrite(file_.get(), text.data(), text.size(), 0);
  return true;
}

RunLock::~RunLock() {
  unlink(path_.c_str());  // Before it is closed: whoever opens it later opens another file.
}

}  // namespace armillary::io
