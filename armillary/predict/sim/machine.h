// machine.h: the state of a simulated run. Internal to sim; engine.h has the contract.
//
//   event loop:  ends of compute ops, ends of flows, starts of flows after their latency
//                -> ops complete -> batches may start -> compute ops, posted messages
//                -> both ends posted: a flow after the latency, or after those before it
//   then, once per instant: rates of flows (flow_network.h), speed of compute ops
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/predict/sim/bursts.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/flow_network.h"
#include "armillary/predict/sim/fold.h"
#include "armillary/predict/sim/lanes.h"

namespace armillary::sim {

/// The description of a run, apart from its lanes.
struct MachineInput {
  const Topology& topology;
  ShiftFold fold;
  TimelineParts record;
  std::vector<int> placement;  ///< Device of each rank.
  std::string name;            ///< Strategy and pass, for errors.
  bool agrees = true;          ///< Ranks agree on the call before the first message, as in forward.
  unsigned spin_kinds = 0;     ///< Kinds of the main work, a bit for each: see spin_s().
};

/// One run. Requires lanes of ranks 0 .. classes - 1.
class SimMachine {
 public:
  SimMachine(MachineInput input, std::vector<RankLanes> lanes);
  SimMachine(const SimMachine&) = delete;  // It has pointers into itself.
  SimMachine& operator=(const SimMachine&) = delete;
  /// @throws PlanError as simulate().
  Timeline run();

  /// Whether both ends of all messages have them in the same groups.
  static bool grouped_alike(const ShiftFold& fold, const std::vector<RankLanes>& lanes);

 private:
  enum class EventKind : std::uint8_t { Begin, ComputeEnd, CopyEnd, FlowStart, Arrival };
  struct MachineEvent {
    double time;
    std::int64_t number;  ///< Events of one time in the order in which they were made.
    EventKind kind;
    int subject;  ///< Rank or message.
    int version;
    bool operator>(const MachineEvent& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  /// One end of a message that waits for the other.
  struct Post {
    int rank = 0;
    int op = 0;  ///< Index into RankLanes::ops.
  };
  /// Messages from one rank to another on a lane: posts that wait, all of the same direction.
  struct PostQueue {
    SmallVector<Post, 2> posts;
    std::size_t next = 0;
    bool sends = false;
    plan::Rank from = 0;
    plan::Rank to = 0;
    std::vector<Crossing> crossings;
    const MessageRoute* route = nullptr;
    int connection = 0;  ///< Index into connections_, if messages are in order.
  };
  struct PostedMessage {
    Post send;
    Post recv;
    int queue = 0;
    int count = 1;      ///< LaneOp::count
    int flow = -1;      ///< Id in the network.
    int recorded = -1;  ///< Index into Timeline::flows.
    int next = -1;      ///< The next message of the connection.
  };
  /// The messages from one rank to another, of all lanes, if one follows the other: the first has a
  /// flow, the others wait for it.
  struct Connection {
    int first = -1;
    int last = -1;
  };
  /// The place of a lane.
  struct LaneState {
    int next = -1;  ///< The first batch that has not started; -1: none.
    int open = 0;   ///< Messages of started batches that have not arrived.
  };
  /// All that most events need of a rank. Events jump from rank to rank, and a thousand ranks do
  /// not fit into the nearest caches: what is rarely needed is kept elsewhere.
  struct SimRank {
    const LaneOp* ops = nullptr;
    LaneBatch* batches = nullptr;  ///< Their `waits` are counted down.
    const int* followers = nullptr;
    const Port* ports = nullptr;
    LaneState* lanes = nullptr;   ///< By lane.
    const int* queues = nullptr;  ///< By port.
    int lane_count = 0;
    // Compute lane.
    int computing = -1;  ///< Index into ops; -1: idle.
    double began = 0;
    double left = 0;  ///< Seconds of it at full speed that are left at `since`.
    double since = 0;
    double slowdown = 1;
    double end = 0;     ///< End of it at the present speed.
    double queued = 0;  ///< Time of its event, which may come too early, never too late.
    int version = 0;
    int copying = 0;  ///< Messages that the rank copies or will (copies_).
    // Messages.
    int posted = 0;
    int sending = 0;  ///< Flows.
    int receiving = 0;
    bool gated = false;  ///< No message starts before all ranks agree.
    bool dirty = false;  ///< The slowdown may have changed.
    // Sums of RankTimeline until `accounted`.
    double accounted = 0;
    double compute_s = 0;
    double messages_s = 0;
    double exposed_s = 0;
    double end_s = 0;
  };

  /// The messages of a port: class of the sender, distance to the receiver, lane.
  using PostQueueKey = std::tuple<int, int, int>;
  static PostQueueKey key_of(const ShiftFold& fold, int rank, const Port& port);

  void connect();
  void point_to_lanes();
  double agreement_s() const;
  double spin_s(const SimRank& state) const;
  void begin();
  void fill_crossings(PostQueue& queue) const;
  void wake(int rank, int lane) { ready_.emplace_back(rank, lane); }
  void start_ready();
  void start_batches(int rank, int lane);
  bool can_start(const SimRank& state, int lane) const;
  void compute(int rank, int op);
  void post(int rank, int op);
  void match(int queue, Post send, Post recv, int second);
  bool in_order() const { return input_.topology.cluster().messages.in_order; }
  void take_connection(int message);
  void leave_connection(int message);
  void start_flow(int message);
  void copy_by_a_rank(int message, int second);
  void start_copy(int rank);
  void end_copy(int rank);
  void arrive(int message);
  void complete(int rank, int op);
  void account(SimRank& state);
  void note_flow(int message, int change);
  void note_busy(int change);
  void mark_dirty(int rank);
  static bool is_busy(const SimRank& state) { return state.computing >= 0 || state.copying > 0; }
  double slowdown_of(const SimRank& state) const;
  void set_slowdown(int rank);
  void push_end(int rank);
  void push(EventKind kind, double time, int subject, int version = 0);
  void handle(const MachineEvent& event);
  void settle();
  void check_complete() const;
  int batch_of(int rank, int op) const;
  std::string describe(int rank, int batch) const;
  Timeline result();
  void add_memory(int rank);

  MachineInput input_;
  double now_ = 0;
  FlowNetwork network_;
  Bursts bursts_;
  std::vector<int> orbit_;          ///< By channel: the channel that stands for it.
  std::vector<double> orbit_size_;  ///< By channel that stands for others.
  std::vector<RankLanes> lanes_;
  std::vector<LaneState> lane_states_;  ///< Lanes of all ranks, rank by rank.
  std::vector<int> port_queues_;        ///< Queues of all ports, likewise.
  std::vector<SimRank> ranks_;
  std::vector<std::deque<int>> copies_;  ///< By rank: messages; the first is under way.
  std::vector<RankTimeline> timelines_;  ///< By rank.
  std::vector<PostQueue> queues_;
  std::vector<Connection> connections_;
  std::vector<PostedMessage> messages_;
  std::vector<int> free_messages_;
  std::vector<int> message_of_flow_;
  std::vector<std::pair<int, int>> ready_;  ///< Lanes whose next batch may start: (rank, lane).
  std::vector<int> dirty_;
  int busy_ = 0;  ///< Ranks that compute or copy.
  std::priority_queue<MachineEvent, std::vector<MachineEvent>, std::greater<>> events_;
  std::int64_t event_number_ = 0;
  std::vector<Flow> flows_;
};

}  // namespace armillary::sim
