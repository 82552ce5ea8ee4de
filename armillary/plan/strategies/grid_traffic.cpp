// grid_traffic.cpp: bytes of a grid, counted block by block without making its plan.
//
// A block of a grid moves in four ways: on the u axis to its partners, by the transpose to its
// holder, along a column (K, V, dK, dV) and along a row (Q, dOut, Lse, Delta, Out, dQ). Each way
// has a function below; each adds up tokens x heads x bytes x hops. A block
// makes one hop per member that needs it, whatever the movement, so movements do not appear.
#include "armillary/core/error.h"
#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {
namespace {

/// Head counts of the head groups, and bytes per element: the cost of a token.
class TokenCosts {
 public:
  TokenCosts(const Problem& problem, const Grid& grid)
      : problem_(problem),
        grid_(grid),
        word_(bytes_of(problem.dtype)),
        statistic_(bytes_of(accumulator(problem.dtype))),
        sum_(problem.narrows_sums() ? word_ : statistic_) {
    for (int h = 0; h < grid.u; ++h) {
      kv_heads_.push_back(kv_heads_of(problem, head_group(problem, grid, h)).count());
      all_kv_heads_ += kv_heads_.back();
    }
    count_gradients_home();
  }

  /// Heads that head group h reads.
  std::int64_t q_heads(int h) const { return head_group(problem_, grid_, h).count(); }
  std::int64_t kv_heads(int h) const { return kv_heads_[h]; }
  /// Dimensions of a key and of a value.
  std::int64_t d() const { return problem_.head_dim; }
  std::int64_t e() const { return problem_.value_dim; }
  /// Bytes of an element of an input or result, of a partial Out, dQ, dK or dV between ranks, and
  /// of Lse or Delta.
  std::int64_t word() const { return word_; }
  std::int64_t sum() const { return sum_; }
  std::int64_t statistic() const { return statistic_; }
  /// KV heads of all head groups together; a head that several groups read counts once for each.
  std::int64_t all_kv_heads() const { return all_kv_heads_; }

  /// Bytes per token of dK, dV that an owner with head group h receives on the u axis: final
  /// gradients of heads that one group reads, partial ones of heads that several groups read.
  std::int64_t gradients_home(int h) const { return gradients_home_[h]; }

 private:
  void count_gradients_home() {
    std::vector<int> readers(problem_.kv_heads);
    for (int h = 0; h < grid_.u; ++h) {
      const Heads heads = kv_heads_of(problem_, head_group(problem_, grid_, h));
      for (int head = heads.begin; head < heads.end; ++head) ++readers[head];
    }
    for (int h = 0; h < grid_.u; ++h) {
      const Heads mine = kv_heads_of(problem_, head_group(problem_, grid_, h));
      std::int64_t bytes = 0;
      for (int head = 0; head < problem_.kv_heads; ++head) {
        const int others = readers[head] - (mine.contains({head, head + 1}) ? 1 : 0);
        bytes += others * (d() + e()) * (readers[head] > 1 ? sum_ : word_);
      }
      gradients_home_.push_back(bytes);
    }
  }

  const Problem& problem_;
  Grid grid_;
  std::int64_t word_;
  std::int64_t statistic_;
  std::int64_t sum_;
  std::vector<std::int64_t> kv_heads_;
  std::vector<std::int64_t> gradients_home_;
  std::int64_t all_kv_heads_ = 0;
};

/// Bytes on the u axis: Q, K, V and Out (Lse too if it is a result), or dOut, dQ, dK and dV.
std::int64_t sent_by_head_exchange(const GridContext& context, const TokenCosts& costs, Pass pass) {
  const Blocks& blocks = context.blocks;
  const Needs& needs = context.needs;
  std::int64_t bytes = 0;
  // Query side: a token's heads of the other groups leave its owner as Q or dOut, and return to it
  // as Out or dQ. Queries that see nothing need not leave in forward.
  for (std::size_t q = 0; q < blocks.q.size(); ++q) {
    const std::int64_t others =
        context.problem.heads - costs.q_heads(place_of(context.grid, blocks.q[q].owner).h);
    const bool used = needs.q_used(static_cast<int>(q));
    const std::int64_t dim =
        pass == Pass::Forward ? (used ? costs.d() : 0) + costs.e() : costs.d() + costs.e();
    bytes += blocks.q[q].tokens() * others * dim * costs.word();
    if (pass == Pass::Forward && context.problem.return_lse) {
      bytes += blocks.q[q].tokens() * others * costs.statistic();
    }
  }
  // Key side: K, V to the other groups that read them, or their gradients back.
  for (std::size_t kv = 0; kv < blocks.kv.size(); ++kv) {
    const int h = place_of(context.grid, blocks.kv[kv].owner).h;
    if (pass == Pass::Backward) {
      bytes += blocks.kv[kv].tokens() * costs.gradients_home(h);
    } else if (needs.kv_used(static_cast<int>(kv))) {
      bytes += blocks.kv[kv].tokens() * (costs.all_kv_heads() - costs.kv_heads(h)) *
               (costs.d() + costs.e()) * costs.word();
    }
  }
  return bytes;
}

/// Bytes of K, V to their holders (forward), or of dK, dV back to their owners.
std::int64_t sent_by_transpose(const GridContext& context, const TokenCosts& costs) {
  const Blocks& blocks = context.blocks;
  std::int64_t bytes = 0;
  for (int kv = 0; kv < static_cast<int>(blocks.kv.size()); ++kv) {
    const GridPlace owner = place_of(context.grid, blocks.kv[kv].owner);
    const GridPlace holder = kv_holder(context.grid, owner);
    if ((holder.i == owner.i && holder.j == owner.j) || !context.needs.kv_used(kv)) continue;
    bytes += blocks.kv[kv].tokens() * costs.all_kv_heads() * (costs.d() + costs.e()) * costs.word();
  }
  return bytes;
}

/// Number of the members that need a block, without its origin.
std::int64_t others_who_need(const BlockIds& members, int origin) {
  return static_cast<std::int64_t>(members.size()) - (BlockUsers::holds(members, origin) ? 1 : 0);
}

/// Bytes of K, V along columns, and in backward of as many sums of dK, dV.
std::int64_t sent_on_columns(const GridContext& context, const TokenCosts& costs, Pass pass) {
  const Blocks& blocks = context.blocks;
  const std::int64_t word = costs.word() + (pass == Pass::Backward ? costs.sum() : 0);
  std::int64_t bytes = 0;
  for (int kv = 0; kv < static_cast<int>(blocks.kv.size()); ++kv) {
    const int origin = kv_holder(context.grid, place_of(context.grid, blocks.kv[kv].owner)).i;
    const std::int64_t hops = others_who_need(context.needs.rows(kv), origin);
    bytes += blocks.kv[kv].tokens() * costs.all_kv_heads() * (costs.d() + costs.e()) * word * hops;
  }
  return bytes;
}

/// Bytes along rows: Q and as many partial results (Out, Lse), or Q, dOut, Lse, Delta and as many
/// sums of dQ.
std::int64_t sent_on_rows(const GridContext& context, const TokenCosts& costs, Pass pass) {
  const Blocks& blocks = context.blocks;
  const std::int64_t both_ways =
      pass == Pass::Forward ? costs.d() * costs.word() + costs.e() * costs.sum() + costs.statistic()
                            : (costs.d() + costs.e()) * costs.word() + 2 * costs.statistic() +
                                  costs.d() * costs.sum();
  std::int64_t bytes = 0;
  for (int q = 0; q < static_cast<int>(blocks.q.size()); ++q) {
    const int origin = place_of(context.grid, blocks.q[q].owner).j;
    const std::int64_t hops = others_who_need(context.needs.columns(q), origin);
    bytes += blocks.q[q].tokens() * context.problem.heads * both_ways * hops;
  }
  return bytes;
}

}  // namespace

std::int64_t sent_bytes(const Problem& problem, const Blocks& blocks, const Needs& needs,
                        const Grid& grid, Pass pass) {
  ARMILLARY_CHECK(!grid.resend_each_round);
  const GridContext context{problem, blocks, needs, grid};
  const TokenCosts costs(problem, grid);
  return (grid.u > 1 ? sent_by_head_exchange(context, costs, pass) : 0) +
         (grid.transposed ? sent_by_transpose(context, costs) : 0) +
         sent_on_columns(context, costs, pass) + sent_on_rows(context, costs, pass);
}

}  // namespace armillary::plan
