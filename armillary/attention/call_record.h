// call_record.h: the request that a rank was given, in the two forms in which ranks compare it:
// bytes, which decide whether two requests are equal, and words `name=value`, which say where they
// differ.
//
//   problem, strategy --KnownProblems--> KnownProblem: key, words, programs   made once
//   CallRequest: those and all options --record_of--> CallRecord: 1 KiB       made every call
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/proof/digest.h"
#include "armillary/runtime/group_state.h"

namespace armillary::attention {

/// Everything that must be equal on all ranks, as views of the caller's values.
struct CallRequest {
  std::string_view call;     ///< Name of the function: "attention", "keep", ..
  proof::Digest key;         ///< runtime::KnownProblem::key.
  std::string_view problem;  ///< runtime::KnownProblem::words.
  double scale = 0;          ///< Scale of the scores, the default filled in.
  /// Compared are all of them but `proofs`, which is a path of this rank's machine, and `programs`:
  /// the programs themselves are compared when they are proved.
  const AttentionOptions& options;
  /// Version of this library: another one may make other plans of the same problem.
  std::string_view version = proof::version();
};

/// Problem and strategy as words `name=value` with spaces between. A mask of many bands is cut
/// short: "version=0.1.0 strategy=ring layout=contiguous .. mask=48x48:0-48/0-48/-47..0".
std::string words_of(const plan::Problem& problem, const std::string& strategy);

/// A problem and strategy that nobody has asked for before, without programs. `choice`: the
/// strategy that a text such as `auto` stands for (shared_choice.h); none for other texts. Throws
/// nothing: a strategy that does not exist is refused by whoever compiles it.
runtime::KnownProblem new_problem(const plan::Problem& problem, const std::string& strategy_text,
                                  const std::optional<plan::Strategy>& choice);

/// A request as it travels. Every rank sends the same number of bytes, and two records are equal if
/// their bytes are, so the struct has no padding and unused bytes of its texts are 0.
struct CallRecord {
  /// A std::optional without padding; the value is 0 if none is given.
  struct Optional {
    double value;
    std::uint64_t is_given;
  };
  proof::Digest key;
  // Options, by value.
  double scale;
  Optional softcap;
  double dropout;
  std::uint64_t dropout_seed;
  std::uint64_t dropout_step;
  Optional timeout_s;
  // Tensors, by digests of dtype, shape and values; 0 for none.
  proof::Digest slopes;
  proof::Digest sinks;
  std::uint64_t max_logit;  ///< Whether the largest logits are returned.
  std::uint64_t sequence;   ///< AttentionOptions::sequence.
  // Texts end with a zero. A problem that is longer is cut off; `key` stands for all of it.
  char version[16];
  char call[16];
  char problem[864];
};
static_assert(sizeof(CallRecord) == 1024 && std::is_trivially_copyable_v<CallRecord>);

/// Cost: reads the slopes and sinks, H numbers each, for their digests; waits for the device that
/// has them.
CallRecord record_of(const CallRequest& request);

/// Words `name=value` in one order for all records: "version=0.1.0", "call=attention",
/// "scale=0.125", .., the words of the problem, and its digest.
std::vector<std::string> words_of(const CallRecord& record);

}  // namespace armillary::attention
