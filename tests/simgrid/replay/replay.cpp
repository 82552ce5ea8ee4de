// A lane is an actor that starts its batches in order. It waits on a semaphore for the ops that its
// batch depends on, and on another for its own messages, if batches are serial.
#include "tests/simgrid/replay.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <simgrid/s4u.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/plan/program/hazards.h"
#include "armillary/predict/sim/cost.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::second {
namespace {

namespace s4u = simgrid::s4u;

/// Ops of one lane that start together.
struct ReplayBatch {
  std::vector<int> ops;
  int waits = 0;  ///< Ops of other batches that are not done yet.
  s4u::SemaphorePtr ready = s4u::Semaphore::create(0);
  int open = 0;  ///< Own ops that are not done yet.
  s4u::SemaphorePtr completion = s4u::Semaphore::create(0);
};

/// The program of one rank while it runs.
struct ReplayRank {
  const plan::RankProgram* program = nullptr;
  std::map<plan::Lane, std::deque<ReplayBatch>> lanes;  // A deque: batches do not move.
  std::vector<ReplayBatch*> batch_of;                   ///< By op.
  std::vector<std::vector<ReplayBatch*>> followers;     ///< By op: batches that wait for it.
};

/// One end of a message that waits for the other.
struct WaitingEnd {
  int rank = 0;
  int op = 0;
};

/// The plan as actors.
class PlanReplay {
 public:
  PlanReplay(const plan::Plan& plan, const sim::Cluster& cluster)
      : plan_(plan),
        cluster_(cluster),
        topology_(cluster, plan.problem.world),
        costs_(cluster.device, plan.problem),
        counter_(plan.problem, plan.blocks, costs_.needs_edges()),
        ranks_(plan.ranks.size()) {}

  double run() {
    make_platform();
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      make_rank(static_cast<int>(r));
      for (auto& [lane, batches] : ranks_[r].lanes) {
        s4u::Actor::create(
            fmt::format("r{}.{}", r, lane), hosts_[r],
            [this, r, &batches = batches] { run_lane(static_cast<int>(r), batches); });
      }
    }
    s4u::Engine::get_instance()->run();
    return left_ == 0 ? end_s_ : -1;
  }

 private:
  /// Hosts for devices, and links without latency, which messages wait for by themselves: SimGrid
  /// gives flows over links with latency unequal shares.
  void make_platform() {
    s4u::NetZone* const zone = s4u::create_full_zone("cluster");
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      hosts_.push_back(zone->create_host(fmt::format("host{}", r), 1e9)->seal());
    }
    std::vector<s4u::Link*> links;
    for (const sim::Channel& channel : topology_.channels()) {
      links.push_back(zone->create_link(channel.name, channel.bytes_per_s)->set_latency(0)->seal());
    }
    for (std::size_t from = 0; from < hosts_.size(); ++from) {
      for (std::size_t to = 0; to < hosts_.size(); ++to) {
        if (from == to) continue;
        std::vector<s4u::LinkInRoute> way;
        const sim::MessageRoute& route =
            topology_.route(static_cast<int>(from), static_cast<int>(to));
        way.reserve(route.channels.size());
        for (const int channel : route.channels) way.emplace_back(links[channel]);
        zone->add_route(hosts_[from]->get_netpoint(), hosts_[to]->get_netpoint(), nullptr, nullptr,
                        way, false);
      }
    }
    zone->seal();
  }

  /// Cuts a program into lanes and batches, and finds who waits for whom.
  void make_rank(int r) {
    ReplayRank& rank = ranks_[r];
    const plan::RankProgram& program = plan_.ranks[r];
    const std::size_t count = program.ops.size();
    rank.program = &program;
    rank.batch_of.resize(count);
    rank.followers.resize(count);
    left_ += count;
    for (std::size_t i = 0; i < count; ++i) {
      const plan::Op& op = program.ops[i];
      std::deque<ReplayBatch>& lane = rank.lanes[op.lane];
      const bool joins =
          !lane.empty() && op.is_comm() && program.ops[lane.back().ops.back()].step == op.step;
      if (!joins) lane.emplace_back();
      lane.back().ops.push_back(static_cast<int>(i));
      ++lane.back().open;
      rank.batch_of[i] = &lane.back();
    }
    const auto waits = plan::dependencies(program);
    for (std::size_t i = 0; i < count; ++i) {
      for (const int earlier : waits[i]) {
        if (rank.batch_of[earlier] == rank.batch_of[i]) continue;
        rank.followers[earlier].push_back(rank.batch_of[i]);
        ++rank.batch_of[i]->waits;
      }
    }
  }

  void run_lane(int r, std::deque<ReplayBatch>& batches) {
    for (ReplayBatch& batch : batches) {
      if (batch.waits > 0) batch.ready->acquire();
      for (const int i : batch.ops) {
        const plan::Op& op = ranks_[r].program->ops[i];
        if (op.is_comm()) {
          post(r, i);
        } else {
          s4u::this_actor::sleep_for(costs_.seconds(counter_.of(*ranks_[r].program, op)));
          complete(r, i);
        }
      }
      if (cluster_.messages.serial && batch.open > 0) batch.completion->acquire();
    }
  }

  /// The n-th send of a rank to another on a lane meets the n-th receive.
  void post(int r, int i) {
    const plan::Op& op = ranks_[r].program->ops[i];
    const bool sends = op.kind == plan::OpKind::Send;
    const auto key = std::tuple(sends ? r : op.peer, sends ? op.peer : r, op.lane);
    std::deque<WaitingEnd>& others = posted_[{key, !sends}];
    if (others.empty()) {
      posted_[{key, sends}].push_back({r, i});
      return;
    }
    const WaitingEnd other = others.front();
    others.pop_front();
    const WaitingEnd mine{r, i};
    const WaitingEnd from = sends ? mine : other;
    const WaitingEnd to = sends ? other : mine;
    s4u::SemaphorePtr before;
    s4u::SemaphorePtr completion;
    if (cluster_.messages.in_order) {
      completion = s4u::Semaphore::create(0);
      before = std::exchange(last_[{from.rank, to.rank}], completion);
    }
    s4u::Actor::create("message", hosts_[from.rank], [this, from, to, before, completion] {
      carry(from, to, before, completion);
    });
  }

  /// A message waits for the one before it, and tells the next, if they follow each other.
  void carry(const WaitingEnd& from, const WaitingEnd& to, const s4u::SemaphorePtr& before,
             const s4u::SemaphorePtr& completion) {
    const sim::MessageRoute& route = topology_.route(from.rank, to.rank);
    const plan::RankProgram& program = *ranks_[from.rank].program;
    const std::int64_t bytes = bytes_of(plan_.problem, plan_.blocks, program, program.ops[from.op]);
    s4u::this_actor::sleep_for(cluster_.messages.latency_s + route.latency_s);
    if (before != nullptr) before->acquire();
    s4u::Comm::sendto(hosts_[from.rank], hosts_[to.rank], static_cast<std::uint64_t>(bytes));
    if (completion != nullptr) completion->release();
    complete(from.rank, from.op);
    complete(to.rank, to.op);
  }

  void complete(int r, int i) {
    ReplayRank& rank = ranks_[r];
    for (ReplayBatch* const follower : rank.followers[i]) {
      if (--follower->waits == 0) follower->ready->release();
    }
    if (--rank.batch_of[i]->open == 0) rank.batch_of[i]->completion->release();
    end_s_ = std::max(end_s_, s4u::Engine::get_clock());
    --left_;
  }

  const plan::Plan& plan_;
  const sim::Cluster& cluster_;
  sim::Topology topology_;
  sim::DeviceCosts costs_;
  sim::WorkCounter counter_;
  std::vector<ReplayRank> ranks_;
  std::vector<s4u::Host*> hosts_;
  std::map<std::pair<std::tuple<int, int, int>, bool>, std::deque<WaitingEnd>> posted_;
  std::map<std::pair<int, int>, s4u::SemaphorePtr> last_;  ///< Message by sender and receiver.
  std::size_t left_ = 0;                                   ///< Ops that are not done.
  double end_s_ = 0;
};

/// Pure max-min sharing: no factors of TCP, no acknowledgements, times to a nanosecond: ends of
/// flows that are alike are one event.
double run_simgrid(const plan::Plan& plan, const sim::Cluster& cluster) {
  std::vector<std::string> texts{"second_opinion",
                                 "--log=root.thres:critical",
                                 "--cfg=network/model:CM02",
                                 "--cfg=network/latency-factor:1",
                                 "--cfg=network/bandwidth-factor:1",
                                 "--cfg=network/weight-S:0",
                                 "--cfg=network/TCP-gamma:0",
                                 "--cfg=network/crosstraffic:0",
                                 "--cfg=surf/precision:1e-9",
                                 "--cfg=contexts/stack-size:128"};
  std::vector<char*> arguments;
  arguments.reserve(texts.size() + 1);
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  int count = static_cast<int>(texts.size());
  const s4u::Engine engine(&count, arguments.data());
  return PlanReplay(plan, cluster).run();
}

}  // namespace

std::optional<double> simgrid_end_s(const plan::Plan& plan, const sim::Cluster& cluster) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const double end_s = run_simgrid(plan, cluster);
    const bool written = write(ends[1], &end_s, sizeof end_s) == sizeof end_s;
    std::_Exit(written ? 0 : 1);
  }
  close(ends[1]);
  double end_s = -1;
  if (read(ends[0], &end_s, sizeof end_s) != sizeof end_s) end_s = -1;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return end_s;
}

}  // namespace armillary::second
