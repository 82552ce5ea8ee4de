// model_sessions.cpp: the groups of ranks along cp and tp, and the checks of memory that come
// before any weight is read.
#include "armillary/serve/model_sessions.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/model/registry.h"
#include "armillary/serve/windows.h"
#include "armillary/train/tensor_parallel_over_ranks.h"

namespace armillary::serve {
namespace {

constexpr const char* kWhere = "sessions";

/// The options with what follows from the model and the mesh. Collective.
SessionsOptions with_model(SessionsOptions options, const OpenModel& model,
                           const comm::Mesh& mesh) {
  options.windows = windows_of(model.options);
  options.tensor_parallel = mesh.size(MeshAxis::Tp) > 1
                                ? train::tensor_parallel_over_ranks(mesh.along(MeshAxis::Tp))
                                : nullptr;
  return options;
}

}  // namespace

std::shared_ptr<const OpenModel> open_model(const ModelFile& file, const WeightOptions& part) {
  return std::make_shared<const OpenModel>(
      OpenModel{.options = file.options(), .weights = file.weights(part), .part = part});
}

ModelParts open_parts(const ModelFile& file, int tp_ranks, at::ScalarType dtype) {
  ModelParts parts;
  for (int index = 0; index < tp_ranks; ++index) {
    parts.push_back(open_model(file, {.tp_index = index, .tp_ranks = tp_ranks, .dtype = dtype}));
  }
  return parts;
}

MeshShape mesh_of_sessions(int ranks, int tp) {
  if (tp >= 1 && ranks % tp == 0) return {.cp = ranks / tp, .tp = tp};
  fail<InvalidArgument>("{}: tensor_parallel {} given for {}; a divisor is required; nearest: {}",
                        kWhere, tp, count_of(ranks, "rank"),
                        nearest_divisor(ranks, std::max(tp, 1)));
}

void check_cache_memory(const model::ModelOptions& model, const WeightOptions& part,
                        const KvCacheOptions& cache, int local_ranks) {
  if (cache.pages < 1 || cache.page < 1) return;  // The cache refuses them.
  constexpr double kGib = 1 << 30;
  const std::int64_t heads = ceil_div(model.kv_heads(), part.tp_ranks);  // Or copies of one.
  // Sizes of the user: their products may exceed 64 bits.
  const double token = 2.0 * static_cast<double>(model.n_layers * heads * model.head_width()) *
                       static_cast<double>(c10::elementSize(part.dtype)) * local_ranks;
  const double page = token * static_cast<double>(cache.page);
  const double bytes = page * static_cast<double>(cache.pages);
  const auto memory = static_cast<double>(physical_memory_bytes());
  if (bytes <= memory) return;
  const auto most = static_cast<std::int64_t>(memory / page);
  const std::string nearest =
      most > 0 ? fmt::format("at most {} are required", most)
               : fmt::format("a page of at most {} is required",
                             count_of(static_cast<std::int64_t>(memory / token), "token"));
  fail<InvalidArgument>(
      "{}: {} of {} given, {:.1f} GiB on {} of this machine, which has {:.1f}; {}", kWhere,
      count_of(cache.pages, "page"), count_of(cache.page, "token"), bytes / kGib,
      count_of(local_ranks, "rank"), memory / kGib, nearest);
}

ModelSessions::ModelSessions(comm::Communicator& world, std::shared_ptr<const OpenModel> model,
                             SessionsOptions options)
    : model_(std::move(model)),
      code_(model::make_model(model_->options, {.dtype = model_->part.dtype})),
      mesh_(world, mesh_of_sessions(world.world(), model_->part.tp_ranks)),
      // Braces: the group along cp is split first on all ranks.
      sessions_{mesh_.along(MeshAxis::Cp), *code_,
                [weights = &model_->weights](int unit) { return weights->of_unit(unit); },
                with_model(std::move(options), *model_, mesh_)} {}

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

at::Tensor ModelSessions::prefill_to(const Prompt& prompt,
                                     const plan::relayout::CacheLayout& ranks) {
  check_tokens(prompt.session, static_cast<std::int64_t>(prompt.tokens.size()));
  const plan::Layout deal{.kind = plan::LayoutKind::Striped, .stripe = sessions_.cache().page()};
  return sessions_.prefill_to(prompt, ranks, deal).logits_BV[0];
}

void ModelSessions::relayout(SessionId session, plan::relayout::CacheLayout ranks) {
  ranks.extents = {extent_by_page(0, sessions_.tokens(session), sessions_.cache().page())};
  sessions_.relayout(session, ranks);
}

}  // namespace armillary::serve
