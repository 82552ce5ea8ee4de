// model_sessions.h: the sessions of a model file on one rank, with its weights: what programs of
// other languages call.
//
//   ModelFile --weights--> OpenModel, which ranks that are threads share
//                              '--ModelSessions(world)--> sessions, as the model allows them
//
// Ranks are a mesh of cp x tp: neighbours have parts of the matrices, and each of them a cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/mesh.h"
#include "armillary/core/mesh_shape.h"
#include "armillary/model/model.h"
#include "armillary/plan/relayout/cache_layout.h"
#include "armillary/serve/model_weights.h"
#include "armillary/serve/sessions.h"

namespace armillary::serve {

/// A model file with the weights of one rank along tp. Immutable. Threads: any number may read.
struct OpenModel {
  model::ModelOptions options;
  ModelWeights weights;
  WeightOptions part = {};  ///< Which weights they are.
};
/// @throws as ModelFile::weights.
std::shared_ptr<const OpenModel> open_model(const ModelFile& file, const WeightOptions& part);

/// The model for each rank along tp.
using ModelParts = std::vector<std::shared_ptr<const OpenModel>>;
/// @throws as open_model.
ModelParts open_parts(const ModelFile& file, int tp_ranks, at::ScalarType dtype);

/// The mesh of so many ranks, at least 1, of which `tp` share the matrices.
/// @throws InvalidArgument unless `tp` divides them, with the nearest that does.
MeshShape mesh_of_sessions(int ranks, int tp);

/// Refuses a cache that the ranks of this machine, `local_ranks`, have no memory for; weights do
/// not count. Allocates nothing. @throws InvalidArgument with the bytes and the most pages.
void check_cache_memory(const model::ModelOptions& model, const WeightOptions& part,
                        const KvCacheOptions& cache, int local_ranks);

/// Collective, as Sessions. Threads: that of the rank.
class ModelSessions {
 public:
  /// `model`: the part of this rank along tp. `options`: windows are those of the model and ranks
  /// along tp those of `world`, whatever they say. `world` has all ranks and must outlive the
  /// object. @throws as Sessions and mesh_of_sessions.
  ModelSessions(comm::Communicator& world, std::shared_ptr<const OpenModel> model,
                SessionsOptions options);

  Sessions& sessions() { return sessions_; }
  /// As those of Sessions. @throws also InvalidArgument as check_length, for a session of any
  /// prompt: rotary frequencies that may change end where they do.
  at::Tensor prefill(std::span<const Prompt> prompts);
  at::Tensor decode(std::span<const NextToken> next);
  /// Reads a prompt, and brings its session to ranks along cp: pages in turn, whatever extents the
  /// layout has. Returns the logits [V]. @throws as prefill and Sessions::prefill_to.
  at::Tensor prefill_to(const Prompt& prompt, const plan::relayout::CacheLayout& ranks);
  /// Brings a session that has read something there. @throws as Sessions::relayout.
  void relayout(SessionId session, plan::relayout::CacheLayout ranks);

 private:
  void check_tokens(SessionId session, std::int64_t more) const;

  std::shared_ptr<const OpenModel> model_;
  std::unique_ptr<model::Model> code_;
  const comm::Mesh mesh_;
  Sessions sessions_;
};

}  // namespace armillary::serve
