// generate.cpp: rank 0 draws the tokens of a step and sends them in one broadcast, with -1 where
// all are to stop. Prompts whose text has ended leave the step; the sessions of all are released at
// the end, also of a step that throws.
#include "armillary/serve/generate.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/runtime/or_abort.h"

namespace armillary::serve {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// One prompt that is being continued.
struct OpenPrompt {
  std::size_t number = 0;
  SessionId session = 0;
};

/// Sessions that are released with the object, at the latest.
class OpenPrompts {
 public:
  OpenPrompts(Sessions& sessions, std::size_t count) : sessions_(sessions) {
    for (std::size_t i = 0; i < count; ++i) open_.push_back({i, sessions.open()});
  }
  OpenPrompts(const OpenPrompts&) = delete;
  OpenPrompts& operator=(const OpenPrompts&) = delete;
  ~OpenPrompts() {
    for (const OpenPrompt& prompt : open_) sessions_.release(prompt.session);
  }

  const std::vector<OpenPrompt>& all() const { return open_; }
  /// Releases those for which `ends` is true of their place.
  void release(const std::vector<bool>& ends) {
    std::vector<OpenPrompt> rest;
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (ends[i]) {
        sessions_.release(open_[i].session);
      } else {
        rest.push_back(open_[i]);
      }
    }
    open_ = std::move(rest);
  }

 private:
  Sessions& sessions_;
  std::vector<OpenPrompt> open_;
};

/// The next token of each, drawn by rank 0; -1 for all if it is to stop.
std::vector<std::int64_t> next_tokens(comm::Communicator& world, const Sessions& sessions,
                                      const OpenPrompts& open, const at::Tensor& logits_BV,
                                      const GenerateOptions& options) {
  std::vector<std::int64_t> tokens(open.all().size(), -1);
  const bool stops = world.rank() == 0 && options.stops && options.stops();
  for (std::size_t i = 0; i < tokens.size() && world.rank() == 0 && !stops; ++i) {
    const OpenPrompt& prompt = open.all()[i];
    tokens[i] =
        next_token(logits_BV.select(0, static_cast<std::int64_t>(i)), options.sampling,
                   {.sequence = prompt.number, .position = sessions.tokens(prompt.session)});
  }
  comm::broadcast(world, comm::array(std::span(tokens)), 0);
  return tokens;
}

}  // namespace

Continuations generate(comm::Communicator& world, Sessions& sessions,
                       std::span<const std::vector<std::int64_t>> prompts,
                       const GenerateOptions& options) {
  check_sampling(options.sampling);
  Continuations result;
  result.tokens.resize(prompts.size());
  OpenPrompts open(sessions, prompts.size());
  std::vector<Prompt> texts;
  for (const OpenPrompt& prompt : open.all()) {
    texts.push_back({prompt.session, prompts[prompt.number]});
  }
  // Prefill, and the first tokens.
  auto begin = std::chrono::steady_clock::now();
  at::Tensor logits_BV = sessions.prefill(texts, options.progress);
  result.was_stopped = !logits_BV.defined();
  while (!open.all().empty() && !result.was_stopped && options.tokens > 0) {
    const std::vector<std::int64_t> tokens = runtime::or_abort(
        world, [&] { return next_tokens(world, sessions, open, logits_BV, options); });
    if (result.steps == 0) {
      result.prefill_s = seconds_since(begin);
      begin = std::chrono::steady_clock::now();
    }
    result.was_stopped = tokens.front() < 0;
    if (result.was_stopped) break;
    // Those that go on.
    std::vector<bool> ends(tokens.size());
    std::vector<NextToken> next;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const OpenPrompt& prompt = open.all()[i];
      std::vector<std::int64_t>& own = result.tokens[prompt.number];
      ends[i] = std::ranges::count(options.ends, tokens[i]) > 0;
      if (!ends[i]) {
        own.push_back(tokens[i]);
        if (options.on_token) options.on_token(prompt.number, tokens[i]);
      }
      ends[i] = ends[i] || static_cast<std::int64_t>(own.size()) == options.tokens;
      if (!ends[i]) next.push_back({prompt.session, tokens[i]});
    }
    open.release(ends);
    if (next.empty()) break;
    logits_BV = sessions.decode(next);
    ++result.steps;
  }
  if (result.prefill_s > 0) result.decode_s = seconds_since(begin);
  return result;
}

}  // namespace armillary::serve
