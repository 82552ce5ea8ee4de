// closed_forms.h: bytes that a rank sends and receives on the u axis and on its column, for tests.
//
// Counted from the layout and the head counts alone, without a plan, for any token counts and head
// groups. Rk = 1, so partial outputs never travel; the mask is full, so every rank needs
// everything.
#pragma once

#include <cstdint>

#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

/// Bytes of one rank in one pass.
struct Volume {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
};

/// The formulas for one problem with u ways over heads; columns are rings or gathers.
class Volumes {
 public:
  Volumes(const Problem& problem, int u, Movement column)
      : problem_(problem),
        u_(u),
        ring_(column == Movement::Ring),
        owned_(shards(problem.layout, problem.mask, problem.world)) {}

  /// u axis: Q, K, V to the head groups and Out back. Column: K, V of its other members.
  Volume forward(Rank rank) const {
    const RankNumbers s = share(rank);
    const std::int64_t kv = s.d + s.e;
    const Volume heads{
        .sent_bytes = s.n * (s.other_q * s.d + (all_kv() - s.k) * kv) + s.others * s.q * s.e,
        .received_bytes = s.others * (s.q * s.d + s.k * kv) + s.n * s.other_q * s.e};
    return add({s.word * heads.sent_bytes, s.word * heads.received_bytes},
               column(rank, s.word * s.k * kv));
  }

  /// u axis: dOut in, dQ, dK, dV out; Q, K, V stay where forward left them. A KV head that several
  /// groups read is summed at its owner, in accumulator precision. Column: K, V again, and dK, dV
  /// back in accumulator precision.
  Volume backward(Rank rank) const {
    const RankNumbers s = share(rank);
    const std::int64_t kv = s.d + s.e;
    Volume volume{.sent_bytes = s.word * (s.n * s.other_q * s.e + s.others * s.q * s.d),
                  .received_bytes = s.word * (s.others * s.q * s.e + s.n * s.other_q * s.d)};
    for (int h = 0; h < u_; ++h) {
      for (int head = kv_heads(h).begin; head < kv_heads(h).end; ++head) {
        const std::int64_t bytes = kv * (readers(head) > 1 ? s.sum : s.word);
        if (h == s.h) volume.sent_bytes += s.others * bytes;
        if (h != s.h) volume.received_bytes += s.n * bytes;
      }
    }
    return add(volume, column(rank, s.word * s.k * kv, s.sum * s.k * kv));
  }

 private:
  /// The numbers of one rank that the formulas use.
  struct RankNumbers {
    int h;                       ///< Head group.
    std::int64_t word, sum;      ///< Bytes of an element: of an input, and of a partial result.
    std::int64_t d, e;           ///< Dimensions of a key and of a value.
    std::int64_t n, others;      ///< Tokens of the rank, and of its partners on the u axis.
    std::int64_t q, other_q, k;  ///< Query heads of its group and of the others; its KV heads.
  };
  RankNumbers share(Rank rank) const {
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

  /// A member of the column receives the tiles of the others, `in_bytes` per token, and sends sums
  /// for them, `back_bytes` per token; the reverse for its own tile.
  Volume column(Rank rank, std::int64_t in_bytes, std::int64_t back_bytes = 0) const {
    std::int64_t all = 0;
    for (Rank other = rank % u_; other < problem_.world; other += u_) all += block(other);
    const std::int64_t members = problem_.world / u_;
    const std::int64_t mine = block(rank);
    // On a ring a member sends all tiles but that of the next member, and sums of all but its own
    // block. Over all ranks together that is as much as they receive; with equal blocks both are
    // (members - 1) blocks.
    const std::int64_t next = block((rank + u_) % problem_.world);
    if (members == 1) return {};
    return {
        .sent_bytes = ring_ ? in_bytes * (all - next) + back_bytes * (all - mine)
                            : in_bytes * mine * (members - 1) + back_bytes * (all - mine),
        .received_bytes = in_bytes * (all - mine) +
                          back_bytes * (ring_ ? all - block_before(rank) : mine * (members - 1))};
  }

  std::int64_t block_before(Rank rank) const {
    return block((rank - u_ + problem_.world) % problem_.world);
  }
  static Volume add(Volume a, Volume b) {
    return {a.sent_bytes + b.sent_bytes, a.received_bytes + b.received_bytes};
  }
  /// Tokens of a rank, and those of its super-block.
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
  /// Number of head groups that read a KV head.
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
