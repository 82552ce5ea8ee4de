#include "armillary/model/gpt2.h"

#include "armillary/model/gpt.h"

namespace armillary::model {

DecoderOptions gpt2_options(const ModelOptions& model) {
  return gpt_options(model).norm(NormKind::Layer).bias(true).max_seq_len(model.max_seq_len);
}

}  // namespace armillary::model
