// woken_dit.h: a DiT none of whose parameters begins at 0, so that all of them have gradients.
#pragma once

#include <vector>

#include "armillary/model/dit.h"

namespace armillary::model {

class WokenDit : public Dit {
 public:
  using Dit::Dit;

  std::vector<Parameter> parameters() const override {
    std::vector<Parameter> all = Dit::parameters();
    for (Parameter& parameter : all) {
      if (parameter.init.deviation == 0) parameter.init.deviation = 0.3;
    }
    return all;
  }
};

}  // namespace armillary::model
