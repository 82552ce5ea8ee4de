// A file is mapped, not read: words that another process stores must be seen in their order
// (format.h). Every number that is used as an enumerator is checked, since the file may be damaged.
#include "armillary/host/recorder/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/host/recorder/format.h"
#include "armillary/io/mapped_file.h"
#include "armillary/plan/problem.h"

namespace armillary::recorder {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMappedBytes = kFileWords * kWordBytes;
/// Bounds of times in nanoseconds: the year 2116, and 36 years of one boot. Sums of them fit.
constexpr std::int64_t kMostWallNs = std::int64_t{1} << 62;
constexpr std::int64_t kMostMonotonicNs = std::int64_t{1} << 60;
/// Reads of words that another process keeps changing. It needs a few stores for a change, so the
/// second try is nearly always right; a process that was killed in between never ends the change.
constexpr int kTries = 1000;

/// Nanoseconds since 1970.
std::int64_t wall_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// The text up to its zero byte; all of it in a damaged file without one. It is shown on terminals.
template <std::size_t kBytes>
std::string text_of(const Text<kBytes>& text) {
  return printable(std::string(text.begin(), std::find(text.begin(), text.end(), '\0')));
}

/// Reads one file into a Flight.
class FlightReader {
 public:
  explicit FlightReader(const std::string& path)
      : path_(path), file_({.where = "flight file", .required = "a flight file"}, path) {
    if (file_.bytes().size() >= sizeof(Identity)) check_format(load_words<Identity>(words()));
    if (std::ssize(file_.bytes()) != kMappedBytes) {
      fail<IoError>("{} has {}; a flight file of {} bytes is required", quote(path),
                    count_of(std::ssize(file_.bytes()), "byte"), kMappedBytes);
    }
  }

  /// The parts in the order of the file, then ops by number: a ring of records begins anywhere.
  Flight read() {
    read_identity();
    read_statuses();
    read_wait();
    read_ending();
    for (int i = 0; i < kOpsKept; ++i) read_record(kRecordsAt + i * kWordsOf<Record>);
    read_groups();
    std::ranges::sort(flight_.ops, {}, &RecordedOp::number);
    return std::move(flight_);
  }

 private:
  /// `value` as an enumerator. @throws IoError if it is above `last`.
  template <class Enum>
  Enum checked(std::uint64_t value, Enum last, std::size_t word) const {
    if (value > static_cast<std::uint64_t>(last)) damaged(word);
    return static_cast<Enum>(value);
  }
  /// Fails with the byte of the file.
  [[noreturn]] void damaged(std::size_t word) const {
    fail<IoError>("{} is damaged at byte {}; a flight file as it was written is required",
                  quote(path_), word * kWordBytes);
  }

  /// A time of the monotonic clock.
  std::int64_t time_of(std::int64_t ns, std::size_t word) const {
    if (ns < 0 || ns >= kMostMonotonicNs) damaged(word);
    return ns;
  }

  /// The name of the pass of a call; empty before the first one.
  std::string pass_of(const BegunCall& call, std::size_t word) const {
    if (call.number == 0) return "";
    if (call.words >= kWordsKept || call.pass >= plan::kMostPasses) damaged(word);
    std::string name = text_of(names_of(call.words).passes[call.pass]);
    if (name.empty()) damaged(word);
    return name;
  }

  /// The magic comes first: without it nothing else means anything. Files of other versions have
  /// other sizes.
  void check_format(const Identity& identity) const {
    if (identity.magic != kMagic) {
      fail<IoError>("{} is no flight file; one that `armillary train` wrote is required",
                    quote(path_));
    }
    if (identity.format_version != kFormatVersion) {
      fail<IoError>("{} has format version {}; {} is required, that of this program", quote(path_),
                    identity.format_version, kFormatVersion);
    }
  }

  /// Fixed facts.
  void read_identity() {
    const auto identity = load_words<Identity>(words());
    if (identity.check != check_of(identity) || identity.file_bytes != kMappedBytes ||
        identity.world > plan::kMaxWorld || identity.rank < 0 || identity.rank >= identity.world ||
        identity.wall_ns < 0 || identity.wall_ns >= kMostWallNs) {
      damaged(1);
    }
    flight_.world = identity.world;
    flight_.rank = identity.rank;
    flight_.host = text_of(identity.host);
    flight_.pid = identity.pid;
    flight_.process_start = identity.process_start;
    flight_.program = text_of(identity.program);
    flight_.base_wall_ns = identity.wall_ns;
    flight_.base_monotonic_ns = time_of(identity.monotonic_ns, 1);
  }

  /// The newest status is the present work, the others are earlier work.
  void read_statuses() {
    std::vector<std::pair<Word, RecordedWork>> works;  // by stamp
    for (int i = 0; i < kStatusesKept; ++i) {
      const std::size_t at = kStatusesAt + i * kWordsOf<Status>;
      const std::optional<Status> status = stable<Status>(at);
      if (!status || state_of(status->stamp) == RecordState::Unused) continue;
      works.push_back({status->stamp,
                       {.since_ns = time_of(status->time_ns, at),
                        .step = status->call.step,
                        .call = status->call.number,
                        .pass = pass_of(status->call, at),
                        .strategy = text_of(status->strategy),
                        .activity = text_of(status->activity),
                        .activity_number = status->activity_number,
                        .activity_bytes = status->activity_bytes,
                        .collective = status->collective != 0,
                        .group = group_of(status->group, at),
                        .activity_since_ns = time_of(status->activity_since_ns, at)}});
    }
    if (works.empty()) damaged(kStatusesAt);  // one is written before the magic
    std::ranges::sort(works, {}, &std::pair<Word, RecordedWork>::first);
    for (auto& [stamp, work] : works) flight_.earlier_work.push_back(std::move(work));
    flight_.work = std::move(flight_.earlier_work.back());
    flight_.earlier_work.pop_back();
  }

  /// One word, so it is never half written, and its detail, which stands as long as that.
  void read_wait() {
    Word word = 0;
    Word detail = 0;
    for (int i = 0; i < kTries; ++i) {
      word = load(words()[kWaitAt]);
      detail = load(words()[kWaitDetailAt]);
      if (load(words()[kWaitAt]) == word) break;
    }
    flight_.wait = checked(word % (1U << kWaitBits), Wait::Proof, kWaitAt);
    flight_.wait_since_ns = time_of(static_cast<std::int64_t>(word >> kWaitBits), kWaitAt);
    if (flight_.wait == Wait::None) return;
    if (detail >> kGroupBits > std::numeric_limits<std::int32_t>::max()) damaged(kWaitDetailAt);
    flight_.wait_call = static_cast<int>(detail >> kGroupBits);
    flight_.wait_group = group_of(detail % (1U << kGroupBits), kWaitDetailAt);
  }

  /// The number of a group that the file has.
  int group_of(std::uint64_t group, std::size_t word) const {
    if (group > kGroupsKept) damaged(word);
    if (group > 0 && ranks_of(static_cast<int>(group)).empty()) damaged(word);
    return static_cast<int>(group);
  }

  /// The ranks of a group, which are stored before its number is used; none if it was never made.
  std::vector<int> ranks_of(int group) const {
    const auto ranks =
        load_words<GroupRanks>(words() + kGroupsAt + (group - 1) * kWordsOf<GroupRanks>);
    std::vector<int> numbers;
    for (int rank = 0; rank < flight_.world; ++rank) {
      if (ranks.bits[rank / 64] >> rank % 64 & 1U) numbers.push_back(rank);
    }
    return numbers;
  }

  /// Last: a group that something read before it names is there.
  void read_groups() {
    for (int group = 1; group <= kGroupsKept; ++group) flight_.groups.push_back(ranks_of(group));
  }

  /// The kind was stored last: with a kind, the rest is there.
  void read_ending() {
    flight_.end = checked(load(words()[kEndingAt]), End::FailedWithPeers, kEndingAt);
    if (flight_.end == End::Running) return;
    const auto ending = load_words<EndingRecord>(words() + kEndingAt);
    flight_.end_ns = time_of(ending.time_ns, kEndingAt);
    flight_.reason = text_of(ending.reason);
  }

  /// Appends the op of the record at word `at`, if there is one.
  void read_record(std::size_t at) {
    const std::optional<Record> record = stable<Record>(at);
    if (!record || state_of(record->stamp) == RecordState::Unused) return;
    const bool complete = state_of(record->stamp) == RecordState::Done;
    std::string kind = kind_of(record->op);
    if (kind.empty()) damaged(at);
    flight_.ops.push_back({.number = record->stamp >> 2,
                           .complete = complete,
                           .start_ns = time_of(record->start_ns, at),
                           .end_ns = complete ? time_of(record->end_ns, at) : 0,
                           .step = record->call.step,
                           .call = record->call.number,
                           .pass = pass_of(record->call, at),
                           .op = record->op,
                           .kind = std::move(kind)});
    const RecordedOp& op = flight_.ops.back();
    if (op.is_message() && (op.op.peer < 0 || op.op.peer >= flight_.world)) damaged(at);
  }

  /// The name of the kind; empty if the file has none. Words are stored before the first op of
  /// them.
  std::string kind_of(const StartedOp& op) const {
    if (op.words >= kWordsKept || op.kind.number() >= plan::kMostKinds) return "";
    return text_of(names_of(op.words).kinds[op.kind.number()]);
  }

  VocabularyNames names_of(std::size_t vocabulary) const {
    return load_words<VocabularyNames>(words() + kNamesAt + vocabulary * kWordsOf<VocabularyNames>);
  }

  /// The record or status at word `at`; nothing, and counted, if it stays half written.
  template <class T>
  std::optional<T> stable(std::size_t at) {
    const Word* const record = words() + at;
    for (int i = 0; i < kTries; ++i) {
      // The stamp of the copy may be newer than the first one; then the second one differs too.
      const Word before = load(record[0]);
      auto value = load_words<T>(record);
      value.stamp = before;
      if (state_of(before) != RecordState::BeingWritten && load(record[0]) == before) return value;
    }
    ++flight_.torn;
    return std::nullopt;
  }

  const Word* words() const { return reinterpret_cast<const Word*>(file_.bytes().data()); }

  std::string path_;
  io::MappedFile file_;
  Flight flight_;
};

}  // namespace

std::int64_t Flight::last_event_ns() const {
  std::int64_t last = std::max({base_monotonic_ns, work.since_ns, wait_since_ns});
  for (const RecordedOp& op : ops) last = std::max({last, op.start_ns, op.end_ns});
  return last;
}

void Flight::rewind_to(std::int64_t monotonic_ns) {
  // Ops that began later go; ops that ended later are under way again.
  std::erase_if(ops, [&](const RecordedOp& op) { return op.start_ns > monotonic_ns; });
  for (RecordedOp& op : ops) {
    if (!op.complete || op.end_ns <= monotonic_ns) continue;
    op.complete = false;
    op.end_ns = 0;
  }
  // The work of that time, as far back as statuses are kept.
  while (work.since_ns > monotonic_ns && !earlier_work.empty()) {
    work = std::move(earlier_work.back());
    earlier_work.pop_back();
  }
  if (wait_since_ns <= monotonic_ns) return;
  wait = Wait::None;
  wait_since_ns = 0;
  wait_call = 0;
  wait_group = 0;
}

Flight read_flight(const std::string& path) {
  return FlightReader(path).read();
}

RecordedRun read_run(const std::string& run_folder) {
  // Files whose names begin with rank-.
  const fs::path folder = fs::path(run_folder) / "flight";
  std::error_code error;
  std::vector<Flight> flights;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    const std::string name = entry->path().filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".bin")) continue;
    flights.push_back(read_flight(path));
    if (path != flight_path(run_folder, flights.back().rank)) {
      fail<IoError>("{} is the file of rank {}; the name {} is required", quote(path),
                    flights.back().rank, quote(flight_path(run_folder, flights.back().rank)));
    }
  }
  if (error) {
    const bool nothing = error == std::errc::no_such_file_or_directory;
    fail<IoError>("{} {}; the folder of a run is required", quote(folder.string()),
                  nothing ? "does not exist" : fmt::format("cannot be read ({})", error.message()));
  }
  if (flights.empty()) {
    fail<IoError>("{} has no flight files; the folder of a run is required",
                  quote(folder.string()));
  }
  // By rank, with the states of their processes.
  // The newest file is of the run in question; a run before it may have had more ranks.
  const int world = std::ranges::max(flights, {}, &Flight::base_wall_ns).world;
  RecordedRun run{.now_ns = wall_now_ns()};
  run.flights.resize(world);
  run.states.assign(world, ProcessState::Unknown);
  for (Flight& flight : flights) {
    if (flight.world != world) continue;
    const int rank = flight.rank;
    run.states[rank] = state_of(flight.host, flight.pid, flight.process_start);
    run.flights[rank] = std::move(flight);
  }
  return run;
}

}  // namespace armillary::recorder
