// closed_forms.h: what a rank sends and receives on the u axis and on its column, for tests.
//
// Counted from the layout and the head counts alone, for any token counts and head groups. Rk = 1,
// so partial outputs never travel; full mask, so everything is needed by everyone.
#pragma once

#include <cstdint>

#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

struct Volume {
  std::int64_t sent = 0;
  std::int64_t received = 0;
};

/// Everything the formulas need, counted from the layout and the head counts alone.
class Volumes {
 public:
  Volumes(const Problem& problem, int u, Movement column)
      : problem_(problem),
        u_(u),
        ring_(column == Movement::Ring),
        owned_(shards(problem.layout, problem.mask, problem.world)) {}

  /// Q, K, V to the head groups and Out back; K, V of the rest of the column by ring or gather.
  Volume forward(Rank rank) const {
    const std::int64_t word = bytes_of(problem_.dtype);
    const Place place = place_of({.u = u_}, rank);
    const std::int64_t n = tokens_of(rank);
    const std::int64_t others = block(rank) - n;
    const std::int64_t q = heads(place.h).count();
    const std::int64_t k = kv(place.h).count();
    const std::int64_t d = problem_.head_dim;
    const std::int64_t e = problem_.value_dim;
    Volume volume;
    volume.received = word * (others * (q * d + k * (d + e)) + n * (problem_.heads - q) * e);
    volume.sent =
        word * (n * ((problem_.heads - q) * d + (all_kv() - k) * (d + e)) + others * q * e);
    return add(volume, column(rank, word * k * (d + e)));
  }

  /// Q, K, V stay where forward left them: dOut in, dQ, dK, dV out; on the column K, V again and
  /// dK, dV back, these in accumulator precision. A KV head read by several groups is summed at
  /// home, in accumulator precision.
  Volume backward(Rank rank) const {
    const std::int64_t word = bytes_of(problem_.dtype);
    const std::int64_t sum = bytes_of(accumulator(problem_.dtype));
    const Place place = place_of({.u = u_}, rank);
    const std::int64_t n = tokens_of(rank);
    const std::int64_t others = block(rank) - n;
    const std::int64_t q = heads(place.h).count();
    const std::int64_t k = kv(place.h).count();
    const std::int64_t d = problem_.head_dim;
    const std::int64_t e = problem_.value_dim;
    Volume volume;
    volume.received = word * (others * q * e + n * (problem_.heads - q) * d);
    volume.sent = word * (n * (problem_.heads - q) * e + others * q * d);
    for (int h = 0; h < u_; ++h) {
      for (int head = kv(h).begin; head < kv(h).end; ++head) {
        const std::int64_t bytes = (d + e) * (readers(head) > 1 ? sum : word);
        if (h == place.h) volume.sent += others * bytes;
        if (h != place.h) volume.received += n * bytes;
      }
    }
    return add(volume, column(rank, word * k * (d + e), sum * k * (d + e)));
  }

 private:
  /// Tiles of other members of the column in, sums for them out; and the mirror image.
  Volume column(Rank rank, std::int64_t in_bytes, std::int64_t back_bytes = 0) const {
    std::int64_t all = 0;
    for (Rank other = rank % u_; other < problem_.world; other += u_) all += block(other);
    const std::int64_t members = problem_.world / u_;
    const std::int64_t mine = block(rank);
    // A ring sends all but the tile of the next member, and sums of all but its own: in total over
    // ranks the same as received. With equal blocks both are (members - 1) blocks.
    const std::int64_t next = block((rank + u_) % problem_.world);
    if (members == 1) return {};
    return {.sent = ring_ ? in_bytes * (all - next) + back_bytes * (all - mine)
                          : in_bytes * mine * (members - 1) + back_bytes * (all - mine),
            .received = in_bytes * (all - mine) +
                        back_bytes * (ring_ ? all - block_before(rank) : mine * (members - 1))};
  }

  std::int64_t block_before(Rank rank) const {
    return block((rank - u_ + problem_.world) % problem_.world);
  }
  static Volume add(Volume a, Volume b) { return {a.sent + b.sent, a.received + b.received}; }
  std::int64_t tokens_of(Rank rank) const { return tokens(owned_.kv[rank]); }
  std::int64_t block(Rank rank) const {
    std::int64_t total = 0;
    for (int h = 0; h < u_; ++h) total += tokens_of(rank / u_ * u_ + h);
    return total;
  }
  Heads heads(int h) const { return head_group(problem_, {.u = u_}, h); }
  Heads kv(int h) const { return kv_heads_of(problem_, heads(h)); }
  std::int64_t all_kv() const {
    std::int64_t total = 0;
    for (int h = 0; h < u_; ++h) total += kv(h).count();
    return total;
  }
  int readers(int head) const {
    int count = 0;
    for (int h = 0; h < u_; ++h) count += kv(h).contains({head, head + 1}) ? 1 : 0;
    return count;
  }

  Problem problem_;
  int u_;
  bool ring_;
  Shards owned_;
};

}  // namespace armillary::plan
