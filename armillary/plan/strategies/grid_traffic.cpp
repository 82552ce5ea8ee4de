// grid_traffic.cpp: bytes of a grid, counted block by block without making its plan.
#include "armillary/core/error.h"
#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {
namespace {

/// Heads and bytes of a grid: what a token costs.
class Costs {
 public:
  Costs(const Problem& problem, const Grid& grid)
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

  std::int64_t q_heads(int h) const { return head_group(problem_, grid_, h).count(); }
  std::int64_t kv_heads(int h) const { return kv_heads_[h]; }
  std::int64_t d() const { return problem_.head_dim; }
  std::int64_t e() const { return problem_.value_dim; }
  std::int64_t word() const { return word_; }
  std::int64_t sum() const { return sum_; }                    ///< Of a partial Out, dQ, dK, dV.
  std::int64_t statistic() const { return statistic_; }        ///< Of Lse, Delta.
  std::int64_t all_kv_heads() const { return all_kv_heads_; }  ///< Replicated ones once per group.

  /// Bytes per token of dK, dV that the owner of head group h receives on the u axis: final ones
  /// where one group reads the head, sums where several do.
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

/// On the u axis, where Q, K, V, Out, or dOut, dQ, dK, dV, are exchanged.
std::int64_t exchanged(const Problem& problem, const Blocks& blocks, const Needs& needs,
                       const Grid& grid, const Costs& costs, Pass pass) {
  std::int64_t bytes = 0;
  for (std::size_t q = 0; q < blocks.q.size(); ++q) {
    const std::int64_t others = problem.heads - costs.q_heads(place_of(grid, blocks.q[q].owner).h);
    const bool used = needs.q_used(static_cast<int>(q));
    const std::int64_t dim =
        pass == Pass::Forward ? (used ? costs.d() : 0) + costs.e() : costs.d() + costs.e();
    bytes += blocks.q[q].tokens() * others * dim * costs.word();
    if (pass == Pass::Forward && problem.return_lse) {
      bytes += blocks.q[q].tokens() * others * costs.statistic();
    }
  }
  for (std::size_t kv = 0; kv < blocks.kv.size(); ++kv) {
    const int h = place_of(grid, blocks.kv[kv].owner).h;
    if (pass == Pass::Backward) {
      bytes += blocks.kv[kv].tokens() * costs.gradients_home(h);
    } else if (needs.kv_used(static_cast<int>(kv))) {
      bytes += blocks.kv[kv].tokens() * (costs.all_kv_heads() - costs.kv_heads(h)) *
               (costs.d() + costs.e()) * costs.word();
    }
  }
  return bytes;
}

/// Members 0 .. n - 1 but the origin that need it.
template <class Needs>
std::int64_t others_who_need(int n, int origin, const Needs& needs) {
  std::int64_t count = 0;
  for (int member = 0; member < n; ++member) count += member != origin && needs(member) ? 1 : 0;
  return count;
}

/// K, V to those who need them; backward as many sums of dK, dV.
std::int64_t sent_on_columns(const Blocks& blocks, const Needs& needs, const Grid& grid,
                             const Costs& costs, Pass pass) {
  const std::int64_t word = costs.word() + (pass == Pass::Backward ? costs.sum() : 0);
  std::int64_t bytes = 0;
  for (int kv = 0; kv < static_cast<int>(blocks.kv.size()); ++kv) {
    const int origin = kv_holder(grid, place_of(grid, blocks.kv[kv].owner)).i;
    const std::int64_t hops =
        others_who_need(grid.rq, origin, [&](int i) { return needs.row_needs(i, kv); });
    bytes += blocks.kv[kv].tokens() * costs.all_kv_heads() * (costs.d() + costs.e()) * word * hops;
  }
  return bytes;
}

/// Q, or Q, dOut, Lse and Delta, and as many partial outputs or sums of dQ.
std::int64_t sent_on_rows(const Problem& problem, const Blocks& blocks, const Needs& needs,
                          const Grid& grid, const Costs& costs, Pass pass) {
  const std::int64_t both_ways =
      pass == Pass::Forward ? costs.d() * costs.word() + costs.e() * costs.sum() + costs.statistic()
                            : (costs.d() + costs.e()) * costs.word() + 2 * costs.statistic() +
                                  costs.d() * costs.sum();
  std::int64_t bytes = 0;
  for (int q = 0; q < static_cast<int>(blocks.q.size()); ++q) {
    const int origin = place_of(grid, blocks.q[q].owner).j;
    const std::int64_t hops =
        others_who_need(grid.rk, origin, [&](int j) { return needs.column_needs(j, q); });
    bytes += blocks.q[q].tokens() * problem.heads * both_ways * hops;
  }
  return bytes;
}

/// On the u axis, and to transpose.
std::int64_t sent_to_places(const Problem& problem, const Blocks& blocks, const Needs& needs,
                            const Grid& grid, const Costs& costs, Pass pass) {
  std::int64_t bytes = grid.u == 1 ? 0 : exchanged(problem, blocks, needs, grid, costs, pass);
  for (int kv = 0; grid.transposed && kv < static_cast<int>(blocks.kv.size()); ++kv) {
    const Place owner = place_of(grid, blocks.kv[kv].owner);
    const Place holder = kv_holder(grid, owner);
    if ((holder.i == owner.i && holder.j == owner.j) || !needs.kv_used(kv)) continue;
    bytes += blocks.kv[kv].tokens() * costs.all_kv_heads() * (costs.d() + costs.e()) * costs.word();
  }
  return bytes;
}

}  // namespace

std::int64_t sent_bytes(const Problem& problem, const Blocks& blocks, const Needs& needs,
                        const Grid& grid, Pass pass) {
  ARMILLARY_CHECK(!grid.anew);
  const Costs costs(problem, grid);
  return sent_to_places(problem, blocks, needs, grid, costs, pass) +
         sent_on_columns(blocks, needs, grid, costs, pass) +
         sent_on_rows(problem, blocks, needs, grid, costs, pass);
}

}  // namespace armillary::plan
