// meeting.cpp: meetings in a store. An outcome begins with a letter: M for met, I for an
// InvalidArgument, C for a CommError. After C come the ranks that are missing, each with a comma,
// and a space before the text. I is told to ranks that come later too.
#include "armillary/comm/c10d/meeting.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"

namespace armillary::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds that rank 0, which may hold the store, stays for others to read a refusal.
constexpr double kRefusal = 2;
constexpr std::chrono::milliseconds kLook(2);
// Looks at records from one look at processes to the next.
constexpr int kProcessLooks = 50;

double seconds_after(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

bool has_ended(const PeerProcess& process) {
  static const std::uint64_t here = PeerProcess::of_this_process().numbered_by;
  if (process.pid == 0 || process.numbered_by != here) return false;
  const ProcessStat stat = stat_of_process(process.pid);
  return stat.start < 0 || stat.state == 'Z';
}

/// One meeting, as one rank sees it. Functions throw exceptions of PyTorch.
class Meeting {
 public:
  /// `number` is that of a meeting of a process group, or 0.
  Meeting(c10d::Store& store, const Member& mine, const C10dOptions& options, std::int64_t number)
      : store_(store),
        mine_(mine),
        options_(options),
        number_(number),
        prefix_(number > 0 ? fmt::format("{}{}/", mine.prefix, number) : mine.prefix),
        records_(mine.world) {}

  const std::string& prefix() const { return prefix_; }

  /// The outcome, or nothing while there is none.
  std::string outcome() { return read(prefix_ + "outcome"); }

  /// Whether this rank comes for the first time.
  bool is_first_time() { return store_.add(key("rank", mine_.rank), 1) == 1; }

  /// Comes, and returns the outcome; nothing if a newer meeting has begun.
  std::string wait_from(Clock::time_point begin) {
    if (!is_first_time()) {
      return end(
          fmt::format("Itwo processes have rank {}; each rank once is required", mine_.rank));
    }
    const PeerProcess process = PeerProcess::of_this_process();
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&process);
    store_.set(key_of_process(mine_.rank),
               std::vector<std::uint8_t>(bytes, bytes + sizeof process));
    // The record tells the others that this rank is here.
    store_.set(key("record", mine_.rank),
               fmt::format("a world of {} and {}", mine_.world, count_of(options_.lanes, "lane")));
    for (int looks = 0;; ++looks) {
      if (const std::string known = outcome(); !known.empty()) return known;
      if (is_left_behind()) return outcome();
      if (const std::string text = look(begin, looks); !text.empty()) return end(text);
      std::this_thread::sleep_for(kLook);
    }
  }

  /// Sets the outcome unless there is one. Returns the first.
  std::string end(const std::string& text) {
    return store_.compareSet(prefix_ + "outcome", std::string(), text);
  }

  std::vector<PeerProcess> processes() {
    std::vector<PeerProcess> all(mine_.world);
    for (int rank = 0; rank < mine_.world; ++rank) all[rank] = process_of(rank);
    return all;
  }

  /// Throws the outcome I or C.
  [[noreturn]] void refuse(const std::string& outcome) {
    const bool is_given_up = outcome[0] == 'C';
    look_at_records();
    const auto came = static_cast<int>(mine_.world - missing().size());
    // The last that this rank asks of the store, which may end when all have said so.
    store_.add(prefix_ + "refused", 1);
    const Clock::time_point begin = Clock::now();
    while (mine_.rank == 0 && seconds_after(begin) < kRefusal &&
           store_.add(prefix_ + "refused", 0) < (outcome[0] == 'I' ? mine_.world : came)) {
      std::this_thread::sleep_for(kLook);
    }
    const std::string text = outcome.substr(is_given_up ? outcome.find(' ') + 1 : 1);
    const std::string told = fmt::format("{}: {}", mine_.caller, text);
    if (outcome[0] == 'I') throw InvalidArgument(told);
    throw CommError(told);
  }

  /// Removes all keys.
  void remove() {
    for (int rank = 0; rank < mine_.world; ++rank) {
      for (const char* const name : {"rank", "record"}) store_.deleteKey(key(name, rank));
      // Names of PyTorch.
      for (const char* const name : {"data//0/", "control//0/"}) store_.deleteKey(key(name, rank));
    }
    store_.deleteKey(prefix_ + "refused");
    store_.deleteKey(prefix_ + "outcome");
  }

 private:
  std::string key(const char* name, int rank) const {
    return fmt::format("{}{}{}", prefix_, name, rank);
  }
  /// The process that a rank was last: the same in all meetings.
  std::string key_of_process(int rank) const {
    return fmt::format("{}process{}", mine_.prefix, rank);
  }

  std::string read(const std::string& name) {
    return store_.check({name}) ? store_.get_to_str(name) : std::string();
  }

  PeerProcess process_of(int rank) {
    PeerProcess process;
    const std::string bytes = read(key_of_process(rank));
    if (bytes.size() == sizeof process) std::memcpy(&process, bytes.data(), bytes.size());
    return process;
  }

  /// Whether a newer meeting has begun: the keys of this one may be gone.
  bool is_left_behind() {
    return number_ > 0 && std::stoll(store_.get_to_str(mine_.prefix + "newest")) > number_;
  }

  // A record that was read once stays; those of ranks that have not come are looked for again.
  void look_at_records() {
    for (int rank = 0; rank < mine_.world; ++rank) {
      if (records_[rank].empty()) records_[rank] = read(key("record", rank));
    }
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < mine_.world; ++rank) {
      if (records_[rank].empty()) ranks.push_back(rank);
    }
    return ranks;
  }

  /// The outcome that this rank sees, or nothing.
  std::string look(Clock::time_point begin, int looks) {
    look_at_records();
    if (const std::string text = difference(); !text.empty()) return text;
    const std::vector<int> late = missing();
    if (late.empty()) return "M";
    const double waited_s = seconds_after(begin);
    const std::string who =
        fmt::format("C{}, rank{} {} of {} did not come", fmt::join(late, ","),
                    late.size() > 1 ? "s" : "", fmt::join(late, ", "), mine_.world);
    if (waited_s > options_.timeout_s) return fmt::format("{} within {:.3g} s", who, waited_s);
    if (looks % kProcessLooks != kProcessLooks - 1) return "";
    for (const int rank : late) {
      const PeerProcess process = process_of(rank);
      if (!has_ended(process)) continue;
      return fmt::format("{}: process {} of host {}, which was rank {}, has ended", who,
                         process.pid, process.host.data(), rank);
    }
    return "";
  }

  std::string difference() const {
    const auto is_there = [](const std::string& record) { return !record.empty(); };
    const auto first = std::ranges::find_if(records_, is_there);
    const auto other = std::find_if(first, records_.end(), [&](const std::string& record) {
      return is_there(record) && record != *first;
    });
    if (other == records_.end()) return "";
    return fmt::format("Irank {} has {}, rank {} has {}; equal options are required",
                       first - records_.begin(), *first, other - records_.begin(), *other);
  }

  c10d::Store& store_;
  const Member& mine_;
  const C10dOptions& options_;
  const std::int64_t number_;
  const std::string prefix_;
  std::vector<std::string> records_;  ///< Per rank; empty if it has not come.
};

/// The number of the newest meeting, which is 1 at first.
std::int64_t newest(c10d::Store& store, const Member& mine) {
  return std::stoll(store.compareSet(mine.prefix + "newest", std::string(), std::string("1 ")));
}

/// The number of the newest meeting after one that is over. The rank that begins it removes the
/// keys of one that nobody reads any more.
std::int64_t after(c10d::Store& store, const Member& mine, std::int64_t number,
                   const C10dOptions& options) {
  const std::string now = store.get_to_str(mine.prefix + "newest");
  if (std::stoll(now) != number) return std::stoll(now);
  const std::string next = fmt::format("{} of rank {}", number + 1, mine.rank);
  const std::string first = store.compareSet(mine.prefix + "newest", now, next);
  if (first == next && number > 1) {
    try {
      Meeting(store, mine, options, number - 1).remove();
    } catch (const std::exception&) {
      // A store that cannot remove keys keeps them.
    }
  }
  return std::stoll(first);
}

/// Whether others gave up a meeting because of this rank, among others.
bool was_missing(const std::string& outcome, int rank) {
  const std::string ranks = "," + outcome.substr(1, outcome.find(' '));
  return outcome[0] == 'C' && ranks.find(fmt::format(",{},", rank)) != std::string::npos;
}

template <class Action>
auto with_store(const Member& mine, const Action& action) {
  try {
    return action();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail<CommError>("{}: rank {} lost the store: {}", mine.caller, mine.rank, first_line(e));
  }
}

}  // namespace

std::vector<PeerProcess> meet(c10d::Store& store, const Member& mine, const C10dOptions& options) {
  return with_store(mine, [&] {
    Meeting meeting(store, mine, options, 0);
    const std::string outcome = meeting.wait_from(Clock::now());
    if (outcome != "M") meeting.refuse(outcome);
    return meeting.processes();
  });
}

std::vector<PeerProcess> meet_again(c10d::Store& store, Member& mine, const C10dOptions& options) {
  return with_store(mine, [&] {
    const Clock::time_point begin = Clock::now();
    std::int64_t number = newest(store, mine);
    while (true) {
      Meeting meeting(store, mine, options, number);
      const std::string before = meeting.outcome();
      if (before.starts_with('I') && meeting.is_first_time()) meeting.refuse(before);
      const std::string outcome = before.empty() ? meeting.wait_from(begin) : "";
      if (outcome == "M") {
        std::vector<PeerProcess> processes = meeting.processes();
        mine.prefix = meeting.prefix();
        return processes;
      }
      if (!outcome.empty() && !was_missing(outcome, mine.rank)) meeting.refuse(outcome);
      number = after(store, mine, number, options);
    }
  });
}

}  // namespace armillary::comm
