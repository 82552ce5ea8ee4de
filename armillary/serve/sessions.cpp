// sessions.cpp: prompts are cut into passes in their order: a pass takes as many tokens as it may,
// from one prompt or from several.
#include "armillary/serve/sessions.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/decode/check_decode.h"
#include "armillary/plan/program/grid.h"
#include "armillary/plan/relayout/shape.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/tune/automatic.h"
#include "armillary/serve/hand_over.h"
#include "armillary/serve/pass.h"

namespace armillary::serve {
namespace {

using plan::relayout::CacheLayout;

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
  // Short prompts never ask for it.
  if (!tune::is_automatic(options.strategy)) plan::parse_strategy(options.strategy);
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

/// The layout in which a prompt is to be behind its prefill.
struct Sessions::Move {
  CacheLayout to;
  std::optional<HandOver> hand_over = {};  ///< In the last pass, if that is spread.
};

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
  return read(prompts, progress, nullptr);
}

std::int64_t Sessions::check_prompts(std::span<const Prompt> prompts) const {
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
  return all;
}

at::Tensor Sessions::read(std::span<const Prompt> prompts, const Progress& progress, Move* move) {
  const std::int64_t all = check_prompts(prompts);
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
      features_BE.push_back(run_many(parts, prompt == prompts.size() ? move : nullptr));
    }
    tokens += count;
  }
  if (progress) progress(tokens, all);
  if (features_BE.empty()) return at::empty({0, model_.vocab_size()});
  return logits_of(context(), at::cat(features_BE));
}

at::Tensor Sessions::run_many(std::span<const PassPart> parts, Move* move) {
  for (const PassPart& part : parts) spread_out(part.session);
  PassContext context = this->context();
  if (move != nullptr) {
    const PassPart& part = parts.front();
    CacheLayout from = cache_.layout(part.session);
    const auto tokens = static_cast<std::int64_t>(part.tokens.size());
    add_extent(from, extent_of_pass(options_.layout, {0, tokens}, 0));
    move->hand_over.emplace(comm_, cache_, part.session, from, move->to);
    // Units are an embedding, layers and a head.
    const int layers = static_cast<int>(model_.units().size()) - 2;
    context.on_layer = [move, layers](int layer) { move->hand_over->start(layer, layers); };
  }
  return run_spread(context, parts);
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
  return HandOver(comm_, cache_, session, cache_.layout(session), layout)
      .move_at_once(cache_.layers());
}

Sessions::PrefillResult Sessions::prefill_to(const Prompt& prompt, CacheLayout to,
                                             const plan::Layout& deal) {
  const std::int64_t tokens =
      cache_.tokens(prompt.session) + static_cast<std::int64_t>(prompt.tokens.size());
  to.extents = {{.tokens = tokens, .layout = deal}};
  // In the pass it would be too late to refuse the layout and go on.
  check_token_layout(to);
  plan::relayout::check_shape({.from = plan::relayout::one_extent(tokens, {}, comm_.world()),
                               .to = to,
                               .world = comm_.world()});
  Move move{.to = to};
  PrefillResult result{.logits_BV = read(std::span(&prompt, 1), {}, &move)};
  result.bytes = move.hand_over ? move.hand_over->finish() : relayout(prompt.session, to);
  return result;
}

}  // namespace armillary::serve
