// trace_events.cpp: events by their letter: M names a process or a thread, X is a slice with its
// length, C is a counter. The list is behind a pointer, so the header needs no JSON.
#include "armillary/core/trace_events.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "armillary/core/json_text.h"

namespace armillary {
namespace {
using TraceJson = nlohmann::ordered_json;
constexpr double kMicrosecond = 1e-6;
}  // namespace

struct TraceEvents::Events {
  TraceJson list = TraceJson::array();
};

TraceEvents::TraceEvents() : events_(std::make_unique<Events>()) {}
TraceEvents::~TraceEvents() = default;

void TraceEvents::name_rank(int rank, const std::vector<int>& lanes) {
  const auto add_name = [&](const char* what, int lane, const std::string& name) {
    events_->list.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}});
  };
  add_name("process_name", 0, fmt::format("rank {}", rank));
  for (const int lane : lanes) {
    add_name("thread_name", lane, lane == 0 ? "compute" : fmt::format("messages {}", lane));
  }
}

void TraceEvents::add(const Slice& slice) {
  TraceJson arguments = TraceJson::object();
  for (const auto& [name, value] : slice.arguments) arguments[std::string(name)] = value;
  events_->list.push_back({{"ph", "X"},
                           {"name", slice.name},
                           {"cat", slice.message ? "message" : "compute"},
                           {"pid", slice.rank},
                           {"tid", slice.lane},
                           {"ts", slice.start_s / kMicrosecond},
                           {"dur", (slice.end_s - slice.start_s) / kMicrosecond},
                           {"args", std::move(arguments)}});
}

void TraceEvents::add_memory(int rank, double time_s, std::int64_t bytes) {
  events_->list.push_back({{"ph", "C"},
                           {"name", "slots"},
                           {"pid", rank},
                           {"ts", time_s / kMicrosecond},
                           {"args", {{"bytes", bytes}}}});
}

std::string TraceEvents::to_json() const {
  return json_text({{"displayTimeUnit", "ms"}, {"traceEvents", events_->list}});
}

}  // namespace armillary
