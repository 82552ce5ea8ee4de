// timeline.h: a plan with times: the answer of the engine.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::sim {

/// Start and end of one op of a rank. A message starts when it is posted, and ends when it has
/// arrived.
struct OpTime {
  double start_s = 0;
  double end_s = 0;
  bool operator==(const OpTime&) const = default;
};

/// The rate of a flow from a time on.
struct FlowRate {
  double time_s = 0;
  double bytes_per_s = 0;
};

/// One message in flight.
struct Flow {
  plan::Rank from = 0;
  plan::Rank to = 0;
  int send = 0;  ///< Index of the op in the program of `from`.
  int recv = 0;  ///< Index of the op in the program of `to`.
  std::int64_t bytes = 0;
  double passed_bytes = 0;  ///< Part that passes at once (LinkRule::burst_bytes).
  double matched_s = 0;     ///< Both ends are posted; the latency follows.
  double start_s = 0;       ///< The first byte leaves.
  double end_s = 0;
  std::vector<FlowRate> rates;  ///< Changes of the rate of the other bytes, from start_s on.
};

/// Bytes held in slots of a rank from a time on.
struct MemoryUse {
  double time_s = 0;
  std::int64_t bytes = 0;
};

/// One rank in time.
struct RankTimeline {
  double end_s = 0;                                          ///< The last op ends.
  double compute_s = 0;                                      ///< The compute lane works.
  std::array<double, plan::kMostKinds> compute_by_kind_s{};  ///< The same, by kind of op.
  double messages_s = 0;  ///< At least one message of the rank is posted and has not arrived.
  double exposed_s = 0;   ///< The same, while the compute lane is idle.
  double idle_s = 0;      ///< Neither; compute_s + exposed_s + idle_s = end_s.
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t slot_bytes = 0;      ///< Sum of the slots that are not the caller's.
  std::int64_t external_bytes = 0;  ///< Tensors of the caller: inputs, results, saved tiles.
  std::int64_t peak_bytes = 0;      ///< Most bytes of slots that hold a live tile at one time.
  std::vector<OpTime> ops;          ///< By index of the op; if TimelineParts::ops.
  std::vector<MemoryUse> memory;    ///< Live tiles of slots; if TimelineParts::ops.
};

/// One channel of the topology.
struct ChannelUse {
  std::string name;
  double bytes_per_s = 0;  ///< Its capacity.
  double bytes = 0;        ///< Moved in the whole run.
  double busy_share = 0;   ///< bytes / (capacity * end of the timeline); above 1 by bursts.
};

/// A simulated pass.
struct Timeline {
  const plan::Vocabulary* words = &plan::attention_words();  ///< The kinds of ops.
  std::string strategy;
  plan::Pass pass = plan::Pass::Forward;
  std::string cluster;
  int world = 0;
  /// Ranks that were simulated; each stands for world / ranks.size() ranks that are alike. Rank r
  /// of the world behaves as ranks[r % ranks.size()].
  std::vector<RankTimeline> ranks;
  double end_s = 0;                  ///< The last op of any rank ends.
  std::vector<ChannelUse> channels;  ///< Those that moved bytes.
  std::vector<Flow> flows;           ///< If TimelineParts::flows; in order of their start.
  std::int64_t flow_events = 0;      ///< Starts and ends of flows that were simulated.
  /// Seconds of wall time that all events took; the rest of a call makes programs. Not in to_json.
  double event_wall_s = 0;
};

/// The timeline as one JSON object. Times are in seconds. docs/simulation.md lists the keys.
std::string to_json(const Timeline& timeline);

}  // namespace armillary::sim
