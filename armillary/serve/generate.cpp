#include "armillary/serve/generate.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"

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

/// The next token of each, drawn by rank 0.
std::vector<std::int64_t> next_tokens(comm::Communicator& comm, const Sessions& sessions,
                                      const std::vector<OpenPrompt>& open,
                                      const at::Tensor& logits_BV, const Sampling& sampling) {
  std::vector<std::int64_t> tokens(open.size());
  for (std::size_t i = 0; i < open.size() && comm.rank() == 0; ++i) {
    tokens[i] =
        next_token(logits_BV.select(0, static_cast<std::int64_t>(i)), sampling,
                   {.sequence = open[i].number, .position = sessions.tokens(open[i].session)});
  }
  comm::broadcast(comm, comm::array(std::span(tokens)), 0);
  return tokens;
}

}  // namespace

Continuations generate(comm::Communicator& comm, Sessions& sessions,
                       std::span<const std::vector<std::int64_t>> prompts,
                       const GenerateOptions& options) {
  check_sampling(options.sampling);
  Continuations result;
  result.tokens.resize(prompts.size());
  std::vector<OpenPrompt> open;
  std::vector<Prompt> texts;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    open.push_back({i, sessions.open()});
    texts.push_back({open.back().session, prompts[i]});
  }
  // Prefill, and the first tokens.
  auto begin = std::chrono::steady_clock::now();
  at::Tensor logits_BV = sessions.prefill(texts, options.progress);
  result.was_stopped = !logits_BV.defined();
  while (!open.empty() && !result.was_stopped && options.tokens > 0) {
    const std::vector<std::int64_t> tokens =
        next_tokens(comm, sessions, open, logits_BV, options.sampling);
    if (result.steps == 0) {
      result.prefill_s = seconds_since(begin);
      begin = std::chrono::steady_clock::now();
    }
    // Those that go on.
    std::vector<OpenPrompt> rest;
    std::vector<NextToken> next;
    for (std::size_t i = 0; i < open.size(); ++i) {
      std::vector<std::int64_t>& own = result.tokens[open[i].number];
      const bool ends = options.end && tokens[i] == *options.end;
      if (!ends) {
        own.push_back(tokens[i]);
        if (options.on_token) options.on_token(open[i].number, tokens[i]);
      }
      if (ends || static_cast<std::int64_t>(own.size()) == options.tokens) {
        sessions.release(open[i].session);
        continue;
      }
      rest.push_back(open[i]);
      next.push_back({open[i].session, tokens[i]});
    }
    open = std::move(rest);
    if (open.empty()) break;
    logits_BV = sessions.decode(next);
    ++result.steps;
  }
  if (result.prefill_s > 0) result.decode_s = seconds_since(begin);
  for (const OpenPrompt& prompt : open) sessions.release(prompt.session);
  return result;
}

}  // namespace armillary::serve
