#include "armillary/model/moe_options.h"

namespace armillary::model {

const std::vector<std::string>& router_score_names() {
  static const std::vector<std::string> names{"softmax", "sigmoid"};
  return names;
}

const std::vector<std::string>& balance_group_names() {
  static const std::vector<std::string> names{"sequence", "batch"};
  return names;
}

}  // namespace armillary::model
