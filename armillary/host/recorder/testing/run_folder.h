// run_folder.h: for tests: a folder of a run that is empty at first and gone at the end.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "armillary/host/recorder/recorder.h"

namespace armillary::recorder {

class RunFolder {
 public:
  RunFolder() {
    static std::atomic<int> count = 0;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("armillary_flight_{}_{}", getpid(), count++);
    std::filesystem::create_directories(path_);
  }
  ~RunFolder() { std::filesystem::remove_all(path_); }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string file_of(int rank) const { return flight_path(path(), rank); }

 private:
  std::filesystem::path path_;
};

}  // namespace armillary::recorder
