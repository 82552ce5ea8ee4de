// model.cpp: a pass over all units. The weights of a unit are asked for when it runs, not all at
// the beginning, so a store need not have all of them whole at once.
#include "armillary/model/model.h"

#include <ATen/core/Tensor.h>

namespace armillary::model {

TokenShards ModelInputs::token_shards() const {
  if (!tensor_parallel || tensor_parallel->ranks() == 1) return {};
  return {tensor_parallel, positions_L.size(0)};
}

at::Tensor run_units(Model& model, const std::function<Weights(int unit)>& use,
                     const ModelInputs& inputs) {
  at::Tensor x;
  const auto units = static_cast<int>(model.units().size());
  for (int unit = 0; unit < units; ++unit) x = model.run(unit, use(unit), x, inputs);
  return x;
}

}  // namespace armillary::model
