// trace_events.h: a run, simulated or measured, in the trace format of Chrome, which Perfetto
// (ui.perfetto.dev) and chrome://tracing read.
//
// A rank is a process, a lane is a thread, an op is a slice. Times are written as microseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace armillary {

/// Collects events and writes them as one JSON object.
class TraceEvents {
 public:
  TraceEvents();
  ~TraceEvents();
  TraceEvents(const TraceEvents&) = delete;
  TraceEvents& operator=(const TraceEvents&) = delete;

  /// One op.
  struct Slice {
    std::string name;
    bool message = false;  ///< Its category: message, or compute.
    int rank = 0;
    int lane = 0;
    double start_s = 0;
    double end_s = 0;
    /// Numbers that are shown for the slice.
    std::vector<std::pair<std::string_view, std::int64_t>> arguments;
  };

  /// The name of a rank, and those of its lanes: `rank 3`; `compute` for lane 0, `messages 1`.
  void name_rank(int rank, const std::vector<int>& lanes);
  void add(const Slice& slice);
  /// Bytes of slots that a rank holds from a time on.
  void add_memory(int rank, double time_s, std::int64_t bytes);

  /// One line without a newline.
  std::string to_json() const;

 private:
  struct Events;
  std::unique_ptr<Events> events_;
};

}  // namespace armillary
