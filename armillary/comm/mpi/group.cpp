// Messages between processes. Sends are given to MPI when they start. Receives wait in queues of
// this rank until MPI_Improbe has found their message, and only then does MPI know their memory.
// All progress is made by progress(), under one lock: in calls that start, test or await messages,
// and in the helper thread.
// The order of this file: making a group; sends, arrivals and receives; the calls of Communicator;
// failure and the end of a group.
#include "armillary/comm/mpi/group.h"

#include <algorithm>
#include <array>
#include <exception>

#include "armillary/comm/strided.h"
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
      pulse_([clock = ComputeClock()]() mutable { return clock.seconds(); }),
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
  alarm_.emplace(control_, pulse_);
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
        "run_mpi_rank: rank 0 has {} lanes and pieces of {} bytes, rank {} has {} and {}; equal "
        "options are required",
        all[0][0], all[0][1], other, all[other][0], all[other][1]);
  }
}

void MpiGroup::make_lanes(MPI_Comm members) {
  control_ = duplicate(members);
  for (int lane = 0; lane < options_.lanes; ++lane) lanes_.push_back(duplicate(members));
  // The tag of a piece is (number of the group) * kTags + MpiPending::tag().
  int found = 0;
  void* largest_tag = nullptr;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest_tag), &found),
            "MPI_Comm_get_attr");
  ARMILLARY_CHECK(found != 0);
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

// All pieces are given to MPI at once, so the next message of the lane cannot overtake one.
void MpiGroup::send(MpiPending& message) {
  message.set_under_way();
  const int group = message.lane() / options_.lanes;
  MPI_Comm const lane = lanes_[message.lane() % options_.lanes];
  while (message.pieces_started() < message.pieces()) {
    const int tag = group * kTags + message.tag();
    const std::span<std::byte> piece = message.next_piece();
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, message.peer(), tag,
                        lane, &request),
              "MPI_Isend");
    ++pieces_sent_[message.peer()];
    message.piece_started();
    add_request(request, {.message = &message, .thrown_away = {}});
  }
}

void MpiGroup::progress() noexcept {
  if (!process_.usable()) return;
  try {
    alarm_->poll();
    // Lanes without a receive are left alone: MPI keeps their messages until one is started.
    const bool all = drains() || alarm_->any_leaving();
    for (int lane = 0; lane < options_.lanes; ++lane) {
      if (all || receives_waiting_[lane] > 0) take_arrivals(lane);
    }
    if (all) {
      for (auto& [source, queue] : queues_) match(source, queue);
    }
    test_requests();
  } catch (const std::exception& e) {
    alarm_->raise(rank_, e.what());
  }
}

// Takes every message from MPI in order, also those without a receive yet: messages of another
// group made by split() may lie behind them on the same MPI communicator.
void MpiGroup::take_arrivals(int lane) {
  while (true) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, lanes_[lane], &found, &message, &status),
              "MPI_Improbe");
    if (!found) return;
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    ++pieces_received_[status.MPI_SOURCE];
    const int group = status.MPI_TAG / kTags;
    const Source source{status.MPI_SOURCE, group * options_.lanes + lane};
    Queue& queue = queues_[source];
    queue.arrivals.push_back({message, bytes, status.MPI_TAG % kTags});
    match(source, queue);
  }
}

void MpiGroup::match(const Source& source, Queue& queue) {
  const bool drop = drains();
  while (!queue.arrivals.empty()) {
    const bool wanted = !queue.receives.empty() && queue.receives.front() != nullptr;
    if (wanted && !drop) {
      receive(source, queue);
      if (alarm_->raised()) return;  // The sizes differ.
    } else if (drop || !queue.receives.empty() || alarm_->is_leaving(source.first)) {
      throw_away(queue.arrivals.front());
      queue.arrivals.pop_front();
    } else {
      return;  // No receive was started yet.
    }
  }
}

void MpiGroup::receive(const Source& source, Queue& queue) {
  // The first piece tells the bytes of the message, before any memory is touched.
  MpiPending& message = *queue.receives.front();
  Arrival arrival = queue.arrivals.front();
  const std::int64_t sent =
      arrival.bytes + MpiPending::bytes_after(arrival.tag, options_.piece_bytes);
  if (message.pieces_started() == 0 && sent != message.bytes()) {
    alarm_->raise(rank_,
                  fmt::format("rank {} sends {} bytes to rank {} on lane {}, which receives {} "
                              "bytes; equal sizes are required",
                              source.first, sent, rank_, source.second, message.bytes()));
    return;
  }
  // The piece goes to its place; after the last one the next receive is due.
  queue.arrivals.pop_front();
  const std::span<std::byte> piece = message.next_piece();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Imrecv(piece.data(), arrival.bytes, MPI_BYTE, &arrival.message, &request),
            "MPI_Imrecv");
  message.piece_started();
  add_request(request, {.message = &message, .thrown_away = {}});
  if (message.pieces_started() < message.pieces()) return;
  queue.receives.pop_front();
  --receives_waiting_[source.second % options_.lanes];
}

// The sender's memory is free only when the bytes are here, so unwanted ones are received too.
void MpiGroup::throw_away(const Arrival& arrival) {
  MPI_Message message = arrival.message;
  MPI_Request request = MPI_REQUEST_NULL;
  auto memory = std::make_unique_for_overwrite<std::byte[]>(arrival.bytes);
  check_mpi(MPI_Imrecv(memory.get(), arrival.bytes, MPI_BYTE, &message, &request), "MPI_Imrecv");
  add_request(request, {.message = nullptr, .thrown_away = std::move(memory)});
}

void MpiGroup::test_requests() {
  if (requests_.empty()) return;
  int count = 0;
  completed_.resize(requests_.size());
  check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                         completed_.data(), MPI_STATUSES_IGNORE),
            "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return;
  for (int i = 0; i < count; ++i) {
    MpiPending* const message = owners_[completed_[i]].message;
    // A message that ends after the failure is not done: calls for it throw.
    if (message && message->piece_ended() && !alarm_->raised()) {
      message->set_done(++messages_done_);
      pulse_.message_done();
    }
  }
  // The last entries fill the gaps, the last gap first.
  std::sort(completed_.begin(), completed_.begin() + count, std::greater<>());
  for (int i = 0; i < count; ++i) {
    std::swap(requests_[completed_[i]], requests_.back());
    std::swap(owners_[completed_[i]], owners_.back());
    requests_.pop_back();
    owners_.pop_back();
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
    Queue& queue = queues_[source];
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

bool MpiGroup::done(const MpiPending& request) {
  if (request.done()) return true;
  Lock lock(process_.mutex());
  progress();
  if (request.done()) return true;
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
              pulse_,
              Watch::Options{.rank = rank_, .peers = peers_of(requests), .timeout_s = timeout_s},
              seconds_of(begin));
        }
        if (is_expired(wait->watch)) {
          const double waited_s = std::chrono::duration<double>(now - begin).count();
          peer_is_lost_ = wait->watch.culprit_is_lost();
          alarm_->raise(rank_, fmt::format("wait: {} not done after {:.3g} s{}", describe(),
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

std::unique_ptr<PeerWait> MpiGroup::begin_peer_wait(PeerWait::Options options) {
  return std::make_unique<GroupPeerWait<MpiGroup>>(*this, rank_, std::move(options));
}

void MpiGroup::watch_peers(int rank, std::optional<LongWait>& wait,
                           const PeerWait::Options& options, double begin_s) {
  const Lock lock(process_.mutex());
  if (!wait) {
    wait.emplace(
        pulse_,
        Watch::Options{.rank = rank, .peers = options.peers, .timeout_s = options.timeout_s},
        begin_s);
  }
  progress();
  if (alarm_->raised() || !is_expired(wait->watch)) return;
  peer_is_lost_ = wait->watch.culprit_is_lost();
  alarm_->raise(rank_, fmt::format("{} after {:.3g} s{}", options.describe(),
                                   seconds_of(Clock::now()) - begin_s, blame(wait->watch)));
}

bool MpiGroup::is_expired(Watch& watch) {
  for (const auto& [rank, pulse] : alarm_->take_answers()) watch.hear(rank, pulse);
  const double now_s = seconds_of(Clock::now());
  for (const int rank : watch.tick(now_s)) alarm_->ask(rank);
  stops_.look(now_s);
  watch.see_stopped(stops_.stopped(), now_s);
  return watch.expired();
}

std::string MpiGroup::blame(const Watch& watch) const {
  return watch.reason([this](int rank) { return name_of(rank, processes_[rank]); });
}

void MpiGroup::withdraw(MpiPending& request) {
  Lock lock(process_.mutex());
  if (request.done()) return;
  // The place in the queue of receives stays, so that nothing behind it matches.
  if (request.direction() == Direction::Receive) {
    auto& receives = queues_[{request.peer(), request.lane()}].receives;
    std::replace(receives.begin(), receives.end(), &request, static_cast<MpiPending*>(nullptr));
  }
  // A rank that unwinds has an error that says more: run_mpi_rank() fails the group with it. Until
  // then announce_leaving() tells peers to take its messages.
  if (std::uncaught_exceptions() == 0) {
    alarm_->raise(rank_, fmt::format("rank {} dropped a request of {} bytes with rank {} on lane "
                                     "{} before it was done",
                                     rank_, request.bytes(), request.peer(), request.lane()));
  }
  if (request.pieces_under_way() == 0 || !process_.usable()) return;
  try {
    if (!alarm_->raised()) alarm_->announce_leaving();
    settle(lock, [&] { return request.pieces_under_way() == 0; });
  } catch (const std::exception& e) {
    alarm_->raise(rank_, e.what());
    process_.give_up();
  }
}

void MpiGroup::throw_if_failed() {
  if (!alarm_->raised()) return;
  Lock lock(process_.mutex());
  throw_if_failed(lock);
}

void MpiGroup::throw_if_failed(Lock& lock) {
  if (!alarm_->raised()) return;
  settle(lock, [&] { return requests_.empty() && alarm_->quiet(); });
  throw alarm_->error();
}

// Peers that know of the failure, or that this rank is leaving, take what was sent to them; while
// they compute, their helper threads do. Dead or stopped peers do not.
void MpiGroup::settle(Lock& lock, const std::function<bool()>& settled) {
  const Clock::time_point begin = Clock::now();
  while (process_.usable()) {
    progress();
    if (settled()) return;
    if (Clock::now() - begin > (peer_is_lost_ ? kSettleWithoutOne : kSettle)) {
      // The alarm comes before give_up(): later calls must throw and not reach MPI.
      if (!alarm_->raised()) alarm_->raise(rank_, "a message could not be withdrawn");
      return process_.give_up();
    }
    lock.unlock();
    pause(begin);
    lock.lock();
  }
}

void MpiGroup::abort(const std::string& reason) noexcept {
  try {
    alarm_->raise(rank_, reason);
  } catch (const std::exception&) {
    // No memory for the text: the deadlines of the peers end the group.
  }
  // The helper sends the notice: this may be any thread, and the lock may be held for long.
  helper_wake_.notify_all();
}

std::optional<int> MpiGroup::failed_rank() const {
  return alarm_->raised() ? std::optional(alarm_->failed_rank()) : std::nullopt;
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
        [&] { return helper_stop_ || alarm_->waits_to_send() || helper_rests_ != rests; });
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
  if (alarm_->raised()) return;
  const std::optional<int> rank = ends_.first();
  if (!rank) return;
  peer_is_lost_ = true;
  alarm_->raise(*rank, fmt::format("its process (host {}, pid {}) has ended",
                                   processes_[*rank].host.data(), processes_[*rank].pid));
  progress();
}

bool MpiGroup::all_received(std::span<const Counts> sent_to_me) const {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    if (pieces_received_[peer] != sent_to_me[peer].pieces) return false;
    if (alarm_->received(peer) != sent_to_me[peer].notices) return false;
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
    alarm_->raise(rank_, e.what());
    process_.give_up();
  }
  if (process_.usable()) {
    for (MPI_Comm& lane : lanes_) MPI_Comm_free(&lane);
    MPI_Comm_free(&control_);
  }
  process_.leave_group(alarm_->raised());
}

void MpiGroup::drain(Lock& lock) {
  if (!process_.usable()) return;
  pulse_.leave();
  const auto over = [](MPI_Request& request) {
    int all = 0;
    check_mpi(MPI_Test(&request, &all, MPI_STATUS_IGNORE), "MPI_Test");
    return all != 0;
  };
  // Phase 1 of 2: all ranks leave. Those that still work are waited for while they make progress.
  MPI_Request left = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(control_, &left), "MPI_Ibarrier");
  if (!await_all(lock, [&] { return over(left); })) return;
  alarm_->stop_asking();
  // Phase 2 of 2: ranks tell each other how many pieces and notices they have sent. A rank that has
  // been told by all takes as many, and throws them away.
  std::vector<Counts> sent(world_);
  std::vector<Counts> sent_to_me(world_);
  for (int peer = 0; peer < world_; ++peer) sent[peer] = {pieces_sent_[peer], alarm_->sent(peer)};
  MPI_Request told = MPI_REQUEST_NULL;
  check_mpi(MPI_Ialltoall(sent.data(), 2, MPI_INT64_T, sent_to_me.data(), 2, MPI_INT64_T, control_,
                          &told),
            "MPI_Ialltoall");
  await_all(lock, [&] {
    everybody_left_ = everybody_left_ || over(told);
    const bool ended = requests_.empty() && alarm_->quiet();
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
    if (alarm_->raised() && !failed) failed = Clock::now();
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
    wait.emplace(pulse_,
                 Watch::Options{.rank = rank_,
                                .peers = others,
                                .timeout_s = options_.timeout_s,
                                .what = Watch::For::Leaving},
                 seconds_of(begin));
  }
  if (!is_expired(wait->watch)) return;
  const double waited_s = std::chrono::duration<double>(Clock::now() - begin).count();
  peer_is_lost_ = wait->watch.culprit_is_lost();
  alarm_->raise(rank_, fmt::format("leave: rank {} has waited {:.3g} s for the others to end{}",
                                   rank_, waited_s, blame(wait->watch)));
}

}  // namespace armillary::comm
