// weights.cpp: a search by name from the first to the last: a unit has some ten parameters, too few
// for a map to pay.
#include "armillary/model/weights.h"

#include <algorithm>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::model {

Weights::Weights(std::string unit, std::vector<std::string> names, std::vector<at::Tensor> values)
    : unit_(std::move(unit)), names_(std::move(names)), values_(std::move(values)) {
  ARMILLARY_CHECK(names_.size() == values_.size());
}

const at::Tensor& Weights::at(std::string_view name) const {
  const auto entry = std::ranges::find(names_, name);
  if (entry != names_.end()) return values_[static_cast<std::size_t>(entry - names_.begin())];
  // The unit is named: layers share the names of their parameters, and the fault is in one of them.
  fail<InvalidArgument>(
      "model: unit {} uses parameter {}, which is not declared for it; {} required", quote(unit_),
      quote(name), names_.empty() ? "none is" : list_names(names_) + " is");
}

}  // namespace armillary::model
