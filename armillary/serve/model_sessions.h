// model_sessions.h: the sessions of a model file on one rank, with its weights: what programs of
// other languages call.
//
//   ModelFile --weights--> OpenModel, which ranks that are threads share
//                              '--ModelSessions(comm)--> sessions, as the model allows them
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"
#include "armillary/serve/model_weights.h"
#include "armillary/serve/sessions.h"

namespace armillary::serve {

/// A model file with its weights. Immutable. Threads: any number may read.
struct OpenModel {
  model::ModelOptions options;
  ModelWeights weights;
  at::ScalarType dtype = at::kFloat;
};
/// @throws as ModelFile, whose errors begin with `sessions`, and ModelWeights.
std::shared_ptr<const OpenModel> open_model(const std::string& path, at::ScalarType dtype);

/// Collective, as Sessions. Threads: that of the rank.
class ModelSessions {
 public:
  /// `options`: their windows are those of the model, whatever they say. `comm` must outlive the
  /// object. @throws as Sessions.
  ModelSessions(comm::Communicator& comm, std::shared_ptr<const OpenModel> model,
                SessionsOptions options);

  Sessions& sessions() { return sessions_; }
  /// As those of Sessions. @throws also InvalidArgument as check_length, for a session of any
  /// prompt: rotary frequencies that may change end where they do.
  at::Tensor prefill(std::span<const Prompt> prompts);
  at::Tensor decode(std::span<const NextToken> next);

 private:
  void check_tokens(SessionId session, std::int64_t more) const;

  std::shared_ptr<const OpenModel> model_;
  std::unique_ptr<model::Model> code_;
  Sessions sessions_;
};

}  // namespace armillary::serve
