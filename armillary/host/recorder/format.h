// format.h: format of a flight file, which the recorder writes through memory that is mapped to the
// file, and others read at any time. Internal to this folder.
//
//   byte 0      Identity    written once; its first word last
//        256    wait        one word: whether the rank waits, for what, and since when
//        264    its detail  one word: the call or group of the wait
//        320    EndingRecord once; its first word last
//        1024   Status[kStatusesKept]    status n is at n modulo kStatusesKept
//        3584   Record[kOpsKept]         op n is record n modulo kOpsKept
//        67584  VocabularyNames[kWordsKept] words w are at w; each is written once
//        69600  GroupRanks[kGroupsKept]     group g, from 1, is at g - 1; each is written once
//
// Rule of all words. A writer may stop for ever between any two stores. So every word of 8 bytes is
// stored with release and read with acquire order: a reader that sees a store sees all stores
// before it. Records and statuses begin with a stamp, which is stored first, as "being written",
// and once more at the end; a reader takes the words between two equal reads of it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "armillary/host/recorder/recorder.h"
#include "armillary/plan/plan.h"
#include "armillary/plan/problem.h"
#include "armillary/plan/program/vocabulary.h"

namespace armillary::recorder {

inline constexpr std::uint64_t kMagic = 0x544847494c465241;  ///< "ARFLIGHT"
/// Raised with every change of the format; readers refuse other versions.
inline constexpr std::uint32_t kFormatVersion = 5;

/// The unit of all stores: a CPU never shows half of an aligned one.
using Word = std::uint64_t;

/// A text in a fixed place, ended by a zero byte; longer texts are cut.
template <std::size_t kBytes>
using Text = std::array<char, kBytes>;

/// Facts about the process, fixed when the file is made.
struct Identity {
  /// Stored last, when all the rest of the file can be read.
  std::uint64_t magic = kMagic;
  std::uint32_t format_version = kFormatVersion;
  /// Size of the whole file.
  std::uint32_t file_bytes = 0;
  std::int32_t world = 0;
  std::int32_t rank = 0;
  std::int64_t pid = 0;
  std::int64_t process_start = 0;  ///< process_start_of(pid) (process_state.h)
  std::int64_t wall_ns = 0;        ///< Clock base: the same moment on the two clocks.
  std::int64_t monotonic_ns = 0;
  /// Name of the machine: states of processes are known on the same machine only.
  Text<80> host{};
  /// Version of the program.
  Text<32> program{};
  /// check_of() the words before it: a world that nobody wrote would be believed otherwise, and
  /// readers make room for its ranks.
  Word check = 0;
};

/// Enough for the statuses that a late rank still writes before it hears of a failure.
inline constexpr int kStatusesKept = 16;

/// Work of the rank outside of single ops, from `time_ns` on. Earlier ones are kept because a rank
/// that comes too late still goes on for some statuses before it hears that the group has failed.
struct Status {
  Word stamp = 0;
  std::int64_t time_ns = 0;
  BegunCall call{};                  ///< The one that began last; without a number in a new step.
  std::int32_t activity_number = 0;  ///< In the step, from 1.
  std::int16_t collective = 0;       ///< Activity::collective
  std::uint16_t group = 0;           ///< Activity::group
  /// Start of the activity; a call in it moves only `time_ns`.
  std::int64_t activity_since_ns = 0;
  std::int64_t activity_bytes = 0;
  /// Strategy of the last call.
  Text<48> strategy{};
  /// Name of the last activity.
  Text<48> activity{};
};

/// How the rank ended. `kind` is an End and is stored last.
struct EndingRecord {
  std::uint64_t kind = 0;
  std::int64_t time_ns = 0;
  /// Text of the error, if there is one.
  Text<512> reason{};
};

/// State of a record or status, the lowest two bits of its stamp; the others are the number of the
/// op or status. A complete status stays Started.
enum class RecordState : std::uint8_t { Unused, BeingWritten, Started, Done };

/// Stamps of one place grow with each reuse, which tells a new record from the one it replaced.
inline constexpr Word stamp_of(std::uint64_t number, RecordState state) {
  return number << 2 | static_cast<Word>(state);
}
/// The other part of a stamp.
inline constexpr RecordState state_of(Word stamp) {
  return static_cast<RecordState>(stamp & 3);
}

/// One op. A cache line.
struct Record {
  std::uint64_t stamp = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;  ///< Stored before the stamp becomes Done; not read before.
  BegunCall call{};
  StartedOp op{};
};
static_assert(sizeof(Record) == 64);

/// Names of the kinds of ops and of the passes of one vocabulary. Those behind the last are empty.
struct VocabularyNames {
  Text<24> vocabulary{};
  std::array<Text<24>, plan::kMostKinds> kinds{};
  std::array<Text<24>, plan::kMostPasses> passes{};
};

/// The ranks of a group, a bit for each rank of the run; none are set if there is no such group.
struct GroupRanks {
  std::array<Word, plan::kMaxWorld / 64> bits{};
  bool operator==(const GroupRanks&) const = default;
};

// Places in the file, in words.

inline constexpr std::size_t kWordBytes = sizeof(Word);
template <class T>
inline constexpr std::size_t kWordsOf = sizeof(T) / kWordBytes;
/// Each part begins behind the one before it; the assertion below holds that.
inline constexpr std::size_t kWaitAt = 256 / kWordBytes;
inline constexpr std::size_t kWaitDetailAt = kWaitAt + 1;
inline constexpr std::size_t kEndingAt = 320 / kWordBytes;
inline constexpr std::size_t kStatusesAt = 1024 / kWordBytes;
inline constexpr std::size_t kRecordsAt = 3584 / kWordBytes;
inline constexpr std::size_t kNamesAt = kRecordsAt + kOpsKept * kWordsOf<Record>;
inline constexpr std::size_t kGroupsAt = kNamesAt + kWordsKept * kWordsOf<VocabularyNames>;
inline constexpr std::size_t kFileWords = kGroupsAt + kGroupsKept * kWordsOf<GroupRanks>;
static_assert(kWordsOf<Identity> <= kWaitAt && kWaitDetailAt < kEndingAt &&
              kEndingAt + kWordsOf<EndingRecord> <= kStatusesAt &&
              kStatusesAt + kStatusesKept * kWordsOf<Status> <= kRecordsAt);

/// The wait word: when the wait began (monotonic ns) times 8, plus the Wait; 0 if there is none.
// One word and not a structure, so that a wait costs one store and is never half written.
inline constexpr int kWaitBits = 3;
/// The detail of a wait: the call times 2^8, plus the group. It changes only while the wait word is
/// 0, so a reader takes it between two equal reads of that.
inline constexpr int kGroupBits = 8;

/// Publishes all stores before it.
inline void store(Word& word, Word value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}
/// Only reads; atomic_ref wants memory that it could write.
inline Word load(const Word& word) {
  return std::atomic_ref(const_cast<Word&>(word)).load(std::memory_order_acquire);
}

/// Stores the words of `value`, one after the other, from word `first` of it on.
template <class T>
void store_words(Word* to, const T& value, std::size_t first = 0) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % kWordBytes == 0);
  const auto* const from = reinterpret_cast<const std::byte*>(&value);
  for (std::size_t i = first; i < kWordsOf<T>; ++i) {
    Word word = 0;
    std::memcpy(&word, from + i * kWordBytes, kWordBytes);
    store(to[i], word);
  }
}

/// A hash of the words of an identity but the last.
inline Word check_of(const Identity& identity) {
  const auto words = std::bit_cast<std::array<Word, kWordsOf<Identity>>>(identity);
  Word hash = 0xcbf29ce484222325;  // FNV-1a, on words
  for (std::size_t i = 0; i + 1 < words.size(); ++i) hash = (hash ^ words[i]) * 0x100000001b3;
  return hash;
}

/// The words of a value, each read whole. Whether they belong together is for the caller to check.
template <class T>
T load_words(const Word* from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % kWordBytes == 0);
  std::array<Word, kWordsOf<T>> words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = load(from[i]);
  return std::bit_cast<T>(words);
}

}  // namespace armillary::recorder
