// The small functions on plans: names, sizes and traffic. Sizes are computed from three
// parts: elements per token and head (dim_of), tokens of a list of blocks, and the element type
// (dtype_of).
#include "armillary/plan/plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/plan/operands.h"

namespace armillary::plan {
namespace {

/// Bytes of so many tokens and heads of a tile, of all batch entries.
std::int64_t bytes(const Problem& problem, const Tile& tile, Heads heads, std::int64_t tokens) {
  return checked_product("plan: bytes of a tile",
                         {problem.batch, tokens, heads.count(), dim_of(problem, tile.tensor),
                          bytes_of(dtype_of(problem, tile))});
}

/// Prefix sums of the tokens of blocks: one number more than there are blocks.
std::vector<std::int64_t> tokens_before(const std::vector<Block>& blocks) {
  std::vector<std::int64_t> before{0};
  for (const Block& block : blocks) before.push_back(before.back() + block.tokens());
  return before;
}

/// The tokens of some blocks, sorted and in as few runs as possible: areas cost per pair of runs.
Runs joined(const std::vector<Block>& table, const BlockIds& ids) {
  Runs runs;
  for (const int id : ids) runs.insert(runs.end(), table[id].runs.begin(), table[id].runs.end());
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  return join(runs);
}

}  // namespace

std::string_view to_string(Pass pass) {
  return attention_words().passes[static_cast<std::size_t>(pass)];
}

// Log-sum-exps always travel in the accumulator, so Lse is not in this list.
bool travels_narrow(const Problem& problem, Tensor tensor) {
  const bool summed =
      tensor == Tensor::Out || tensor == Tensor::DQ || tensor == Tensor::DK || tensor == Tensor::DV;
  return summed && problem.narrows_sums();
}

// Statistics of the softmax, and partial results that do not travel narrow, are accumulators.
Dtype dtype_of(const Problem& problem, const Tile& tile) {
  const bool statistic = tile.tensor == Tensor::Lse || tile.tensor == Tensor::Delta;
  return statistic || (tile.partial && !tile.narrow) ? accumulator(problem.dtype) : problem.dtype;
}

std::int64_t dim_of(const Problem& problem, Tensor tensor) {
  switch (tensor) {
    case Tensor::Q:
    case Tensor::K:
    case Tensor::DQ:
    case Tensor::DK:
      return problem.head_dim;
    case Tensor::V:
    case Tensor::Out:
    case Tensor::DOut:
    case Tensor::DV:
      return problem.value_dim;
    case Tensor::Lse:
    case Tensor::Delta:
      return 1;
  }
  fail<InternalError>("plan: tensor {}", static_cast<int>(tensor));
}

const std::vector<Block>& blocks_of(const Blocks& blocks, Tensor tensor) {
  return is_kv(tensor) ? blocks.kv : blocks.q;
}

std::int64_t tokens_of(const Blocks& blocks, Tensor tensor, const BlockIds& ids) {
  const std::vector<Block>& table = blocks_of(blocks, tensor);
  std::int64_t total = 0;
  for (const int id : ids) total += table[id].tokens();
  return total;
}

std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const Tile& tile) {
  return bytes(problem, tile, tile.heads, tokens_of(blocks, tile.tensor, tile.blocks));
}

std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const Tile& tile,
                      const View& view) {
  return bytes(problem, tile, view.heads, tokens_of(blocks, tile.tensor, view.blocks));
}

Measures measures_of(const Problem& problem, const Blocks& blocks) {
  const Dtype sums = accumulator(problem.dtype);
  std::vector<TensorMeasure> tensors;
  for (std::size_t t = 0; t < attention_words().tensors.size(); ++t) {
    const auto tensor = static_cast<Tensor>(t);
    tensors.push_back({.heads = is_kv(tensor) ? problem.kv_heads : problem.heads,
                       .dim = dim_of(problem, tensor),
                       .dtype = dtype_of(problem, {.tensor = tensor}),
                       .accumulator = sums,
                       .travels_narrow = travels_narrow(problem, tensor),
                       .scalar = tensor == Tensor::Lse || tensor == Tensor::Delta});
  }
  std::vector<std::vector<std::int64_t>> tokens(2);
  for (const Block& block : blocks.q) tokens[kQSide].push_back(block.tokens());
  for (const Block& block : blocks.kv) tokens[kKvSide].push_back(block.tokens());
  return Measures(attention_words(), problem.batch, std::move(tensors), tokens);
}

TokenCounts::TokenCounts(const Blocks& blocks)
    : before_q_(tokens_before(blocks.q)), before_kv_(tokens_before(blocks.kv)) {}

// A run of ids is the difference of two prefix sums.
std::int64_t TokenCounts::of(Tensor tensor, const BlockIds& ids) const {
  const std::vector<std::int64_t>& before = is_kv(tensor) ? before_kv_ : before_q_;
  std::int64_t total = 0;
  for (const IdRun& run : ids.runs()) total += before[run.last + 1] - before[run.first];
  return total;
}

std::int64_t bytes_of(const Problem& problem, const TokenCounts& counts, const Tile& tile) {
  return bytes(problem, tile, tile.heads, counts.of(tile.tensor, tile.blocks));
}

std::vector<std::int64_t> tile_bytes(const Problem& problem, const Blocks& blocks,
                                     const RankProgram& program) {
  std::size_t ids = 0;
  for (const Tile& tile : program.tiles) ids += tile.blocks.size();
  std::optional<TokenCounts> counts;
  if (ids > blocks.q.size() + blocks.kv.size()) counts.emplace(blocks);
  std::vector<std::int64_t> items;
  items.reserve(program.tiles.size());
  for (const Tile& tile : program.tiles) {
    items.push_back(counts ? bytes_of(problem, *counts, tile) : bytes_of(problem, blocks, tile));
  }
  return items;
}

std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const RankProgram& program,
                      const Op& message) {
  std::int64_t bytes = 0;
  for (const View& view : message.views) {
    bytes += bytes_of(problem, blocks, program.tiles[view.tile], view);
  }
  return bytes;
}

// One walk over the ops: messages add bytes, ops that attend add pairs.
Traffic traffic(const Problem& problem, const Blocks& blocks, const RankProgram& program) {
  Traffic result;
  result.steps = count_steps(program);
  // Most ops attend with the queries of the op before.
  BlockIds q_blocks;
  Runs queries;
  for (const Op& op : program.ops) {
    if (op.is_comm()) {
      (op.kind == OpKind::Send ? result.sent_bytes : result.received_bytes) +=
          bytes_of(problem, blocks, program, op);
    } else if (attends(op) || attends_grad(op)) {
      const View& q = op.views[QkvOperand::kQ];
      const View& k = op.views[QkvOperand::kK];
      if (q.blocks != q_blocks) {
        q_blocks = q.blocks;
        queries = joined(blocks.q, q_blocks);
      }
      result.visible_pairs +=
          problem.batch * q.heads.count() * problem.mask.area(queries, joined(blocks.kv, k.blocks));
    }
  }
  for (const Slot& slot : program.slots) {
    if (!slot.external) result.peak_slot_bytes += slot.bytes;
  }
  return result;
}

// Messages within a node share its number, rank / ranks_per_node.
std::int64_t sent_between_nodes(const Problem& problem, const Blocks& blocks,
                                const RankProgram& program, int ranks_per_node) {
  std::int64_t bytes = 0;
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::Send || op.peer / ranks_per_node == program.rank / ranks_per_node) {
      continue;
    }
    bytes += bytes_of(problem, blocks, program, op);
  }
  return bytes;
}

}  // namespace armillary::plan
