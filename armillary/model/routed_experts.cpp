#include "armillary/model/routed_experts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <cstddef>
#include <vector>

#include "armillary/model/expert_dispatch.h"

namespace armillary::model {
namespace {

/// The parts of expert_rows().
std::vector<at::Tensor> parts_of(const at::Tensor& values,
                                 const std::vector<std::shared_ptr<const ExpertRows>>& rows) {
  if (rows.size() == 1) return {values};
  std::vector<std::int64_t> sizes;
  sizes.reserve(rows.size());
  for (const auto& part : rows) sizes.push_back(part->dim_tokens);
  return values.split_with_sizes(sizes, 0);
}

}  // namespace

at::Tensor routed_experts(const at::Tensor& x_TE, const Routes& routes,
                          const ExpertWeights& weights, const RoutedExpertsOptions& options) {
  const std::size_t parts = options.ranks && options.ranks->ranks() > 1 ? 2 : 1;
  const auto rows =
      expert_rows(routes.experts_TK, options.num_experts, options.ranks, static_cast<int>(parts));
  const std::vector<at::Tensor> x = parts_of(x_TE, rows);
  const std::vector<at::Tensor> weights_of = parts_of(routes.weights_TK, rows);
  std::vector<at::Tensor> there;
  there.reserve(parts);
  for (std::size_t i = 0; i < parts; ++i) there.push_back(start_dispatch(x[i], rows[i]));
  if (options.beside) options.beside();
  const PartialGradients gradients = partial_gradients(static_cast<int>(parts));
  std::vector<at::Tensor> back;
  for (std::size_t i = 0; i < parts; ++i) {
    const at::Tensor results_RE =
        expert_mlp(finish_dispatch(there[i], rows[i]), weights, rows[i]->of_expert,
                   {.native_bf16 = options.native_bf16, .gradients = gradients});
    back.push_back(start_combine(results_RE, rows[i]));
  }
  std::vector<at::Tensor> out;
  out.reserve(parts);
  for (std::size_t i = 0; i < parts; ++i) {
    out.push_back(finish_combine(back[i], weights_of[i], rows[i]));
  }
  return parts == 1 ? out.front() : at::cat(out);
}

}  // namespace armillary::model
