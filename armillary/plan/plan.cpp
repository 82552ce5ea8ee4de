#include "armillary/plan/plan.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

using enum Access;

constexpr std::array<Operand, 1> kSend{{{"src", Read}}};
constexpr std::array<Operand, 1> kRecv{{{"dst", Write}}};
constexpr std::array<Operand, 5> kAttend{
    {{"q", Read}, {"k", Read}, {"v", Read}, {"out", Update}, {"lse", Update}}};
constexpr std::array<Operand, 9> kAttendGrad{{{"q", Read},
                                              {"k", Read},
                                              {"v", Read},
                                              {"dout", Read},
                                              {"lse", Read},
                                              {"delta", Read},
                                              {"dq", Update},
                                              {"dk", Update},
                                              {"dv", Update}}};
constexpr std::array<Operand, 4> kMerge{
    {{"out", Update}, {"lse", Update}, {"part_out", Read}, {"part_lse", Read}}};
constexpr std::array<Operand, 2> kAdd{{{"acc", Update}, {"part", Read}}};
constexpr std::array<Operand, 2> kCopy{{{"dst", Write}, {"src", Read}}};
constexpr std::array<Operand, 1> kClear{{{"dst", Write}}};
constexpr std::array<Operand, 4> kDelta{
    {{"delta", Write}, {"dout", Read}, {"out", Read}, {"lse", Read}}};
constexpr std::array<Operand, 4> kFinish{
    {{"out", Write}, {"lse", Write}, {"part_out", Read}, {"part_lse", Read}}};

constexpr std::array<Operand, 5> kAttendAll{
    {{"q", Read}, {"k", Read}, {"v", Read}, {"out", Write}, {"lse", Write}}};
constexpr std::array<Operand, 9> kAttendGradAll{{{"q", Read},
                                                 {"k", Read},
                                                 {"v", Read},
                                                 {"dout", Read},
                                                 {"lse", Read},
                                                 {"delta", Read},
                                                 {"dq", Write},
                                                 {"dk", Write},
                                                 {"dv", Write}}};

std::int64_t bytes(const Problem& problem, const Tile& tile, Heads heads, std::int64_t tokens) {
  return checked_product("plan: bytes of a tile",
                         {problem.batch, tokens, heads.count(), dim_of(problem, tile.tensor),
                          bytes_of(dtype_of(problem, tile))});
}

std::vector<std::int64_t> tokens_before(const std::vector<Block>& blocks) {
  std::vector<std::int64_t> before{0};
  for (const Block& block : blocks) before.push_back(before.back() + block.tokens());
  return before;
}

/// The tokens of some blocks in as few runs as sorting gives.
Runs joined(const std::vector<Block>& table, const BlockIds& ids) {
  Runs runs;
  for (const int id : ids) runs.insert(runs.end(), table[id].runs.begin(), table[id].runs.end());
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  return join(runs);
}

}  // namespace

bool is_kv(Tensor tensor) {
  return tensor == Tensor::K || tensor == Tensor::V || tensor == Tensor::DK || tensor == Tensor::DV;
}

bool is_whole(const Tile& tile, const View& view) {
  return view.heads == tile.heads && view.blocks == tile.blocks;
}

std::span<const Operand> operands(OpKind kind) {
  switch (kind) {
    case OpKind::Send:
      return kSend;
    case OpKind::Recv:
      return kRecv;
    case OpKind::Attend:
      return kAttend;
    case OpKind::AttendGrad:
      return kAttendGrad;
    case OpKind::Merge:
      return kMerge;
    case OpKind::Add:
      return kAdd;
    case OpKind::Copy:
      return kCopy;
    case OpKind::Clear:
      return kClear;
    case OpKind::Delta:
      return kDelta;
    case OpKind::Finish:
      return kFinish;
    case OpKind::AttendAll:
      return kAttendAll;
    case OpKind::AttendGradAll:
      return kAttendGradAll;
  }
  fail<InternalError>("plan: op kind {}", static_cast<int>(kind));
}

bool takes(OpKind kind, std::size_t views) {
  const std::size_t named = operands(kind).size();
  return kind == OpKind::Send || kind == OpKind::Recv ? views >= named : views == named;
}

Access access(const Op& op, std::size_t v) {
  const bool fresh = op.attends_grad() ? (v == 6 && op.fresh_q) || (v > 6 && op.fresh_kv)
                                       : op.attends() && v > 2 && op.fresh_q;
  return fresh ? Write : operands(op.kind)[op.is_comm() ? 0 : v].access;
}

bool writes(const Op& op, std::size_t v) {
  return access(op, v) != Read;
}

std::string operand_name(OpKind kind, std::size_t v) {
  const auto named = operands(kind);
  std::string name(named[std::min(v, named.size() - 1)].name);
  if (v >= named.size()) name += std::to_string(v);
  return name;
}

std::string_view to_string(Pass pass) {
  constexpr std::array<std::string_view, 3> kNames{"forward", "backward", "replay"};
  return kNames.at(static_cast<std::size_t>(pass));
}

std::string_view to_string(Tensor tensor) {
  constexpr std::array<std::string_view, 10> kNames{"q",    "k",     "v",  "out", "lse",
                                                    "dout", "delta", "dq", "dk",  "dv"};
  return kNames.at(static_cast<std::size_t>(tensor));
}

std::string_view to_string(OpKind kind) {
  constexpr std::array<std::string_view, 12> kNames{
      "send", "recv",  "attend", "attend_grad", "merge",      "add",
      "copy", "clear", "delta",  "finish",      "attend_all", "attend_grad_all"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string_view to_string(Collective collective) {
  constexpr std::array<std::string_view, 4> kNames{"none", "all_gather", "reduce_scatter",
                                                   "all_to_all"};
  return kNames.at(static_cast<std::size_t>(collective));
}

bool travels_narrow(const Problem& problem, Tensor tensor) {
  const bool summed =
      tensor == Tensor::Out || tensor == Tensor::DQ || tensor == Tensor::DK || tensor == Tensor::DV;
  return summed && problem.narrows_sums();
}

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

TokenCounts::TokenCounts(const Blocks& blocks)
    : before_q_(tokens_before(blocks.q)), before_kv_(tokens_before(blocks.kv)) {}

std::int64_t TokenCounts::of(Tensor tensor, const BlockIds& ids) const {
  const std::vector<std::int64_t>& before = is_kv(tensor) ? before_kv_ : before_q_;
  std::int64_t total = 0;
  for (const IdRun& run : ids.runs()) total += before[run.last + 1] - before[run.first];
  return total;
}

std::int64_t bytes_of(const Problem& problem, const TokenCounts& counts, const Tile& tile) {
  return bytes(problem, tile, tile.heads, counts.of(tile.tensor, tile.blocks));
}

std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const RankProgram& program,
                      const Op& message) {
  std::int64_t bytes = 0;
  for (const View& view : message.views) {
    bytes += bytes_of(problem, blocks, program.tiles[view.tile], view);
  }
  return bytes;
}

Traffic traffic(const Problem& problem, const Blocks& blocks, const RankProgram& program) {
  Traffic result;
  std::set<int> steps;
  for (const Op& op : program.ops) {
    steps.insert(steps.end(), op.step);  // ops mostly ascend
    if (op.is_comm()) {
      (op.kind == OpKind::Send ? result.sent_bytes : result.received_bytes) +=
          bytes_of(problem, blocks, program, op);
    } else if (op.attends() || op.attends_grad()) {
      result.visible_pairs += problem.batch * op.views[0].heads.count() *
                              problem.mask.area(joined(blocks.q, op.views[0].blocks),
                                                joined(blocks.kv, op.views[1].blocks));
    }
  }
  for (const Slot& slot : program.slots) {
    if (!slot.external) result.peak_slot_bytes += slot.bytes;
  }
  result.steps = static_cast<int>(steps.size());
  return result;
}

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
