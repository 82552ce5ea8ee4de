// launch_folder.h: the folder of a run that `armillary launch` started, and what its processes tell
// there: which rank has ended first, and where the flight recorder writes.
//
//   /dev/shm/armillary-PID-../    segments and files of the MPI library; removed at the end
//        endings                  a pipe: one line for each rank that has failed
//        stop                     a pipe, empty until all ranks are to stop
//        failure                  a pipe, empty until one has failed
//        run_folder               the run folder of train or bench, when it has begun
//        flight                   the run folder of a bench that was given none
//
// Processes of the run find the folder in the variable ARMILLARY_LAUNCH_FOLDER.
#pragma once

#include <optional>
#include <string>

#include "armillary/core/descriptor.h"
#include "armillary/host/launch/folder_guard.h"
#include "armillary/host/launch/supervisor.h"

namespace armillary::launch {

inline constexpr const char* kLaunchFolderVariable = "ARMILLARY_LAUNCH_FOLDER";

/// The folder, in shared memory, or among temporary files where there is none; it is removed at the
/// end with everything in it, also if this process is killed (folder_guard.h). Open MPI leaves its
/// segments behind when ranks are killed.
class LaunchFolder {
 public:
  /// @throws Error if no folder can be made.
  LaunchFolder();
  LaunchFolder(const LaunchFolder&) = delete;
  LaunchFolder& operator=(const LaunchFolder&) = delete;
  ~LaunchFolder();

  const std::string& path() const { return path_; }
  /// Reads the endings of ranks, without blocking.
  int endings() const { return endings_.get(); }
  /// The run folder that a rank has told, or nothing.
  std::string run_folder() const;
  /// Asks the ranks to stop, also those that have not begun: it stays said.
  void ask_to_stop() const;
  /// Tells the ranks that one of them has failed, in the same way.
  void tell_failure() const;

 private:
  std::string path_;
  std::optional<FolderGuard> guard_;
  Descriptor endings_;
  Descriptor stop_;
  Descriptor failure_;
};

// For processes of a run; they do nothing in others.

/// Tells how a rank has ended.
void tell(const Ending& ending);
/// Becomes readable when this process is to stop; not open in others.
Descriptor open_stop_line();
/// Becomes readable when a rank has failed; not open in others.
Descriptor open_failure_line();
/// Tells the run folder, in which every rank has a flight recorder by now.
void tell_run_folder(const std::string& folder);
/// A run folder for flight recorders that the user has not asked for; empty in other processes.
std::string own_flight_folder();

/// An ending as a line without its end, and back; nothing if the line is none.
std::string to_line(const Ending& ending);
std::optional<Ending> parse_ending(const std::string& line);

}  // namespace armillary::launch
