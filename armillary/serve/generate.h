// generate.h: prompts continued token by token, over ranks: prefill, then draw and decode in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/serve/sampling.h"
#include "armillary/serve/sessions.h"

namespace armillary::serve {

struct GenerateOptions {
  std::int64_t tokens = 64;  ///< The most new tokens of a prompt.
  Sampling sampling;
  std::vector<std::int64_t> ends;  ///< Tokens with which a continuation ends; they are not kept.
  Sessions::Progress progress = {};
  /// Asked on rank 0 before each step of decode; true ends all continuations.
  std::function<bool()> stops = {};
  /// Called on every rank with each new token of each prompt.
  std::function<void(std::size_t prompt, std::int64_t token)> on_token = {};
};

/// New tokens by prompt, and seconds.
struct Continuations {
  std::vector<std::vector<std::int64_t>> tokens;
  double prefill_s = 0;  ///< Until the first token is drawn: the time to first token.
  double decode_s = 0;
  std::int64_t steps = 0;    ///< Calls of decode.
  bool was_stopped = false;  ///< By `progress`, or by `stops`.
};

/// Continues prompts in sessions of their own, which it opens and releases. Prompt i draws as
/// sequence i. Rank 0 draws for all, so ranks cannot come apart. `world` has all ranks that make
/// calls of sessions: those along tp too. Collective.
/// @throws as Sessions::prefill and decode, check_sampling.
Continuations generate(comm::Communicator& world, Sessions& sessions,
                       std::span<const std::vector<std::int64_t>> prompts,
                       const GenerateOptions& options);

}  // namespace armillary::serve
