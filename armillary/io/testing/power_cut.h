// power_cut.h: the real file system with a power cut at a chosen call.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "armillary/io/file_system.h"

namespace armillary::io {

/// Exit code of a process whose power was cut.
inline constexpr int kPowerCut = 77;

/// The state of the disk after a cut, with regard to calls that no later sync covers.
enum class Unsynced : std::uint8_t {
  Kept,  ///< All of them happened; of the call that is cut, half of the bytes are written.
  Lost,  ///< None of them happened: bytes, new and removed entries and renames are undone.
};

/// Counts calls from 1 and ends the process by _Exit(kPowerCut) at one of them, for children of a
/// test. Threads: one at a time.
class PowerCut : public FileSystem {
 public:
  /// `cut_at` 0: never. `trash` is a folder that is there, for what may have to come back.
  PowerCut(std::int64_t cut_at, Unsynced unsynced, std::string trash);

  std::unique_ptr<OutputFile> create(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;

 private:
  friend class CutFile;

  /// A call that no sync covers yet.
  struct UnsyncedCall {
    std::string path;
    std::string covered_by;  ///< The file or folder whose sync makes it last.
    std::function<void(const std::string& path)> undo;
    std::string renamed_from = {};  ///< The old name, if the call is a rename.
    bool removes = false;
  };

  /// Begins a call, and ends the process if it is the one. `half` does half of a write.
  void count(const std::function<void()>& half = [] {});
  /// An entry of a folder has changed.
  void entry_changed(UnsyncedCall call);
  void settle(const std::string& covered_by);
  /// Moves or drops the calls below the path of a rename or a removal that lasts.
  void settle_below(const UnsyncedCall& lasting);

  std::int64_t cut_at_;
  Unsynced unsynced_;
  std::string trash_;
  std::int64_t calls_ = 0;
  std::list<UnsyncedCall> pending_;
};

}  // namespace armillary::io
