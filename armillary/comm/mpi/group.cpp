// Messages between processes. Sends are given to MPI when they start. Receives wait in queues of
// this rank until MPI_Improbe has found their message, and only then does MPI know their memory.
// All progress is made by progress(), under one lock: in calls that start, test or await messages,
// and in the helper thread.
// The order of this file: making a group; progress (pieces.cpp); the calls of Communicator; failure
// and the end of a group.
#include "armillary/comm/mpi/group.h"

#include <algorithm>
#include <array>
#include <exception>

#include "armillary/comm/group_peer_wait.h"
#include "armillary/comm/strided.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

// Time that a failed rank gives its peers to end messages under way.
constexpr std::chrono::milliseconds kSettle(500);
// Time instead of kSettle and kClose if a peer has ended or is silent: it takes no messages.
constexpr std::chrono::milliseconds kSettleWithoutOne(100);
// Longest time to leave a failed group.
constexpr std::chrono::seconds kClose(1);
// Seconds that a rank which leaves waits before it asks the others for progress.
constexpr double kWatchLeavers = 0.1;
// Seconds between two looks of the helper for ended processes; after kIdleLooks looks with no
// message under way, the least time between any two looks.
constexpr double kLookForEnds = 0.01;
constexpr int kIdleLooks = 20;
// A rank that waits yields its core between looks for kAwake, then sleeps kSleep between them.
constexpr std::chrono::microseconds kAwake(500);
constexpr std::chrono::microseconds kSleep(50);

std::chrono::nanoseconds as_nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

/// `since` is the start of the wait.
void pause(std::chrono::steady_clock::time_point since) {
  if (std::chrono::steady_clock::now() - since < kAwake) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kSleep);
  }
}

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm result = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm, &result), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(result, MPI_ERRORS_RETURN);
  return result;
}

}  // namespace

MpiGroup::MpiGroup(MpiProcess& process, MPI_Comm members, const MpiOptions& options)
    : process_(process),
      options_(options),
      heartbeat_([clock = ComputeClock()]() mutable { return clock.seconds(); }),
      receives_waiting_(options.lanes) {
  const Lock lock(process_.mutex());
  MPI_Comm_set_errhandler(members, MPI_ERRORS_RETURN);
  MPI_Comm_rank(members, &rank_);
  MPI_Comm_size(members, &world_);
  // All processes are here, so calls that wait for all of them return soon.
  pieces_sent_.resize(world_);
  pieces_received_.resize(world_);
  expect_equal_options(members);
  make_lanes(members);
  meet_processes(members);
  check_mpi(MPI_Comm_free(&members), "MPI_Comm_free");
  abort_channel_.emplace(control_, heartbeat_);
  process_.enter_group();
  helper_ = std::thread([this] { help(); });
}

MpiGroup::~MpiGroup() = default;

void MpiGroup::expect_equal_options(MPI_Comm members) const {
  const int world = options_.world > 0 ? options_.world : process_.processes();
  if (world != world_) {
    fail<InvalidArgument>(
        "run_mpi_rank: a world of {}, of which {} came; equal options are required", world, world_);
  }
  const std::array<std::int64_t, 2> mine{options_.lanes, options_.piece_bytes};
  std::vector<std::array<std::int64_t, 2>> all(world_);
  check_mpi(MPI_Allgather(mine.data(), 2, MPI_INT64_T, all.data(), 2, MPI_INT64_T, members),
            "MPI_Allgather");
  for (int other = 0; other < world_; ++other) {
    if (all[other] == all[0]) continue;
    fail<InvalidArgument>(
        "run_mpi_rank: rank 0 has {} and pieces of {}, rank {} has {} and {}; equal "
        "options are required",
        count_of(all[0][0], "lane"), count_of(all[0][1], "byte"), other, all[other][0],
        all[other][1]);
  }
}

void MpiGroup::make_lanes(MPI_Comm members) {
  control_ = duplicate(members);
  for (int lane = 0; lane < options_.lanes; ++lane) lanes_.push_back(duplicate(members));
  // The tag of a piece is (number of the group) * kTags + MpiPending::tag().
  int flag = 0;
  void* largest_tag = nullptr;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest_tag), &flag),
            "MPI_Comm_get_attr");
  ARMILLARY_CHECK(flag != 0);
  most_groups_ = (*static_cast<int*>(largest_tag) - kTags + 1) / kTags + 1;
}

void MpiGroup::meet_processes(MPI_Comm members) {
  const PeerProcess mine = PeerProcess::of_this_process();
  processes_.resize(world_);
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, processes_.data(), sizeof mine, MPI_BYTE,
                          members),
            "MPI_Allgather");
  ends_ = EndsOfProcesses(rank_, processes_);
  stops_ = StopsOfProcesses(rank_, processes_);
}

void MpiGroup::add_request(MPI_Request request, Owner owner) {
  requests_.push_back(request);
  owners_.push_back(std::move(owner));
}

void MpiGroup::progress() noexcept {
  if (!process_.usable()) return;
  try {
    abort_channel_->poll();
    // Lanes without a receive are left alone: MPI keeps their messages until one is started.
    const bool all = drains() || abort_channel_->any_leaving();
    for (int lane = 0; lane < options_.lanes; ++lane) {
      if (all || receives_waiting_[lane] > 0) take_arrivals(lane);
    }
    if (all) {
      for (auto& [source, queue] : queues_) match(source, queue);
    }
    test_requests();
  } catch (const std::exception& e) {
    abort_channel_->raise(rank_, e.what());
  }
}

void MpiGroup::start(std::span<const Message> batch, std::span<Request> requests) {
  // Messages are made, and strided memory is packed, without the lock.
  std::vector<MpiPending*> started;
  started.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].lane / options_.lanes >= most_groups_) {
      fail<CommError>("split: MPI has tags for {} groups; fewer groups are required", most_groups_);
    }
    auto request = std::make_shared<MpiPending>(*this, batch[i], options_.piece_bytes);
    started.push_back(request.get());
    requests[i] = std::move(request);
  }
  Lock lock(process_.mutex());
  throw_if_failed(lock);
  // Receives first, so that messages which have arrived go to their places.
  for (MpiPending* message : started) {
    if (message->direction() == Direction::Send) continue;
    message->set_under_way();
    const Source source{message->peer(), message->lane()};
    MpiQueue& queue = queues_[source];
    queue.receives.push_back(message);
    ++receives_waiting_[message->lane() % options_.lanes];
    match(source, queue);
  }
  for (MpiPending* message : started) {
    if (message->direction() == Direction::Send) send(*message);
  }
  if (helper_rests_) {
    helper_rests_ = false;
    helper_wake_.notify_all();
  }
  progress();
  throw_if_failed(lock);
}

bool MpiGroup::is_complete(const MpiPending& request) {
  if (request.is_complete()) return true;
  Lock lock(process_.mutex());
  progress();
  if (request.is_complete()) return true;
  throw_if_failed(lock);
  return false;
}

std::size_t MpiGroup::wait_any(std::span<const Request> requests, double timeout_s,
                               const std::function<std::string()>& describe) {
  const Clock::time_point begin = Clock::now();
  // Most waits are over before the first look at the peers.
  const auto between_looks = as_nanoseconds(Watch::interval_of(timeout_s) / 2);
  Clock::time_point next_look = begin + between_looks;
  std::optional<LongWait> wait;
  std::size_t index = first_mpi_done(requests);
  while (index == requests.size()) {
    {
      Lock lock(process_.mutex());
      progress();
      // A message that ended before the failure is done, even if the deadline has passed.
      index = first_mpi_done(requests);
      if (index < requests.size()) break;
      const Clock::time_point now = Clock::now();
      if (now >= next_look) {
        next_look = now + between_looks;
        if (!wait) {
          wait.emplace(
              heartbeat_,
              WatchOptions{.rank = rank_, .peers = peers_of(requests), .timeout_s = timeout_s},
              seconds_of(begin));
        }
        if (is_expired(wait->watch)) {
          const double waited_s = std::chrono::duration<double>(now - begin).count();
          peer_is_lost_ = wait->watch.culprit_is_lost();
          abort_channel_->raise(rank_, fmt::format("wait: {} not done after {:.3g} s{}", describe(),
                                                   waited_s, blame(wait->watch)));
        }
      }
      throw_if_failed(lock);
    }
    pause(begin);
    index = first_mpi_done(requests);  // The helper may have ended a message.
  }
  return index;
}

std::unique_ptr<PeerWait> MpiGroup::begin_peer_wait(PeerWaitOptions options) {
  return std::make_unique<GroupPeerWait<MpiGroup>>(*this, rank_, std::move(options));
}

void MpiGroup::watch_peers(int rank, std::optional<LongWait>& wait, const PeerWaitOptions& options,
                           double begin_s) {
  const Lock lock(process_.mutex());
  if (!wait) {
    wait.emplace(heartbeat_,
                 WatchOptions{.rank = rank, .peers = options.peers, .timeout_s = options.timeout_s},
                 begin_s);
  }
  progress();
  if (abort_channel_->raised() || !is_expired(wait->watch)) return;
  peer_is_lost_ = wait->watch.culprit_is_lost();
  abort_channel_->raise(rank_, fmt::format("{} after {:.3g} s{}", options.describe(),
                                           seconds_of(Clock::now()) - begin_s, blame(wait->watch)));
}

bool MpiGroup::is_expired(Watch& watch) {
  for (const auto& [rank, heartbeat] : abort_channel_->take_answers()) watch.hear(rank, heartbeat);
  const double now_s = seconds_of(Clock::now());
  for (const int rank : watch.tick(now_s)) abort_channel_->ask(rank);
  stops_.look(now_s);
  watch.see_stopped(stops_.stopped(), now_s);
  return watch.expired();
}

std::string MpiGroup::blame(const Watch& watch) const {
  return watch.reason([this](int rank) { return name_of(rank, processes_[rank]); });
}

void MpiGroup::withdraw(MpiPending& request) {
  Lock lock(process_.mutex());
  if (request.is_complete()) return;
  // The place in the queue of receives stays, so that nothing behind it matches.
  if (request.direction() == Direction::Receive) {
    auto& receives = queues_[{request.peer(), request.lane()}].receives;
    std::replace(receives.begin(), receives.end(), &request, static_cast<MpiPending*>(nullptr));
  }
  // A rank that unwinds has an error that says more: run_mpi_rank() fails the group with it. Until
  // then announce_leaving() tells peers to take its messages.
  if (std::uncaught_exceptions() == 0) {
    abort_channel_->raise(rank_, fmt::format("rank {} dropped a request of {} with rank {} on lane "
                                             "{} before it was done",
                                             rank_, count_of(request.bytes(), "byte"),
                                             request.peer(), request.lane()));
  }
  if (request.pieces_under_way() == 0 || !process_.usable()) return;
  try {
    if (!abort_channel_->raised()) abort_channel_->announce_leaving();
    settle(lock, [&] { return request.pieces_under_way() == 0; });
  } catch (const std::exception& e) {
    abort_channel_->raise(rank_, e.what());
    process_.give_up();
  }
}

void MpiGroup::throw_if_failed() {
  if (!abort_channel_->raised()) return;
  Lock lock(process_.mutex());
  throw_if_failed(lock);
}

void MpiGroup::throw_if_failed(Lock& lock) {
  if (!abort_channel_->raised()) return;
  settle(lock, [&] { return requests_.empty() && abort_channel_->quiet(); });
  throw abort_channel_->error();
}

// Peers that know of the failure, or that this rank is leaving, take what was sent to them; while
// they compute, their helper threads do. Dead or stopped peers do not.
void MpiGroup::settle(Lock& lock, const std::function<bool()>& settled) {
  const Clock::time_point begin = Clock::now();
  while (process_.usable()) {
    progress();
    if (settled()) return;
    if (Clock::now() - begin > (peer_is_lost_ ? kSettleWithoutOne : kSettle)) {
      // The abort channel comes before give_up(): later calls must throw and not reach MPI.
      if (!abort_channel_->raised())
        abort_channel_->raise(rank_, "a message could not be withdrawn");
      return process_.give_up();
    }
    lock.unlock();
    pause(begin);
    lock.lock();
  }
}

void MpiGroup::abort(const std::string& reason) noexcept {
  try {
    abort_channel_->raise(rank_, reason);
  } catch (const std::exception&) {
    // No memory for the text: the deadlines of the peers end the group.
  }
  // The helper sends the notice: this may be any thread, and the lock may be held for long.
  helper_wake_.notify_all();
}

std::optional<int> MpiGroup::failed_rank() const {
  return abort_channel_->raised() ? std::optional(abort_channel_->failed_rank()) : std::nullopt;
}

bool MpiGroup::is_idle() const {
  return requests_.empty() &&
         std::ranges::all_of(receives_waiting_, [](int waiting) { return waiting == 0; });
}

// The helper receives notices while the rank computes: throw_if_failed() only reads a flag.
void MpiGroup::help() {
  call_this_thread_a_helper();
  Clock::time_point next_look = Clock::now();
  int idle_looks = 0;
  Lock lock(process_.mutex());
  while (!helper_stop_ && process_.usable()) {
    // A look takes the core from a rank that computes, so an idle helper looks rarely.
    idle_looks = is_idle() ? idle_looks + 1 : 0;
    helper_rests_ = idle_looks > kIdleLooks;
    const bool rests = helper_rests_;
    helper_wake_.wait_for(
        lock,
        as_nanoseconds(rests ? std::max(kLookForEnds, options_.helper_interval_s)
                             : options_.helper_interval_s),
        [&] { return helper_stop_ || abort_channel_->waits_to_send() || helper_rests_ != rests; });
    if (helper_stop_) return;
    progress();
    if (Clock::now() < next_look) continue;
    next_look = Clock::now() + as_nanoseconds(kLookForEnds);
    look_for_ends();
    stops_.look(seconds_of(Clock::now()));
  }
}

// Ranks leave a group together: a process that ends earlier has failed.
void MpiGroup::look_for_ends() {
  if (abort_channel_->raised()) return;
  const std::optional<int> rank = ends_.first();
  if (!rank) return;
  peer_is_lost_ = true;
  abort_channel_->raise(*rank, fmt::format("its process (host {}, pid {}) has ended",
                                           processes_[*rank].host.data(), processes_[*rank].pid));
  progress();
}

bool MpiGroup::all_received(std::span<const SentCounts> sent_to_me) const {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    if (pieces_received_[peer] != sent_to_me[peer].pieces) return false;
    if (abort_channel_->received(peer) != sent_to_me[peer].notices) return false;
  }
  return true;
}

void MpiGroup::leave() {
  {
    const Lock lock(process_.mutex());
    helper_stop_ = true;
  }
  helper_wake_.notify_all();
  helper_.join();

  Lock lock(process_.mutex());
  progress();  // Sends a failure of this rank, so that it is counted.
  try {
    drain(lock);
  } catch (const std::exception& e) {
    abort_channel_->raise(rank_, e.what());
    process_.give_up();
  }
  if (process_.usable()) {
    for (MPI_Comm& lane : lanes_) MPI_Comm_free(&lane);
    MPI_Comm_free(&control_);
  }
  process_.leave_group(abort_channel_->raised());
}

void MpiGroup::drain(Lock& lock) {
  if (!process_.usable()) return;
  heartbeat_.leave();
  const auto over = [](MPI_Request& request) {
    int all = 0;
    check_mpi(MPI_Test(&request, &all, MPI_STATUS_IGNORE), "MPI_Test");
    return all != 0;
  };
  // Phase 1 of 2: all ranks leave. Those that still work are waited for while they make progress.
  MPI_Request left = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(control_, &left), "MPI_Ibarrier");
  if (!await_all(lock, [&] { return over(left); })) return;
  abort_channel_->stop_asking();
  // Phase 2 of 2: ranks tell each other how many pieces and notices they have sent. A rank that has
  // been told by all takes as many, and throws them away.
  std::vector<SentCounts> counts(world_);
  std::vector<SentCounts> sent_to_me(world_);
  for (int peer = 0; peer < world_; ++peer)
    counts[peer] = {pieces_sent_[peer], abort_channel_->notice_count(peer)};
  MPI_Request told = MPI_REQUEST_NULL;
  check_mpi(MPI_Ialltoall(counts.data(), 2, MPI_INT64_T, sent_to_me.data(), 2, MPI_INT64_T,
                          control_, &told),
            "MPI_Ialltoall");
  await_all(lock, [&] {
    everybody_left_ = everybody_left_ || over(told);
    const bool ended = requests_.empty() && abort_channel_->quiet();
    return everybody_left_ && ended && all_received(sent_to_me);
  });
}

// Returns false if MPI was given up: after a failure some ranks may never come.
bool MpiGroup::await_all(Lock& lock, const std::function<bool()>& all_here) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point next_look = begin + as_nanoseconds(kLookForEnds);
  std::optional<LongWait> wait;
  std::optional<Clock::time_point> failed;
  while (process_.usable()) {
    progress();
    if (all_here()) return true;
    if (abort_channel_->raised() && !failed) failed = Clock::now();
    if (failed && Clock::now() - *failed > (peer_is_lost_ ? kSettleWithoutOne : kClose)) {
      process_.give_up();
    }
    if (!failed && Clock::now() >= next_look) {
      next_look = Clock::now() + as_nanoseconds(kLookForEnds);
      look_for_ends();
      watch_leavers(wait, begin);
    }
    lock.unlock();
    pause(begin);
    lock.lock();
  }
  return false;
}

void MpiGroup::watch_leavers(std::optional<LongWait>& wait, Clock::time_point begin) {
  if (everybody_left_ || Clock::now() - begin < as_nanoseconds(kWatchLeavers)) return;
  if (!wait) {
    std::vector<int> others;
    for (int peer = 0; peer < world_; ++peer) {
      if (peer != rank_) others.push_back(peer);
    }
    wait.emplace(heartbeat_,
                 WatchOptions{.rank = rank_,
                              .peers = others,
                              .timeout_s = options_.timeout_s,
                              .what = WatchFor::Leaving},
                 seconds_of(begin));
  }
  if (!is_expired(wait->watch)) return;
  const double waited_s = std::chrono::duration<double>(Clock::now() - begin).count();
  peer_is_lost_ = wait->watch.culprit_is_lost();
  abort_channel_->raise(
      rank_, fmt::format("leave: rank {} has waited {:.3g} s for the others to end{}", rank_,
                         waited_s, blame(wait->watch)));
}

}  // namespace armillary::comm
