#include "armillary/train/models/model.h"

namespace armillary::train {

std::vector<std::string> Model::parameter_names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters().size(); ++i) names.push_back(std::to_string(i));
  return names;
}

}  // namespace armillary::train
