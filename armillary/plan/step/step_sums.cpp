// Joint ops on types: each reads the operands of all ranks, which must be alike, and gives each
// rank its result. A sum takes its axes from the terms; shards lie over the replicas.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "armillary/plan/step/step_meaning.h"
#include "armillary/plan/step/storage.h"

namespace armillary::plan::step {

std::vector<StepMeaning::Shown> StepMeaning::read_all(std::span<const Action> parts,
                                                      std::size_t v) {
  std::vector<Shown> all;
  for (const Action& at : parts) all.push_back(read(at, v));
  return all;
}

bool StepMeaning::over_replicas(const Shown& first, AxisSet axes) {
  const AxisSet required = tables_.shard_axes(unit_of(first));
  if (axes == required) return true;
  fault(*first.at, "shards",
        fmt::format("goes over {}; shards lie over {}", axis_names(axes),
                    required == 0 ? "no axis" : axis_names(required)));
  return false;
}

bool StepMeaning::shows_all(const Shown& shown, bool all) {
  if ((shown.view.heads == all_shards(shown)) == all) return true;
  fault(*shown.at, "shards",
        fmt::format("shows {} of {}; {} is required", all ? "a shard" : "all",
                    name(shown, shown.cells.front()), all ? "all" : "the rank's own shard"));
  return false;
}

// The own shard and the others of one rank, and the cells of two ranks, hold equal terms.
bool StepMeaning::alike(const Shown& sum, const Shown& model) {
  bool same = sum.tile->tensor == model.tile->tensor && sum.view.blocks == model.view.blocks &&
              sum.cells.size() == model.cells.size();
  for (std::size_t c = 0; same && c < sum.cells.size(); ++c) {
    same = *sum.cells[c].value == *model.cells[c].value;
    if (!sum.cells[c].own) same = same && *sum.cells[c].value == *sum.cells[c - 1].value;
  }
  if (!same) {
    fault(*sum.at, "axes",
          fmt::format("sums {}, of which rank {} has other parts", name(sum, sum.cells.front()),
                      model.at->rank));
  }
  return same;
}

bool StepMeaning::summable(const Shown& sum, const TypedCell& cell, AxisSet axes) {
  const std::vector<std::int8_t>& terms = cell.value->terms;
  std::size_t users = 1;
  if (sum.tile->tensor == StepTensor::Grad) users = tables_.users_of(unit_of(sum)).size();
  for (std::size_t term = 0; term < terms.size(); ++term) {
    const auto of = [&] { return term_name(tables_, sum.tile->tensor, cell.block, term); };
    const auto first = terms.begin() + static_cast<std::ptrdiff_t>(term / users * users);
    const bool is_begun = std::any_of(first, first + static_cast<std::ptrdiff_t>(users),
                                      [](std::int8_t other) { return other >= 0; });
    if (!is_begun) continue;
    if (terms[term] < 0) {
      fault(*sum.at, "early", fmt::format("sums {} before {}", name(sum, cell), of()));
      return false;
    }
    const AxisSet lacking = axes & ~static_cast<AxisSet>(terms[term]);
    if (lacking == 0) continue;
    fault(*sum.at, "axes",
          fmt::format("sums {} over {}, but along {} it is not partial in {}", name(sum, cell),
                      axis_names(axes), axis_names(lacking), of()));
    return false;
  }
  return true;
}

bool StepMeaning::summable(const std::vector<Shown>& sums, AxisSet axes) {
  for (const Shown& sum : sums) {
    if (!alike(sum, sums.front())) return false;
    for (const TypedCell& cell : sum.cells) {
      if (!summable(sum, cell, axes)) return false;
    }
  }
  return true;
}

bool StepMeaning::has_all_terms(const Shown& sum) {
  for (const TypedCell& cell : sum.cells) {
    const auto missing = std::ranges::find(cell.value->terms, std::int8_t{-1});
    if (missing == cell.value->terms.end()) continue;
    const std::string of =
        term_name(tables_, sum.tile->tensor, cell.block, missing - cell.value->terms.begin());
    fault(*sum.at, "early", fmt::format("sums {} before {}", name(sum, cell), of));
    return false;
  }
  return true;
}

void StepMeaning::run_gather(std::span<const Action> parts, AxisSet axes) {
  const std::vector<Shown> mine = read_all(parts, GatherOperand::kMine);
  if (!diagnostics_.empty() || !over_replicas(mine.front(), axes)) return;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Shown all = write(parts[i], GatherOperand::kAll);
    if (!diagnostics_.empty() || !shows_all(mine[i], false) || !shows_all(all, true)) return;
    const TypedCell& shard = mine[i].cells.front();
    const bool same = all.view.blocks == mine[i].view.blocks &&
                      mine[i].view.blocks == mine.front().view.blocks &&
                      *shard.value == *mine.front().cells.front().value;
    if (!same) {
      return fault(parts[i], "shards",
                   fmt::format("gathers shards of {} and others", name(mine[i], shard)));
    }
    for (const TypedCell& cell : all.cells) *cell.value = *shard.value;
  }
}

void StepMeaning::run_gather_in_place(std::span<const Action> parts, AxisSet axes) {
  std::vector<Shown> all;
  for (const Action& at : parts) all.push_back(read_own(at, 0));
  if (!diagnostics_.empty()) return;
  const Shown& first = all.front();
  const StepTensor tensor = first.tile->tensor;
  if (tensor != StepTensor::Weight && tensor != StepTensor::Grad) {
    return fault(*first.at, "shards",
                 fmt::format("gathers {}; values or gradients are required",
                             name(first, first.cells.front())));
  }
  if (!over_replicas(first, axes)) return;
  for (const Shown& mine : all) {
    const bool same =
        mine.tile->tensor == first.tile->tensor && mine.view.blocks == first.view.blocks;
    if (!same) return fault(*mine.at, "shards", "gathers shards of several units");
    if (!shows_all(mine, true) || !gathers_legally(mine, axes)) return;
    for (std::size_t c = 0; c < mine.cells.size(); ++c) {
      const TypedCell& cell = mine.cells[c];
      if (!cell.own || *cell.value == *first.cells[c].value) continue;
      return fault(*mine.at, "shards",
                   fmt::format("gathers shards of {} and others", name(mine, cell)));
    }
  }
  for (const Shown& mine : all) {
    for (std::size_t c = 0; c < mine.cells.size(); ++c) {
      if (!mine.cells[c].own) *mine.cells[c].value = *mine.cells[c - 1].value;
    }
  }
}

bool StepMeaning::gathers_legally(const Shown& all, AxisSet axes) {
  const bool of_gradients = all.tile->tensor == StepTensor::Grad;
  for (const TypedCell& cell : all.cells) {
    if (!cell.own) continue;
    if (of_gradients && !is_summed_over(all, cell, axes)) return false;
    if (of_gradients || cell.value->version > 0) continue;
    fault(*all.at, "early", fmt::format("gathers {} before its update", name(all, cell)));
    return false;
  }
  return true;
}

bool StepMeaning::is_summed_over(const Shown& sum, const TypedCell& cell, AxisSet axes) {
  for (std::size_t term = 0; term < cell.value->terms.size(); ++term) {
    const std::int8_t left = cell.value->terms[term];
    const AxisSet lacking = left < 0 ? axes : static_cast<AxisSet>(left) & axes;
    if (lacking == 0) continue;
    const std::string of = term_name(tables_, sum.tile->tensor, cell.block, term);
    const std::string why =
        left < 0 ? "lacks " + of : "is partial along " + axis_names(lacking) + " in " + of;
    fault(*sum.at, "early", fmt::format("gathers {}, which {}", name(sum, cell), why));
    return false;
  }
  return true;
}

void StepMeaning::run_all_reduce(std::span<const Action> parts, AxisSet axes) {
  const std::vector<Shown> sums = read_all(parts, 0);
  if (!diagnostics_.empty()) return;
  const Shown& first = sums.front();
  const StepTensor tensor = first.tile->tensor;
  for (const Shown& sum : sums) {
    if (sum.tile->tensor == first.tile->tensor) continue;
    return fault(*sum.at, "axes",
                 fmt::format("sums {} with {} of rank {}", name(sum, sum.cells.front()),
                             name(first, first.cells.front()), first.at->rank));
  }
  if (tensor == StepTensor::Norm) return run_norm_sum(sums, axes);
  if (tensor != StepTensor::Grad && tensor != StepTensor::Loss) {
    return fault(parts.front(), "axes",
                 fmt::format("sums {}, which is no sum", name(first, first.cells.front())));
  }
  if (!summable(sums, axes)) return;
  const bool of_replicas =
      tensor == StepTensor::Grad && (axes & tables_.shard_axes(unit_of(first))) != 0;
  for (const Shown& sum : sums) {
    // A whole gradient of one microbatch is summed before it is added to the shard.
    const bool passes = is_transient(tables_, sum.at->rank, *sum.tile);
    if (!passes && !has_all_terms(sum)) return;
    if (of_replicas && !shows_all(sum, true)) return;
  }
  for (const Shown& sum : sums) {
    for (const TypedCell& cell : sum.cells) {
      for (std::int8_t& term : cell.value->terms) {
        term = static_cast<std::int8_t>(static_cast<AxisSet>(term) & ~axes);
      }
    }
  }
}

// Values that several ranks of a group have are counted by one of them; all others by all ranks, or
// by none if a rank of another group counts them.
void StepMeaning::run_norm_sum(const std::vector<Shown>& norms, AxisSet axes) {
  for (int part = 0; part < static_cast<int>(tables_.parts().size()); ++part) {
    const std::string of = term_name(tables_, StepTensor::Norm, 0, part);
    const AxisSet same = axes & tables_.same_in_norm(part);
    std::size_t counts = 0;
    std::set<Rank> counted;  // The first of the ranks that have the same.
    std::int8_t result = -1;
    for (const Shown& norm : norms) {
      const std::int8_t left = norm.cells.front().value->terms[part];
      if (left < 0) continue;
      ++counts;
      counted.insert(tables_.group(same, norm.at->rank).front());
      const bool is_partial = (static_cast<AxisSet>(left) & axes) == axes;
      if (!is_partial || (result >= 0 && result != left)) {
        return fault(
            *norm.at, "axes",
            fmt::format("sums norm over {}, but {} are not partial there", axis_names(axes), of));
      }
      result = left;
    }
    if (counts == 0) continue;
    const std::size_t ranks = norms.size();
    const std::size_t required = ranks / tables_.group(same, norms.front().at->rank).size();
    if (counts != required || counted.size() != required) {
      return fault(*norms.front().at, counts > required ? "twice" : "partial",
                   fmt::format("sums norm, in which {} of {} ranks count {}; {} is required",
                               counts, ranks, of, required));
    }
    for (const Shown& norm : norms) {
      norm.cells.front().value->terms[part] =
          static_cast<std::int8_t>(static_cast<AxisSet>(result) & ~axes);
    }
  }
}

void StepMeaning::run_reduce_scatter(std::span<const Action> parts, AxisSet axes) {
  const std::vector<Shown> all = read_all(parts, ReduceScatterOperand::kAll);
  if (!diagnostics_.empty() || !over_replicas(all.front(), axes) || !summable(all, axes)) return;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Shown mine = update(parts[i], ReduceScatterOperand::kMine);
    if (!diagnostics_.empty() || !shows_all(all[i], true) || !shows_all(mine, false)) return;
    if (mine.view.blocks != all[i].view.blocks) {
      return fault(parts[i], "shards", "adds to a shard of another unit");
    }
    for (std::size_t c = 0; c < mine.cells.size(); ++c) {
      const std::vector<std::int8_t>& terms = all[i].cells[2 * c].value->terms;
      for (std::size_t term = 0; term < terms.size(); ++term) {
        if (terms[term] < 0) continue;
        add_term(mine, mine.cells[c], term, static_cast<AxisSet>(terms[term]) & ~axes);
        if (!diagnostics_.empty()) return;
      }
    }
  }
}

void StepMeaning::run_reduce_in_place(std::span<const Action> parts, AxisSet axes) {
  const std::vector<Shown> all = read_all(parts, 0);
  if (!diagnostics_.empty() || !over_replicas(all.front(), axes) || !summable(all, axes)) return;
  for (const Shown& sum : all) {
    if (!shows_all(sum, true) || !has_all_terms(sum)) return;
  }
  for (const Shown& sum : all) {
    for (const TypedCell& cell : sum.cells) {
      if (!cell.own) *cell.value = {};
      for (std::int8_t& term : cell.value->terms) {
        term = static_cast<std::int8_t>(static_cast<AxisSet>(term) & ~axes);
      }
    }
  }
}

}  // namespace armillary::plan::step
