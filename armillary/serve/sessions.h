// sessions.h: sequences that a model reads and continues, over ranks: prompts are prefilled in
// passes, tokens are decoded for several sessions at once, and what was read is kept in a cache
// that is spread over the ranks.
//
//   open --> prefill(prompt) --> logits --> decode(token) --> logits --> ..  release
//              '--fork--> a second session that shares what was read
//
// Logits are those of one rank that reads each session whole, up to rounding, for any number of
// ranks, layout, strategy, and chunks of any size; what other sessions are in a call changes them
// by the rounding of matrix products at most. They are the same bits on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/program/program.h"
#include "armillary/plan/relayout/cache_layout.h"
#include "armillary/serve/kv_cache.h"
#include "armillary/serve/windows.h"

namespace armillary::serve {

struct SessionsOptions {
  plan::Layout layout = {.kind = plan::LayoutKind::Zigzag};  ///< A chunk over the ranks.
  std::string strategy = "ring";                             ///< Attention within a chunk.
  /// Most tokens of a pass over all sessions; 0: a prompt is read at once. A pass of fewer than a
  /// page for each rank is not worth spreading: each rank computes all of it (pass.h).
  std::int64_t chunk = 0;
  /// In decode and in passes that are not spread: false, every rank projects all new tokens, and a
  /// layer has one exchange; true, each projects some of them and queries are gathered, which is a
  /// second exchange and pays for steps of many sessions.
  bool gather_queries = false;
  KvCacheOptions cache = {};  ///< Its window is that of the widest layer, whatever it says.
  /// Keys that a token sees in the layers, as KeyWindows takes them (windows.h); none: all before
  /// it.
  std::vector<std::int64_t> windows = {};
  /// Ranks along tp, each with its range of the weights: then all ranks of the mesh make the same
  /// calls, and the communicator is that along cp. Null: none.
  std::shared_ptr<model::TensorParallel> tensor_parallel = {};
};

/// Tokens for one session.
struct Prompt {
  SessionId session = 0;
  std::vector<std::int64_t> tokens;  ///< At least one.
};

/// The next token of one session.
struct NextToken {
  SessionId session = 0;
  std::int64_t token = 0;
};

struct PassContext;
struct PassPart;

/// The sessions of a model on one rank. Collective: all ranks make the same calls with the same
/// values, in the same order. `model` calls the attention that it is given once a layer, with as
/// many keys as queries, and knows no cache; it has causal masks, with windows or without, and
/// rotary frequencies that do not change with the length (check_length of model_weights.h).
/// Sessions leave pages that are behind all windows. Threads: that of the rank.
class Sessions {
 public:
  /// `use` gives the weights of a unit, on all ranks alike. All must outlive the object.
  /// @throws InvalidArgument for a layout, windows or a cache that cannot be, or a strategy as
  /// parse_strategy(); PlanError if the exchange of decode is not proved.
  Sessions(comm::Communicator& comm, model::Model& model,
           std::function<model::Weights(int unit)> use, SessionsOptions options);

  SessionId open() { return cache_.open(); }
  SessionId fork(SessionId session) { return cache_.fork(session); }
  void release(SessionId session) { cache_.release(session); }
  std::int64_t tokens(SessionId session) const { return cache_.tokens(session); }
  const KvCache& cache() const { return cache_; }

  /// Called between the passes of a prefill with the tokens that are read and that are to be read.
  /// False ends the prefill; all ranks must answer alike.
  using Progress = std::function<bool(std::int64_t tokens, std::int64_t of)>;
  /// Reads prompts of any lengths behind what their sessions have read. Returns the logits [B, V]
  /// behind the last token of each prompt; undefined if it was ended: sessions then have read whole
  /// chunks, from which they may go on.
  /// @throws InvalidArgument for a session that is not open or comes twice, a prompt without
  /// tokens, a token that is not in the vocabulary, or a cache without room, on all ranks alike,
  /// with what was read before; any other error, such as CommError, or that of a strategy that the
  /// ranks or heads do not allow, ends the group.
  at::Tensor prefill(std::span<const Prompt> prompts, const Progress& progress = {});

  /// Reads a prompt as prefill, and brings its session to the layout `to`, whose extents are set
  /// here: all tokens in `deal` over its ranks. If the last pass is spread, K and V of a layer
  /// leave beside the layers behind it, and are waited for at its end; else behind it. @throws as
  /// prefill and relayout; without room in the new layout, the prompt is read and the layout as
  /// prefill leaves it.
  struct PrefillResult {
    at::Tensor logits_BV;    ///< As of prefill; of one prompt.
    std::int64_t bytes = 0;  ///< That all ranks sent for the new layout.
  };
  PrefillResult prefill_to(const Prompt& prompt, plan::relayout::CacheLayout to,
                           const plan::Layout& deal);

  /// Adds one token to each session. Returns the logits [B, V] behind it. One exchange a layer, or
  /// two (gather_queries), whose bytes do not grow with what was read. @throws as prefill.
  at::Tensor decode(std::span<const NextToken> next);

  /// Moves what a session has read to another layout, by a proved plan (plan/relayout), for ranks
  /// of this group: head groups and stages are 1. New tokens of decode go to its ranks, page by
  /// page in turn; a prefill that is spread brings it to all ranks again first. Tokens behind all
  /// windows stay behind. Returns the bytes that all ranks sent.
  /// @throws InvalidArgument as plan::relayout::check_shape, or for a cache without room.
  std::int64_t relayout(SessionId session, const plan::relayout::CacheLayout& layout);

 private:
  PassContext context();
  /// A prefill. `move` is for one prompt, and may be null.
  struct Move;
  at::Tensor read(std::span<const Prompt> prompts, const Progress& progress, Move* move);
  void check_sessions(std::span<const SessionId> sessions) const;
  void check_tokens(std::span<const std::int64_t> tokens) const;
  /// The tokens of prompts, which are checked.
  std::int64_t check_prompts(std::span<const Prompt> prompts) const;
  /// A pass whose tokens are not spread, and one whose tokens are.
  at::Tensor run_few(std::span<const PassPart> parts);
  at::Tensor run_many(std::span<const PassPart> parts, Move* move);
  /// Brings a session to a layout over all ranks, if it is on some of them.
  void spread_out(SessionId session);

  comm::Communicator& comm_;
  model::Model& model_;
  const std::function<model::Weights(int unit)> use_;
  const SessionsOptions options_;
  const plan::RankProgram exchange_;  ///< As PassContext has it.
  const KeyWindows windows_;
  KvCache cache_;
};

}  // namespace armillary::serve
