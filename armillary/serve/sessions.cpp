// sessions.cpp: prompts are cut into passes in their order: a pass takes as many tokens as it may,
// from one prompt or from several.
#include "armillary/serve/sessions.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/decode/check_decode.h"
#include "armillary/plan/program/grid.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/serve/cache_move.h"
#include "armillary/serve/pass.h"

namespace armillary::serve {
namespace {

using plan::relayout::CacheLayout;

plan::Dtype plan_dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return plan::Dtype::F64;
    case at::kBFloat16:
      return plan::Dtype::Bf16;
    case at::kHalf:
      return plan::Dtype::F16;
    default:
      return plan::Dtype::F32;
  }
}

/// Some rows of a layer in one tensor.
at::Tensor joined_rows(const std::vector<plan::Interval>& rows, const at::Tensor& none,
                       const std::function<at::Tensor(plan::Interval)>& read) {
  std::vector<at::Tensor> parts;
  for (const plan::Interval& range : rows) parts.push_back(read(range));
  return parts.empty() ? none : at::cat(parts);
}

void check_options(const SessionsOptions& options) {
  if (options.layout.kind == plan::LayoutKind::Balanced || options.layout.stripe < 1) {
    fail<InvalidArgument>(
        "serve: layout {} given; contiguous, zigzag or striped is required; nearest: zigzag",
        to_string(options.layout));
  }
  if (options.chunk < 0) {
    fail<InvalidArgument>("serve: chunk {} given; at least 1, or 0 for whole prompts, is required",
                          options.chunk);
  }
}

/// The program of a rank for the exchange of a layer. The plan does not know tokens and heads: each
/// message has all of them.
plan::RankProgram proved_exchange(const comm::Communicator& comm) {
  const plan::decode::DecodeShape shape{.world = comm.world()};
  const plan::decode::Decode decode = build_decode(shape);
  const std::vector<plan::Diagnostic> faults = check_decode(decode.world(), shape, 1);
  if (!faults.empty()) {
    fail<PlanError>("decode: {}: {}\n{}", faults[0].rule, faults[0].text,
                    to_string(decode.world(), &faults[0]));
  }
  return decode.ranks[static_cast<std::size_t>(comm.rank())];
}

}  // namespace

Sessions::Sessions(comm::Communicator& comm, model::Model& model,
                   std::function<model::Weights(int unit)> use, SessionsOptions options)
    : comm_(comm),
      model_(model),
      use_(std::move(use)),
      options_(std::move(options)),
      exchange_(proved_exchange(comm)),
      windows_(options_.windows),
      cache_(
          {.page = options_.cache.page, .pages = options_.cache.pages, .window = windows_.widest()},
          comm.rank(), comm.world()) {
  check_options(options_);
}

PassContext Sessions::context() {
  return {.comm = comm_,
          .cache = cache_,
          .model = model_,
          .use = use_,
          .tensor_parallel = options_.tensor_parallel,
          .layout = options_.layout,
          .strategy = options_.strategy,
          .exchange = exchange_,
          .windows = windows_};
}

void Sessions::check_sessions(std::span<const SessionId> sessions) const {
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    cache_.tokens(sessions[i]);  // Throws if it is not open.
    if (std::ranges::count(sessions, sessions[i]) == 1) continue;
    fail<InvalidArgument>("serve: session {} given twice; once in a call is required", sessions[i]);
  }
}

void Sessions::check_tokens(std::span<const std::int64_t> tokens) const {
  for (const std::int64_t token : tokens) {
    if (token >= 0 && token < model_.vocab_size()) continue;
    fail<InvalidArgument>("serve: token {} given; one from 0 to {}, of the vocabulary, is required",
                          token, model_.vocab_size() - 1);
  }
}

at::Tensor Sessions::prefill(std::span<const Prompt> prompts, const Progress& progress) {
  std::vector<SessionId> sessions;
  std::int64_t all = 0;
  for (const Prompt& prompt : prompts) {
    sessions.push_back(prompt.session);
    all += static_cast<std::int64_t>(prompt.tokens.size());
    check_tokens(prompt.tokens);
    if (!prompt.tokens.empty()) continue;
    fail<InvalidArgument>("serve: a prompt without tokens given for session {}; 1 is required",
                          prompt.session);
  }
  check_sessions(sessions);
  const PassContext context = this->context();
  const std::int64_t most = options_.chunk > 0 ? options_.chunk : all;
  std::vector<at::Tensor> features_BE;
  std::size_t prompt = 0;   // The first that is not read to its end.
  std::int64_t begin = 0;   // Its first token that is not read.
  std::int64_t tokens = 0;  // Read so far.
  while (prompt < prompts.size()) {
    if (progress && !progress(tokens, all)) return {};
    // A pass: the rest of this prompt, or a chunk of it, and those behind it that fit.
    std::vector<PassPart> parts;
    std::int64_t room = most;
    while (room > 0 && prompt < prompts.size()) {
      const std::span<const std::int64_t> rest =
          std::span(prompts[prompt].tokens).subspan(static_cast<std::size_t>(begin));
      const std::int64_t count = std::min(room, static_cast<std::int64_t>(rest.size()));
      const bool is_last = count == static_cast<std::int64_t>(rest.size());
      parts.push_back({.session = prompts[prompt].session,
                       .tokens = rest.first(static_cast<std::size_t>(count)),
                       .is_last = is_last});
      room -= count;
      begin = is_last ? 0 : begin + count;
      prompt += is_last ? 1 : 0;
    }
    const std::int64_t count = most - room;
    if (comm_.world() == 1 || count < options_.cache.page * comm_.world()) {
      features_BE.push_back(run_few(parts));
    } else {
      for (const PassPart& part : parts) spread_out(part.session);
      features_BE.push_back(run_spread(context, parts));
    }
    tokens += count;
  }
  if (progress) progress(tokens, all);
  if (features_BE.empty()) return at::empty({0, model_.vocab_size()});
  return logits_of(context, at::cat(features_BE));
}

at::Tensor Sessions::decode(std::span<const NextToken> next) {
  std::vector<SessionId> sessions;
  std::vector<std::int64_t> tokens;
  for (const NextToken& one : next) {
    sessions.push_back(one.session);
    tokens.push_back(one.token);
  }
  check_sessions(sessions);
  check_tokens(tokens);
  if (next.empty()) return at::empty({0, model_.vocab_size()});
  std::vector<PassPart> parts;
  for (std::size_t i = 0; i < next.size(); ++i) {
    parts.push_back({.session = sessions[i], .tokens = std::span(tokens).subspan(i, 1)});
  }
  return logits_of(context(), run_few(parts));
}

at::Tensor Sessions::run_few(std::span<const PassPart> parts) {
  const bool gathers = options_.gather_queries && comm_.world() > 1;
  return gathers ? run_gathered(context(), parts) : run_replicated(context(), parts);
}

void Sessions::spread_out(SessionId session) {
  CacheLayout layout = cache_.layout(session);
  if (layout.ranks == comm_.world() && layout.first == 0) return;
  layout.ranks = comm_.world();
  layout.first = 0;
  layout.extents.clear();
  add_extent(layout, extent_by_page(0, cache_.tokens(session), options_.cache.page));
  relayout(session, layout);
}

std::int64_t Sessions::relayout(SessionId session, const CacheLayout& layout) {
  if (layout.head_groups != 1 || layout.stages != 1) {
    fail<InvalidArgument>(
        "serve: a cache layout of {} head groups and {} stages given; 1 and 1 are required",
        layout.head_groups, layout.stages);
  }
  const std::int64_t first = cache_.first(session);
  // Sizes are those of the memory; before the first pass there is none, and no tokens either.
  plan::relayout::RelayoutShape shape{.cache = {.layers = std::max(cache_.layers(), 1)},
                                      .from = without_front(cache_.layout(session), first),
                                      .to = without_front(layout, first),
                                      .world = comm_.world()};
  if (cache_.layers() > 0) {
    const at::Tensor k_LGD = cache_.k(0, {0, 0});
    shape.cache.kv_heads = static_cast<int>(k_LGD.size(1));
    shape.cache.head_dim = static_cast<int>(k_LGD.size(2));
    shape.cache.value_dim = static_cast<int>(cache_.v(0, {0, 0}).size(2));
    shape.cache.dtype = plan_dtype_of(k_LGD.scalar_type());
  }
  const CacheMove move(comm_, shape);
  cache_.change_layout(
      session, layout,
      [&](const std::vector<plan::Interval>& before, const std::vector<plan::Interval>& after) {
        runtime::or_abort(comm_, [&] {
          for (int layer = 0; layer < cache_.layers(); ++layer) {
            const auto k_of = [&](plan::Interval rows) { return cache_.k(layer, rows); };
            const auto v_of = [&](plan::Interval rows) { return cache_.v(layer, rows); };
            const LayerKv moved = move.move(layer, {joined_rows(before, k_of({0, 0}), k_of),
                                                    joined_rows(before, v_of({0, 0}), v_of)});
            cache_.write(layer, after, moved.k_LGD, moved.v_LGE);
          }
        });
      });
  return move.moved_bytes();
}

}  // namespace armillary::serve
