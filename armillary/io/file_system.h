// file_system.h: the calls by which files and folders are written, one by one, so that a writer can
// say in which order they reach the disk.
//
//   create -> write.. -> sync   then   sync_folder of its folder   then   rename, sync_folder
//
// A power cut may undo every call that no later sync covers: the bytes of a file since its last
// sync, the entries of a folder since its last sync_folder. Tests put another FileSystem in the
// place of the real one, which cuts the power at any call (io/testing/power_cut.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace armillary::io {

/// A new file that is being written. It is closed when the object dies.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  virtual ~OutputFile() = default;

  /// Appends all of the bytes.
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// Returns when everything written is on the disk.
  virtual void sync() = 0;
};

/// Every method throws IoError that names the path, the call and the reason, for example `write:
/// a/b cannot be written (No space left on device); ..`. Threads: any.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Makes or empties the file at `path`.
  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  /// Makes the folder; one that is there already is no error. Its parent must exist.
  virtual void make_folder(const std::string& path) = 0;
  /// Returns when the entries of the folder are on the disk.
  virtual void sync_folder(const std::string& path) = 0;
  /// Renames a file or a folder. A file replaces a file; a folder needs a free name.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Removes a file or an empty folder; nothing at `path` is no error.
  virtual void remove(const std::string& path) = 0;
};

/// The file system of this machine. It has no state.
FileSystem& real_file_system();

/// Makes the folder and those above it that are missing, each on the disk before the next.
void make_folders(FileSystem& files, const std::string& path);

/// Writes a file in one piece and syncs it. Its folder is not synced.
void write_synced(FileSystem& files, const std::string& path, std::string_view text);

/// Removes a file, or a folder with everything in it; nothing at `path` is no error. Links are
/// removed, not followed.
void remove_tree(FileSystem& files, const std::string& path);

}  // namespace armillary::io
