#include "armillary/serve/model_sessions.h"

#include <utility>

#include "armillary/model/registry.h"
#include "armillary/serve/windows.h"

namespace armillary::serve {
namespace {

constexpr const char* kWhere = "sessions";

SessionsOptions with_windows(SessionsOptions options, const model::ModelOptions& model) {
  options.windows = windows_of(model);
  return options;
}

}  // namespace

std::shared_ptr<const OpenModel> open_model(const std::string& path, at::ScalarType dtype) {
  const ModelFile file(kWhere, path);
  return std::make_shared<const OpenModel>(OpenModel{
      .options = file.options(), .weights = file.weights({.dtype = dtype}), .dtype = dtype});
}

ModelSessions::ModelSessions(comm::Communicator& comm, std::shared_ptr<const OpenModel> model,
                             SessionsOptions options)
    : model_(std::move(model)),
      code_(model::make_model(model_->options, {.dtype = model_->dtype})),
      sessions_(
          comm, *code_, [weights = &model_->weights](int unit) { return weights->of_unit(unit); },
          with_windows(std::move(options), model_->options)) {}

void ModelSessions::check_tokens(SessionId session, std::int64_t more) const {
  constexpr std::int64_t kAnyPrompt = 0;
  check_length(kWhere, model_->options, kAnyPrompt, sessions_.tokens(session) + more);
}

at::Tensor ModelSessions::prefill(std::span<const Prompt> prompts) {
  for (const Prompt& prompt : prompts) {
    check_tokens(prompt.session, static_cast<std::int64_t>(prompt.tokens.size()));
  }
  return sessions_.prefill(prompts);
}

at::Tensor ModelSessions::decode(std::span<const NextToken> next) {
  for (const NextToken& one : next) check_tokens(one.session, 1);
  return sessions_.decode(next);
}

}  // namespace armillary::serve
