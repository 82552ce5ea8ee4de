// The file is always a new one: a process that still writes to an older one keeps its own pages.
// Its first word is stored last, so a file that is not complete is refused by readers. All later
// calls only store words (format.h has the order).
#include "armillary/host/recorder/recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/core/user_text.h"
#include "armillary/host/recorder/format.h"
#include "armillary/host/recorder/process_state.h"
#include "armillary/io/mapped_file.h"
#include "armillary/plan/program/vocabulary.h"

namespace armillary::recorder {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFileBytes = kFileWords * kWordBytes;

/// Nanoseconds since the epoch of the clock.
template <class Clock>
std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

/// Cuts the text so that a zero byte fits behind it.
template <std::size_t kBytes>
void assign(Text<kBytes>& to, std::string_view text) {
  to.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), kBytes - 1), to.begin());
}

[[noreturn]] void refuse(const std::string& path, int error) {
  fail<IoError>(
      "recorder: {} cannot be made ({}); a folder that can be written, on a disk with {} "
      "bytes left, is required",
      excerpt(path), std::strerror(error), kFileBytes);
}

/// The file of an earlier run, until this one has begun.
std::string earlier_path(const std::string& path) {
  return path + ".earlier";
}

/// Makes room for a new file. The one that is there is set aside; if one has been already, it is of
/// a run that was killed before it began.
void set_aside(const std::string& path) {
  std::error_code error;
  const bool is_file = fs::is_regular_file(fs::symlink_status(path, error));
  if (is_file && !fs::exists(earlier_path(path), error)) {
    fs::rename(path, earlier_path(path), error);
  } else {
    fs::remove(path, error);
  }
  if (error) refuse(path, error.value());
}

/// Puts the earlier file back, if there is one.
void put_back(const std::string& path) {
  std::error_code error;  // Without one, there is nothing to do.
  fs::rename(earlier_path(path), path, error);
}

/// Makes the file at `path`, all zeros, and maps it. @throws IoError; no file is left then, or the
/// earlier one.
io::MappedFile map_new_file(const std::string& path) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) refuse(path, error.value());
  set_aside(path);
  try {
    return io::MappedFile::create(path, kFileBytes);
  } catch (const std::system_error& failure) {
    put_back(path);
    refuse(path, failure.code().value());
  }
}

}  // namespace

std::int64_t monotonic_ns() noexcept {
  return now_ns<std::chrono::steady_clock>();
}

std::string flight_path(const std::string& run_folder, int rank) {
  return (fs::path(run_folder) / "flight" / fmt::format("rank-{:04}.bin", rank)).string();
}

struct Recorder::Mapping {
  std::string path;
  io::MappedFile file;
  Word* words = nullptr;
  Status status = {};
  std::uint64_t statuses = 0;  ///< Number of the next one.
  bool has_begun = false;
  std::vector<const plan::Vocabulary*> words_kept = {};
  int world = 0;
  std::vector<GroupRanks> groups_kept = {};

  explicit Mapping(const std::string& at)
      : path(at),
        file(map_new_file(at)),
        words(reinterpret_cast<Word*>(file.writable_bytes().data())) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (!has_begun) put_back(path);
  }

  /// The first step or call begins: the earlier file has had its time.
  void begin() noexcept {
    if (has_begun) return;
    has_begun = true;
    unlink(earlier_path(path).c_str());
  }

  /// The place of an op, which the op kOpsKept before it had.
  Word* record(std::uint64_t op) { return words + kRecordsAt + op % kOpsKept * kWordsOf<Record>; }

  /// Writes the status to the next of its places; the earlier ones stay readable.
  void publish_status(std::int64_t now) {
    status.time_ns = now;
    publish(words + kStatusesAt + statuses % kStatusesKept * kWordsOf<Status>, status, statuses);
    ++statuses;
  }

  /// Stores a record or status, all but its stamp between two stores of the stamp.
  template <class T>
  static void publish(Word* to, const T& value, std::uint64_t number) {
    store(to[0], stamp_of(number, RecordState::BeingWritten));
    store_words(to, value, 1);
    store(to[0], stamp_of(number, RecordState::Started));
  }

  /// The kind is stored last, so a reader that sees it sees the whole reason.
  void publish_end(End kind, std::string_view reason) {
    // The first end counts: later ones are its consequences.
    if (load(words[kEndingAt]) != 0) return;
    EndingRecord ending{.kind = static_cast<Word>(kind), .time_ns = monotonic_ns()};
    assign(ending.reason, reason);
    store_words(words + kEndingAt, ending, 1);
    store(words[kEndingAt], ending.kind);
  }
};

Recorder::Recorder(const std::string& run_folder, const RecordedRank& rank) {
  ARMILLARY_CHECK(rank.rank >= 0 && rank.rank < rank.world);
  mapping_ = std::make_unique<Mapping>(flight_path(run_folder, rank.rank));
  mapping_->world = rank.world;
  mapping_->groups_kept.reserve(kGroupsKept);
  // Two clocks at one moment: times of files from several hosts are compared by the wall clock.
  Identity identity{.file_bytes = kFileBytes,
                    .world = rank.world,
                    .rank = rank.rank,
                    .pid = getpid(),
                    .process_start = process_start_of(getpid()),
                    .wall_ns = now_ns<std::chrono::system_clock>(),
                    .monotonic_ns = monotonic_ns()};
  assign(identity.host, this_host());
  assign(identity.program, rank.program);
  identity.check = check_of(identity);
  mapping_->publish_status(identity.monotonic_ns);
  // The magic goes last: a file without it is none.
  store_words(mapping_->words, identity, 1);
  store(mapping_->words[0], identity.magic);
}

Recorder::~Recorder() = default;

void Recorder::begin_step(std::int64_t step) noexcept {
  mapping_->begin();
  // Calls and activities are numbered from 1 in each step.
  mapping_->status.call = {.step = step};
  mapping_->status.activity_number = 0;
  mapping_->publish_status(monotonic_ns());
}

void Recorder::set_activity(const Activity& activity) noexcept {
  Status& status = mapping_->status;
  ++status.activity_number;
  assign(status.activity, activity.name);
  status.activity_bytes = activity.bytes;
  status.collective = activity.collective ? 1 : 0;
  status.group = activity.group;
  status.activity_since_ns = monotonic_ns();
  mapping_->publish_status(status.activity_since_ns);
}

BegunCall Recorder::begin_call(std::string_view strategy, std::uint8_t words, int pass,
                               std::int64_t at_ns) noexcept {
  mapping_->begin();
  Status& status = mapping_->status;
  ++status.call.number;
  status.call.words = words;
  status.call.pass = static_cast<std::uint16_t>(pass);
  assign(status.strategy, strategy);
  mapping_->publish_status(at_ns);
  return status.call;
}

std::uint8_t Recorder::words(const plan::Vocabulary& words) {
  std::vector<const plan::Vocabulary*>& vocabularies = mapping_->words_kept;
  const auto at = std::ranges::find(vocabularies, &words);
  const auto number = static_cast<std::size_t>(at - vocabularies.begin());
  if (at != vocabularies.end()) return static_cast<std::uint8_t>(number);
  ARMILLARY_CHECK(number < kWordsKept);
  VocabularyNames names;
  assign(names.vocabulary, words.name);
  for (std::size_t k = 0; k < words.kinds.size(); ++k) assign(names.kinds[k], words.kinds[k].name);
  for (std::size_t p = 0; p < words.passes.size(); ++p) assign(names.passes[p], words.passes[p]);
  store_words(mapping_->words + kNamesAt + number * kWordsOf<VocabularyNames>, names);
  vocabularies.push_back(&words);
  return static_cast<std::uint8_t>(number);
}

std::uint8_t Recorder::group(std::span<const int> ranks) noexcept {
  if (static_cast<int>(ranks.size()) == mapping_->world) return 0;
  GroupRanks group;
  for (const int rank : ranks) group.bits[rank / 64] |= Word{1} << rank % 64;
  std::vector<GroupRanks>& vocabularies = mapping_->groups_kept;
  const auto at = std::ranges::find(vocabularies, group) - vocabularies.begin();
  if (at == kGroupsKept) return 0;
  if (at == std::ssize(vocabularies)) {
    store_words(mapping_->words + kGroupsAt + at * kWordsOf<GroupRanks>, group);
    vocabularies.push_back(group);
  }
  return static_cast<std::uint8_t>(at + 1);
}

std::uint64_t Recorder::start(const StartedOp& op) noexcept {
  return start(op, mapping_->status.call, monotonic_ns());
}

std::uint64_t Recorder::start(const StartedOp& op, const BegunCall& call,
                              std::int64_t at_ns) noexcept {
  const std::uint64_t number = next_++;
  mapping_->publish(mapping_->record(number), Record{.start_ns = at_ns, .call = call, .op = op},
                    number);
  return number;
}

void Recorder::finish(std::uint64_t op, std::int64_t at_ns) noexcept {
  if (op + kOpsKept < next_) return;
  // Readers look at the end only in a record that is done, so one word can be stored after another.
  Word* const words = mapping_->record(op);
  store(words[offsetof(Record, end_ns) / kWordBytes], static_cast<Word>(at_ns));
  store(words[0], stamp_of(op, RecordState::Done));
}

void Recorder::wait(Wait why, const WaitDetail& detail) noexcept {
  const Word word = static_cast<Word>(detail.call) << kGroupBits | detail.group;
  if (load(mapping_->words[kWaitDetailAt]) != word) {
    store(mapping_->words[kWaitAt], 0);
    store(mapping_->words[kWaitDetailAt], word);
  }
  store(mapping_->words[kWaitAt],
        static_cast<Word>(monotonic_ns()) << kWaitBits | static_cast<Word>(why));
}

void Recorder::resume() noexcept {
  store(mapping_->words[kWaitAt], 0);
}

void Recorder::end() noexcept {
  mapping_->publish_end(End::Done, "");
}

void Recorder::fail(End kind, std::string_view reason) noexcept {
  mapping_->publish_end(kind, reason);
}

}  // namespace armillary::recorder
