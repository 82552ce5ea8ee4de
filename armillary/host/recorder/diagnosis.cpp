// The cause, in the order of certainty: an error that is no consequence of a peer's, a cycle of
// waits, ranks without an end beside others that failed, ranks that wait for nobody while others
// wait for them (wait_graph.h). A rank is blamed for silence only if it lasted.
#include "armillary/host/recorder/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/names.h"
#include "armillary/host/recorder/wait_graph.h"

namespace armillary::recorder {
namespace {

constexpr double kNs = 1e-9;
/// Silence of a cause that is shorter counts as work.
constexpr double kLongSilence = 1;  // seconds

class Diagnoser {
 public:
  Diagnoser(const RecordedRun& run, std::optional<int> known_end)
      : run_(run), world_(static_cast<int>(run.flights.size())) {
    // A recorded error says more than the end of a process.
    if (known_end && *known_end < world_ && !has_failed(*known_end)) known_end_ = *known_end;
  }

  Diagnosis diagnose() {
    result_.reference_ns = reference();
    for (auto& flight : run_.flights) {
      if (!flight) continue;
      flight->rewind_to(result_.reference_ns - flight->base_wall_ns + flight->base_monotonic_ns);
    }
    result_.waits_for = wait_graph(run_);
    if (all([](const Flight& flight) { return flight.end == End::Done; })) {
      result_.verdict = RunVerdict::Ended;
      result_.cause = world_ == 1
                          ? fmt::format("none: the one rank ended well{}", steps_text())
                          : fmt::format("none: all {} ranks ended well{}", world_, steps_text());
    } else if (known_end_ >= 0) {
      result_.verdict =
          first_with(End::FailedWithPeers) >= 0 ? RunVerdict::Failed : RunVerdict::Gone;
      result_.causes = {known_end_};
      result_.cause = silence_text();
    } else if (!own_failure()) {
      find_causes();
      judge();
    }
    result_.run = std::move(run_);
    return std::move(result_);
  }

 private:
  const Flight* flight(int rank) const {
    return run_.flights[rank] ? &*run_.flights[rank] : nullptr;
  }
  /// Whether every rank has a file for which `holds`.
  template <class Predicate>
  bool all(const Predicate& holds) const {
    return std::ranges::all_of(run_.flights,
                               [&](const auto& flight) { return flight && holds(*flight); });
  }
  template <class Predicate>
  Ranks ranks_where(const Predicate& holds) const {
    Ranks ranks;
    for (int rank = 0; rank < world_; ++rank) {
      if (holds(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
  End end_of(int rank) const { return flight(rank) ? flight(rank)->end : End::Running; }
  bool has_failed(int rank) const {
    return end_of(rank) == End::Failed || end_of(rank) == End::FailedWithPeers;
  }
  double silence(int rank) const {
    return flight(rank) ? silent_s(*flight(rank), result_.reference_ns) : 0;
  }

  // Causes.

  /// The time up to which silence counts: the first failure, else now, else the last record.
  std::int64_t reference() const {
    std::int64_t first_failure = 0;
    std::int64_t last_record = 0;
    bool lives = false;
    for (int rank = 0; rank < world_; ++rank) {
      const Flight* own = flight(rank);
      if (own == nullptr) continue;
      const std::int64_t end = own->end == End::Running ? 0 : own->wall_ns(own->end_ns);
      last_record = std::max({last_record, end, own->wall_ns(own->last_event_ns())});
      if (has_failed(rank) && (first_failure == 0 || end < first_failure)) first_failure = end;
      lives = lives || run_.states[rank] == ProcessState::Alive ||
              run_.states[rank] == ProcessState::Stopped;
    }
    if (first_failure != 0) return first_failure;
    return lives ? run_.now_ns : last_record;
  }

  /// The rank that came to this end first; -1 if there is none.
  int first_with(End end) const {
    const Ranks ranks = ranks_where([&](int rank) { return end_of(rank) == end; });
    const auto first = std::ranges::min_element(
        ranks, {}, [&](int rank) { return flight(rank)->wall_ns(flight(rank)->end_ns); });
    return first == ranks.end() ? -1 : *first;
  }

  /// An error that is no consequence of another rank is the cause, whoever waits.
  bool own_failure() {
    const int rank = first_with(End::Failed);
    if (rank < 0) return false;
    result_.verdict = RunVerdict::Failed;
    result_.causes = {rank};
    result_.cause = fmt::format("{} failed in {}: {}", name(rank), place_of(*flight(rank)),
                                flight(rank)->reason);
    return true;
  }

  /// Phase 1 of 3: a cycle. 2: ranks without an end. 3: roots of the graph. Causes are the ranks in
  /// both 2 and 3; if there are none, those of 2; if 2 is empty, those of 3.
  void find_causes() {
    result_.causes = find_cycle(result_.waits_for);
    const bool any_failed = first_with(End::FailedWithPeers) >= 0;
    if (!result_.causes.empty()) {
      // A rank that waits fails at its own deadline; one that was stopped meanwhile does not. It
      // may be outside of the cycle found: ranks that wait for all make cycles of their own.
      const Ranks held_up = reached_from(result_.waits_for, result_.causes);
      Ranks silent = held_up;
      std::erase_if(silent, [&](int rank) {
        return end_of(rank) != End::Running ||
               !(any_failed || run_.states[rank] == ProcessState::Stopped);
      });
      result_.is_cycle = silent.empty() || silent.size() == held_up.size();
      if (!result_.is_cycle) result_.causes = silent;
      return;
    }
    // Ranks without an end: those whose process is gone if that tells them apart, else all if
    // another rank has failed.
    Ranks unended = ranks_where([&](int rank) { return end_of(rank) == End::Running; });
    const Ranks gone = ranks_where([&](int rank) {
      return end_of(rank) == End::Running && run_.states[rank] == ProcessState::Gone;
    });
    if (!gone.empty() && gone.size() < unended.size()) {
      unended = gone;
    } else if (!any_failed) {
      unended.clear();
    }
    // Roots wait for nobody, and others wait for them. Those that were silent for less than half as
    // long as the longest are dropped.
    std::vector<bool> is_waited_for(world_, false);
    for (const Ranks& peers : result_.waits_for) {
      for (const int peer : peers) is_waited_for[peer] = true;
    }
    Ranks roots = ranks_where(
        [&](int rank) { return result_.waits_for[rank].empty() && is_waited_for[rank]; });
    double longest = 0;
    for (const int rank : roots) longest = std::max(longest, silence(rank));
    std::erase_if(roots, [&](int rank) { return flight(rank) && silence(rank) < longest / 2; });
    Ranks both;
    std::ranges::set_intersection(unended, roots, std::back_inserter(both));
    result_.causes = !both.empty() ? both : !unended.empty() ? unended : roots;
  }

  // Verdict and text.

  /// Finds the verdict, and takes the causes back if their silence does not explain it.
  void judge() {
    const bool failed = first_with(End::FailedWithPeers) >= 0;
    const Ranks gone = ranks_where([&](int rank) {
      return end_of(rank) == End::Running && run_.states[rank] == ProcessState::Gone;
    });
    double silent = 0;
    for (const int rank : result_.causes) silent = std::max(silent, silence(rank));
    const bool lasted = !result_.causes.empty() && silent >= kLongSilence;
    if (failed) {
      result_.verdict = RunVerdict::Failed;
      if (!explains_failure(silent)) return blame_first_error();
    } else if (!gone.empty()) {
      result_.verdict = RunVerdict::Gone;
      if (!lasted && gone.size() == unended_count()) return blame_gone(gone);
    } else if (lasted) {
      result_.verdict = RunVerdict::Stuck;
    } else {
      result_.verdict = RunVerdict::UnderWay;
      result_.causes.clear();
      result_.is_cycle = false;
      result_.cause = fmt::format("none: the run is under way{}", steps_text());
      return;
    }
    result_.cause = result_.is_cycle ? cycle_text() : silence_text();
  }

  std::size_t unended_count() const {
    return ranks_where([&](int rank) { return end_of(rank) == End::Running; }).size();
  }

  /// Whether a deadline explains the failure: a cause has not failed, or one was silent for at
  /// least half of the longest wait.
  bool explains_failure(double silent) const {
    if (result_.causes.empty()) return false;
    if (std::ranges::any_of(result_.causes, [&](int rank) { return !has_failed(rank); }))
      return true;
    double longest = 0;
    for (int rank = 0; rank < world_; ++rank) {
      if (result_.waits_for[rank].empty()) continue;
      const Flight& own = *flight(rank);
      const std::int64_t since =
          own.wait == Wait::None ? own.work.activity_since_ns : own.wait_since_ns;
      longest =
          std::max(longest, static_cast<double>(result_.reference_ns - own.wall_ns(since)) * kNs);
    }
    return silent >= longest / 2;
  }

  void blame_first_error() {
    const int rank = first_with(End::FailedWithPeers);
    result_.causes = {rank};
    result_.is_cycle = false;
    result_.cause = fmt::format("{} failed first, in {}: {}", name(rank), place_of(*flight(rank)),
                                flight(rank)->reason);
  }

  /// Ranks that the others waited for are blamed, else all that are gone. No unended rank lives and
  /// no cause was silent for long: perhaps one crashed and the rest were killed.
  void blame_gone(const Ranks& gone) {
    if (result_.is_cycle || result_.causes.empty()) result_.causes = gone;
    result_.is_cycle = false;
    const int first = result_.causes.front();
    const std::string where =
        flight(first) == nullptr
            ? fmt::format("rank {} has no flight file", first)
            : fmt::format("{} was in {}", name(first), place_of(*flight(first)));
    result_.cause = fmt::format("rank{} {} ended without a word, killed or crashed; {}{}",
                                plural_s(gone.size()), list_numbers(gone), where, waiters_text());
  }

  /// The line about causes that are no cycle: each with its silence, then who waits for them.
  std::string silence_text() const {
    std::string text;
    Ranks without_file = result_.causes;
    std::erase_if(without_file, [&](int rank) { return flight(rank) != nullptr; });
    for (const int rank : result_.causes) {
      const Flight* own = flight(rank);
      if (own == nullptr && rank != without_file.front()) continue;
      if (!text.empty()) text += "; ";
      if (own == nullptr) {
        text += fmt::format("rank{} {} {} no flight file", plural_s(without_file.size()),
                            list_numbers(without_file), without_file.size() == 1 ? "has" : "have");
      } else if (own->end == End::Done) {
        text += fmt::format("{} has ended, after step {}", name(rank), own->work.step);
      } else if (rank == known_end_) {
        text += fmt::format("{} was in {}", name(rank), place_of(*own));
      } else {
        text += fmt::format("{} has done nothing for {:.3g} s, in {}", name(rank), silence(rank),
                            place_of(*own));
      }
    }
    return text + waiters_text();
  }

  /// "; ranks 0 and 3 wait for it": the ranks from which a cause is reached.
  std::string waiters_text() const {
    const std::vector<bool> waiting = reaching(result_.waits_for, result_.causes);
    const Ranks waiters = ranks_where([&](int rank) {
      return waiting[rank] && std::ranges::find(result_.causes, rank) == result_.causes.end();
    });
    if (waiters.empty()) return "";
    return fmt::format("; rank{} {} wait{} for {}{}", plural_s(waiters.size()),
                       list_numbers(waiters), waiters.size() == 1 ? "s" : "",
                       result_.causes.size() == 1 ? "it" : "them", awaited_text(waiters));
  }

  /// ": rank 3 in plan step 1, recv (op 7) of 64 bytes from rank 2 on lane 1": the message of a
  /// waiter with a cause, or else the collective activity of a waiter.
  std::string awaited_text(const Ranks& waiters) const {
    for (const plan::Kind kind : {plan::kRecv, plan::kSend}) {
      for (const int rank : waiters) {
        for (const RecordedOp& message : messages_of(*flight(rank))) {
          const auto cause = std::ranges::find(result_.causes, message.op.peer);
          if (message.op.kind != kind || cause == result_.causes.end()) continue;
          return fmt::format(": rank {} in plan step {}, {}", rank, message.op.plan_step,
                             describe(message));
        }
      }
    }
    for (const int rank : waiters) {
      const Flight& own = *flight(rank);
      if (!waits_for_all(own) || own.work.activity_bytes == 0) continue;
      return fmt::format(": rank {} in {} of {}", rank, own.work.activity,
                         count_of(own.work.activity_bytes, "byte"));
    }
    return "";
  }

  std::string cycle_text() const {
    const int first = result_.causes.front();
    const Flight& own = *flight(first);
    if (waits_for_all(own)) {
      return fmt::format("no rank is late: all wait for each other for {:.3g} s, in {}",
                         silence(first), place_of(own));
    }
    std::string text;
    for (const int rank : result_.causes) text += fmt::format("{} -> ", rank);
    return fmt::format("a deadlock: ranks {}{} wait for each other for {:.3g} s; {} in {}", text,
                       first, silence(first), name(first), place_of(own));
  }

  /// `rank 2 (host h, pid 123, gone)`; the state only if it is known.
  std::string name(int rank) const {
    const Flight& own = *flight(rank);
    const ProcessState state = run_.states[rank];
    return fmt::format("rank {} (host {}, pid {}{}{})", rank, own.host, own.pid,
                       state == ProcessState::Unknown ? "" : ", ",
                       state == ProcessState::Unknown ? "" : to_string(state));
  }

  /// ", in step 20", or nothing outside of a trainer.
  std::string steps_text() const {
    std::int64_t step = 0;
    for (int rank = 0; rank < world_; ++rank) {
      if (flight(rank)) step = std::max(step, flight(rank)->work.step);
    }
    return step > 0 ? fmt::format(", in step {}", step) : "";
  }

  RecordedRun run_;
  int world_;
  int known_end_ = -1;
  Diagnosis result_;
};

}  // namespace

std::string_view to_string(RunVerdict verdict) {
  constexpr std::array<std::string_view, 5> kNames{"ended", "under way", "failed", "stuck", "gone"};
  return kNames[static_cast<std::size_t>(verdict)];
}

double silent_s(const Flight& flight, std::int64_t reference_ns) {
  const std::int64_t last = flight.wall_ns(flight.last_event_ns());
  return std::max(0.0, static_cast<double>(reference_ns - last) * kNs);
}

Diagnosis diagnose(const RecordedRun& run, std::optional<int> known_end) {
  return Diagnoser(run, known_end).diagnose();
}

}  // namespace armillary::recorder
