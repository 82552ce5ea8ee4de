// Calls of POSIX, one for each method; short writes and interrupted ones go on. The functions below
// are made of the methods, so that a FileSystem of a test sees their calls.
#include "armillary/io/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "armillary/core/descriptor.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;

/// @throws IoError with the reason of the last system call. `what` is "written", "made", ..
[[noreturn]] void refuse_path(const std::string& path, std::string_view what) {
  const std::string reason = std::strerror(errno);
  fail<IoError>("write: {} cannot be {} ({}); a path that can be written is required",
                excerpt(path), what, reason);
}

/// A file that is being written. Errors of close() are not looked at: sync() has seen them.
class RealFile : public OutputFile {
 public:
  explicit RealFile(std::string path)
      : path_(std::move(path)),
        // O_NONBLOCK: a pipe that nobody reads is refused, not waited for.
        file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666)) {
    if (!file_.open()) refuse_path(path_, "made");
  }

  void write(std::span<const std::byte> bytes) override {
    // A call may write less than it is given: at most 2 GiB, and up to where the disk is full.
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) refuse_path(path_, "written");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void sync() override {
    if (fsync(file_.get()) != 0) refuse_path(path_, "synced");
  }

 private:
  std::string path_;
  Descriptor file_;
};

/// The file system of the machine. It has no state.
class RealFileSystem : public FileSystem {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<RealFile>(path);
  }

  void make_folder(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return;
    // A folder that is there already is as good as a new one; a file of that name is not.
    struct stat status {};
    const int reason = errno;
    if (reason == EEXIST && stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
    errno = reason;
    refuse_path(path, "made");
  }

  void sync_folder(const std::string& path) override {
    const Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.open()) refuse_path(path, "synced");
    // EINVAL: a file system that has no sync of folders, and needs none.
    if (fsync(folder.get()) != 0 && errno != EINVAL) refuse_path(path, "synced");
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) refuse_path(from, "renamed to " + excerpt(to));
  }

  void remove(const std::string& path) override {
    if (::remove(path.c_str()) != 0 && errno != ENOENT) refuse_path(path, "removed");
  }
};

}  // namespace

FileSystem& real_file_system() {
  static RealFileSystem files;
  return files;
}

void make_folders(FileSystem& files, const std::string& path) {
  std::error_code error;
  const fs::path folder(path);
  if (folder.empty() || fs::is_directory(folder, error)) return;
  const fs::path parent = folder.parent_path();
  // Each new folder is an entry of its parent, and lasts only when the parent is synced.
  if (parent != folder) make_folders(files, parent.string());
  files.make_folder(path);
  files.sync_folder(parent.empty() ? "." : parent.string());
}

void write_synced(FileSystem& files, const std::string& path, std::string_view text) {
  const auto file = files.create(path);
  file->write(std::as_bytes(std::span(text)));
  file->sync();
}

void remove_tree(FileSystem& files, const std::string& path) {
  std::error_code error;
  // Links are removed, not followed. Entries are collected before any of them is removed, because
  // an iterator over a folder that changes may miss some.
  std::vector<std::string> entries;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    for (fs::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      entries.push_back(entry->path().string());
    }
  }
  for (const std::string& entry : entries) remove_tree(files, entry);
  files.remove(path);
}

}  // namespace armillary::io
