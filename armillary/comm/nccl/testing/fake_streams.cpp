// fake_streams.cpp: the thread that runs the work of all streams: late, in a random order by a
// seed, and in order within a stream. An event is done when the work before it in its stream is.
#include "armillary/comm/nccl/testing/fake_streams.h"

#include <algorithm>
#include <cstring>

#include "armillary/core/error.h"

namespace armillary::comm {
namespace fake {
namespace {

void match(std::deque<std::shared_ptr<MessageSide>>& sends,
           std::deque<std::shared_ptr<MessageSide>>& receives) {
  while (!sends.empty() && !receives.empty()) {
    const auto from = sends.front()->bytes;
    const auto to = receives.front()->bytes;
    if (from.size() != to.size()) return;  // As undefined as in NCCL: here it hangs.
    std::memcpy(to.data(), from.data(), from.size());
    sends.front()->is_complete = receives.front()->is_complete = true;
    sends.pop_front();
    receives.pop_front();
  }
}

std::vector<std::byte> result_of(const std::vector<StreamTask*>& tasks, const StreamTask& mine) {
  const FakeCollective& own = *mine.collective;
  std::vector<std::byte> result(static_cast<std::size_t>(own.to.bytes()));
  if (own.kind == FakeCollective::CollectiveKind::Broadcast ||
      own.kind == FakeCollective::CollectiveKind::AllGather) {
    std::vector<std::byte> all;
    for (const StreamTask* task : tasks) {
      const Array& from = task->collective->from;
      const bool taken = own.kind == FakeCollective::CollectiveKind::AllGather ||
                         task->kernel_of->rank == own.root;
      if (taken) all.insert(all.end(), from.data, from.data + from.bytes());
    }
    return all;
  }
  const bool scatter = own.kind == FakeCollective::CollectiveKind::ReduceScatter;
  std::vector<Array> addends;
  for (const StreamTask* task : tasks) {
    Array part = task->collective->from;
    if (scatter) part.data += mine.kernel_of->rank * own.to.bytes();
    part.count = own.to.count;
    part.device = kHost;
    addends.push_back(part);
  }
  reduce(own.reduction, addends, {result.data(), own.to.count, own.to.dtype});
  return result;
}

bool run_collective(Clique& clique, int world, const StreamTask& mine) {
  if (static_cast<int>(clique.collectives.size()) < world) return false;
  std::vector<StreamTask*> tasks = std::exchange(clique.collectives, {});
  std::ranges::sort(tasks, {}, [](const StreamTask* task) { return task->kernel_of->rank; });
  // Results before any of them is written, as they may lie in the arguments.
  std::vector<std::vector<std::byte>> results;
  results.reserve(tasks.size());
  for (const StreamTask* task : tasks) results.push_back(result_of(tasks, *task));
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    std::memcpy(tasks[i]->collective->to.data, results[i].data(), results[i].size());
    tasks[i]->collective_is_complete = true;
  }
  return mine.collective_is_complete;
}

}  // namespace
}  // namespace fake

using fake::Clique;
using fake::Clock;
using fake::Comm;
using fake::Stream;
using fake::StreamTask;

FakeGpus::State::State(int world_of_all, const FakeGpuOptions& settings)
    : world(world_of_all), options(settings), groups(world_of_all), random_(settings.seed) {
  thread_ = std::thread([this] { run(); });
}

FakeGpus::State::~State() {
  {
    const auto own = lock();
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeGpus::State::expect_ready(const Comm& comm, const char* call) {
  if (comm.starting) break_rule(fmt::format("{} before the last call has ended", call));
  if (comm.aborted) break_rule(fmt::format("{} after an abort", call));
}
Clock::time_point FakeGpus::State::later() {
  std::uniform_int_distribution<int> delay(0, options.most_delay_us);
  return Clock::now() + std::chrono::microseconds(delay(random_));
}
void FakeGpus::State::add(Stream* stream, std::unique_ptr<StreamTask> task) {
  task->not_before = later();
  stream->tasks.push_back(std::move(task));
  wake();
}
void FakeGpus::State::add(Stream* stream, std::function<void()> run) {
  auto task = std::make_unique<StreamTask>();
  task->run = std::move(run);
  add(stream, std::move(task));
}
bool FakeGpus::State::has_failed(int device) const {
  return device == options.failing_rank && groups[device] >= options.groups_until_failure;
}
bool FakeGpus::State::runs_kernel_of(const std::set<const Comm*>& comms) const {
  return std::ranges::any_of(streams, [&](const auto& stream) {
    return std::ranges::any_of(stream->tasks,
                               [&](const auto& task) { return comms.contains(task->kernel_of); });
  });
}

void FakeGpus::State::forget(Comm* comm) {
  const auto place =
      std::ranges::find_if(comms, [&](const auto& one) { return one.get() == comm; });
  comms_gone.push_back(std::move(*place));
  comms.erase(place);
}

void FakeGpus::State::run() {
  auto own = lock();
  while (!stop_) {
    bool moved = false;
    for (const auto& comm : comms) moved |= progress(*comm);
    // Streams in another order each time.
    std::vector<Stream*> order;
    order.reserve(streams.size());
    for (const auto& stream : streams) order.push_back(stream.get());
    std::ranges::shuffle(order, random_);
    for (Stream* stream : order) moved |= progress(*stream);
    if (!moved) changed_.wait_for(own, std::chrono::microseconds(100));
    // Ranks that wait for the lock get it.
    own.unlock();
    std::this_thread::yield();
    own.lock();
  }
}

bool FakeGpus::State::progress(Comm& comm) {
  if (!comm.starting || comm.aborted || Clock::now() < comm.not_before) return false;
  Clique& clique = *comm.clique;
  if (!comm.is_made) {
    if (static_cast<int>(clique.comms.size()) < comm.world) return false;
    comm.is_made = true;
  } else if (comm.ending) {
    if (clique.ended < comm.world) return false;
  } else if (comm.kernel) {
    for (const auto& side : comm.kernel->sides) {
      const auto peer = clique.comms.find(side->peer);
      if (side->peer != comm.rank && !peer->second->knocked.contains(comm.rank)) return false;
    }
    add(comm.stream, std::move(comm.kernel));
  }
  comm.starting = false;
  return true;
}

bool FakeGpus::State::progress(Stream& stream) {
  if (stream.tasks.empty()) return false;
  StreamTask& task = *stream.tasks.front();
  if (Clock::now() < task.not_before) return false;
  if (task.kernel_of == nullptr) {
    task.run();
  } else if (!task.kernel_of->aborted && !is_over(task)) {
    return false;
  }
  stream.tasks.pop_front();
  changed_.notify_all();
  return true;
}

bool FakeGpus::State::is_over(StreamTask& task) {
  Comm& comm = *task.kernel_of;
  Clique& clique = *comm.clique;
  if (!task.active) {
    task.active = true;
    for (const auto& side : task.sides) {
      (side->sends ? clique.sends[{comm.rank, side->peer}]
                   : clique.receives[{side->peer, comm.rank}])
          .push_back(side);
    }
    if (task.collective) clique.collectives.push_back(&task);
  }
  if (task.collective)
    return task.collective_is_complete || fake::run_collective(clique, comm.world, task);
  for (const auto& side : task.sides) {
    const std::pair pair =
        side->sends ? std::pair(comm.rank, side->peer) : std::pair(side->peer, comm.rank);
    fake::match(clique.sends[pair], clique.receives[pair]);
  }
  return std::ranges::all_of(task.sides, [](const auto& side) { return side->is_complete; });
}

}  // namespace armillary::comm
