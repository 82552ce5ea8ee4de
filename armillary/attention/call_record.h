// call_record.h: what a rank is asked for, as ranks compare it: as bytes, and in words where they
// differ.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/plan/strategy.h"
#include "armillary/proof/digest.h"
#include "armillary/runtime/program_cache.h"

namespace armillary::attention {

/// A problem and a strategy as ranks compare them, and what was compiled for them.
struct Described {
  plan::Problem problem;
  std::string strategy_text;
  std::optional<plan::Strategy> strategy;  ///< None if the text names none.
  proof::Digest key;
  std::string words;  ///< `name=value`, spaces between; the first bands of the mask only.
  std::shared_ptr<const runtime::CompiledAttention> programs;  ///< Null before they are compiled.
};

/// What a rank made of the most recent problems: a layer asks in every step. One thread.
class RecentCalls {
 public:
  /// Valid until the next call. Never refuses.
  Described& described(const plan::Problem& problem, const std::string& strategy_text);

 private:
  std::deque<Described> recent_;
};

/// What a rank is asked for.
struct Asked {
  std::string_view call;     ///< Name of the function.
  proof::Digest key;         ///< Of problem and strategy.
  std::string_view problem;  ///< Problem and strategy as words `name=value`.
  double scale = 0;
  const AttentionOptions&
      options;  ///< `proofs` may differ: it is where proofs lie on this machine.
  std::string_view version = proof::version();  ///< Of the library: others may plan otherwise.
};

/// What a rank was asked for, as it travels: of one size on all ranks, compared as bytes.
struct CallRecord {
  struct Optional {
    double value;
    std::uint64_t is_given;
  };
  proof::Digest key;
  double scale;
  Optional softcap;
  double dropout;
  std::uint64_t dropout_seed;
  std::uint64_t dropout_step;
  Optional timeout_s;
  proof::Digest slopes;  ///< 0 for none, like `sinks`.
  proof::Digest sinks;
  std::uint64_t max_logit;
  char version[16];
  char call[16];
  char problem[872];  ///< Asked::problem, cut off where it is longer.
};
static_assert(sizeof(CallRecord) == 1024 && std::is_trivially_copyable_v<CallRecord>);

CallRecord record_of(const Asked& asked);

/// Words `name=value`, the same names in the same order for every record.
std::vector<std::string> words_of(const CallRecord& record);

}  // namespace armillary::attention
