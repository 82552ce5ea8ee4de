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
    const Share s = share(rank);
    const std::int64_t kv = s.d + s.e;
    const Volume heads{
        .sent = s.n * (s.other_q * s.d + (all_kv() - s.k) * kv) + s.others * s.q * s.e,
        .received = s.others * (s.q * s.d + s.k * kv) + s.n * s.other_q * s.e};
    return add({s.word * heads.sent, s.word * heads.received}, column(rank, s.word * s.k * kv));
  }

  /// Q, K, V stay where forward left them: dOut in, dQ, dK, dV out; on the column K, V again and
  /// dK, dV back, these in accumulator precision. A KV head read by several groups is summed at
  /// home, in accumulator precision.
  Volume backward(Rank rank) const {
    const Share s = share(rank);
    const std::int64_t kv = s.d + s.e;
    Volume volume{.sent = s.word * (s.n * s.other_q * s.e + s.others * s.q * s.d),
                  .received = s.word * (s.others * s.q * s.e + s.n * s.other_q * s.d)};
    for (int h = 0; h < u_; ++h) {
      for (int head = kv_heads(h).begin; head < kv_heads(h).end; ++head) {
        const std::int64_t bytes = kv * (readers(head) > 1 ? s.sum : s.word);
        if (h == s.h) volume.sent += s.others * bytes;
        if (h != s.h) volume.received += s.n * bytes;
      }
    }
    return add(volume, column(rank, s.word * s.k * kv, s.sum * s.k * kv));
  }

 private:
  /// What a rank has: tokens, its own and those of its u partners; query heads of its group, of the
  /// others, and KV heads.
  struct Share {
    int h;
    std::int64_t word, sum, d, e, n, others, q, other_q, k;
  };
  Share share(Rank rank) const {
    const int h = place_of({.u = u_}, rank).h;
    const std::int64_t q = heads(h).count();
    return {.h = h,
            .word = bytes_of(problem_.dtype),
            .sum = bytes_of(accumulator(problem_.dtype)),
            .d = problem_.head_dim,
            .e = problem_.value_dim,
            .n = tokens_of(rank),
            .others = block(rank) - tokens_of(rank),
            .q = q,
            .other_q = problem_.heads - q,
            .k = kv_heads(h).count()};
  }

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
  Heads kv_heads(int h) const { return kv_heads_of(problem_, heads(h)); }
  std::int64_t all_kv() const {
    std::int64_t total = 0;
    for (int h = 0; h < u_; ++h) total += kv_heads(h).count();
    return total;
  }
  int readers(int head) const {
    int count = 0;
    for (int h = 0; h < u_; ++h) count += kv_heads(h).contains({head, head + 1}) ? 1 : 0;
    return count;
  }

  Problem problem_;
  int u_;
  bool ring_;
  Shards owned_;
};

}  // namespace armillary::plan
