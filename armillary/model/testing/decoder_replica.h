// decoder_replica.h: a decoder with its parameters on one rank, for tests without a trainer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "armillary/model/decoder.h"
#include "armillary/model/testing/model_replica.h"

namespace armillary::model {

/// Copies share the parameters.
class DecoderReplica : public ModelReplica {
 public:
  explicit DecoderReplica(const DecoderOptions& options, std::int64_t seed = 1)
      : ModelReplica(std::make_shared<Decoder>(options), seed) {}

  at::Tensor logits(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                    const Attends& attends) const {
    return run({{{kTokens, tokens_BL}}, positions_L, attends});
  }
  at::Tensor loss(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                  const at::Tensor& labels_BL, const Attends& attends) const {
    return run({{{kTokens, tokens_BL}, {kLabels, labels_BL}}, positions_L, attends});
  }
};

}  // namespace armillary::model
