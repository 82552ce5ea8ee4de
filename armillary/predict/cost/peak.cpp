// Moments are walked from the loss to the first unit, and each offers the bytes of layers that
// still keep their activations, of its own tensors, and of whole values and gradients.
#include "armillary/predict/cost/peak.h"

#include <algorithm>
#include <cstdint>

namespace armillary::cost {
namespace {

/// Parameters of units that are whole.
struct WholeUnits {
  double values = 0;
  double gradients = 0;
  double in_sum = 0;     ///< Gradients that are being summed.
  double before = 0;     ///< Likewise, in a pass that another follows.
  double in_gather = 0;  ///< Sums of gradients that are being gathered.
};

/// The largest of the moments that it is given.
class LargestMoment {
 public:
  LargestMoment(const ModelCost& cost, const PassOnRank& pass)
      : cost_(cost), pass_(pass), again_(pass.policy != Recompute::None) {}

  /// A moment of the first or the last unit, at which so many layers keep their activations.
  void offer(std::int64_t layers, const Moment& moment, const WholeUnits& whole) {
    offer({activations(layers), transient(moment) + divided(moment.weights), gathered(whole)});
  }

  /// A moment of the backward of a layer, which may have been computed again.
  void offer_layer(std::int64_t layer, const Moment& moment, const WholeUnits& whole) {
    const TokenBytes& bytes = cost_.bytes;
    double more = 0;
    if (again_) {
      const std::int64_t restored = bytes.layer - kept_by_layer(bytes, pass_.policy) + bytes.again;
      const SequenceBytes& sequence = cost_.sequence_bytes;
      more = pass_.tokens * (divided(restored) + if_several(bytes.along_tp)) +
             pass_.sequences * (static_cast<double>(sequence.input) + divided(sequence.layer)) +
             pass_.attention_layer - pass_.attention_kept;
    }
    const std::int64_t matrices = moment.weights + (again_ ? moment.waiting : 0);
    offer({activations(layer + 1), transient(moment) + more + divided(matrices), gathered(whole)});
  }

  /// The end of a pass, which has no activations.
  void offer_end(const WholeUnits& whole) { offer({.gathered = gathered(whole)}); }

  const StepPeak& most() const { return most_; }

 private:
  void offer(const StepPeak& one) {
    if (one.total() > most_.total()) most_ = one;
  }

  /// Bytes on a rank that are divided over those along tp.
  double divided(std::int64_t bytes) const { return static_cast<double>(bytes) / pass_.tp; }
  /// Bytes that each of them has, if there are several.
  double if_several(std::int64_t bytes) const {
    return pass_.tp > 1 ? static_cast<double>(bytes) : 0;
  }

  double activations(std::int64_t layers) const {
    const TokenBytes& bytes = cost_.bytes;
    const double layer =
        divided(kept_by_layer(bytes, pass_.policy)) + (again_ ? 0 : if_several(bytes.along_tp));
    const auto of = [&](std::int64_t count) {
      return static_cast<double>(count) * layer + divided(bytes.last);
    };
    return pass_.tokens * of(layers) + pass_.waiting_tokens * of(cost_.attention.layers) +
           attention(layers) + sequences(layers);
  }

  /// Bytes that do not depend on the number of tokens, in so many layers and behind the last.
  double sequences(std::int64_t layers) const {
    const SequenceBytes& bytes = cost_.sequence_bytes;
    const auto input = static_cast<double>(bytes.input);
    return pass_.sequences *
           (static_cast<double>(layers) * (input + (again_ ? 0 : divided(bytes.layer))) + input);
  }

  /// Bytes of attention in so many layers beyond TokenBytes, in proportion to the tokens.
  double attention(std::int64_t layers) const {
    const double waiting =
        pass_.waiting_tokens == 0
            ? 0
            : pass_.waiting_tokens / pass_.tokens * static_cast<double>(cost_.attention.layers);
    return pass_.attention_kept * (static_cast<double>(layers) + waiting);
  }

  /// All but matrices.
  double transient(const Moment& moment) const {
    const double chunk = std::min(pass_.tokens, static_cast<double>(cost_.loss_chunk_tokens));
    const double token = divided(moment.token) + if_several(moment.along_tp) +
                         static_cast<double>(moment.whole + cost_.bytes.once);
    const double logits = divided(moment.logits) + static_cast<double>(moment.chunk);
    const double sequence = pass_.sequences * static_cast<double>(cost_.sequence_bytes.input);
    return pass_.tokens * token + sequence + chunk * logits;
  }

  double gathered(const WholeUnits& whole) const {
    return (pass_.value * whole.values + pass_.gradient * whole.gradients +
            pass_.sum * whole.in_sum + pass_.sum_before * whole.before +
            pass_.gathered_sum * whole.in_gather) /
           pass_.tp;
  }

  const ModelCost& cost_;
  const PassOnRank& pass_;
  const bool again_;
  StepPeak most_;
};

}  // namespace

StepPeak step_peak(const ModelCost& cost, const PassOnRank& pass) {
  const TokenBytes& bytes = cost.bytes;
  const std::int64_t layers = cost.attention.layers;
  const auto first = static_cast<double>(cost.first_parameters);
  const auto last = static_cast<double>(cost.last_parameters);
  // Published shapes have no units.
  const bool has_units = first + last > 0;
  const double layer = !has_units || layers == 0 ? 0
                                                 : static_cast<double>(cost.layer_parameters) /
                                                       static_cast<double>(layers);
  const double shared = cost.tied ? first : 0;
  LargestMoment largest(cost, pass);

  // Forward of the layer before the last one, which is gathered, beside the same sum as below.
  if (pass.sum_before > 0 && layers > 1 && !pass.keeps_values) {
    largest.offer(layers - 1, {}, {.values = shared + 2 * layer, .before = first});
  }
  // The last unit, forward and backward, with the last layer. In forward the sum of the first one's
  // gradients of the pass before may be under way.
  const double values = pass.keeps_values ? first + static_cast<double>(layers) * layer + last
                                          : last + shared + layer;
  for (const Moment& moment : bytes.loss) {
    largest.offer(layers, moment, {.values = values, .before = first});
  }
  for (const Moment& moment : bytes.last_unit) {
    largest.offer(layers, moment, {.values = values, .gradients = last + shared});
  }
  // Layers: the unit before is gathered, and the gradients of the two units after are under way.
  // Those of tied parameters stay until the first unit has added its own.
  for (std::int64_t i = layers - 1; i >= 0; --i) {
    const double next = i == 0 ? first : layer;
    const WholeUnits whole{
        .values = pass.keeps_values ? first + static_cast<double>(i + 1) * layer : layer + next,
        .gradients = layer + shared,
        .in_sum = i + 1 == layers ? last : layer,
        .in_gather = i + 1 == layers   ? 0
                     : i + 2 == layers ? last
                                       : layer};
    for (const Moment& moment : bytes.backward) largest.offer_layer(i, moment, whole);
  }
  // The first unit: its output is the input of a layer, which stays for a pass that follows.
  for (const Moment& moment : bytes.first_unit) {
    largest.offer(0, moment,
                  {.values = first,
                   .gradients = first,
                   .in_sum = layer,
                   .in_gather = layers > 1 ? layer : last});
    if (pass.sum_before == 0) continue;
    largest.offer(0, moment, {.values = first + layer, .gradients = first, .before = layer});
  }
  largest.offer_end({.in_sum = first, .in_gather = layer});
  return largest.most();
}

}  // namespace armillary::cost
