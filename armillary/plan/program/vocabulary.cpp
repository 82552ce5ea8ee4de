#include "armillary/plan/program/vocabulary.h"

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::plan {

// Every view of a message stands under its one operand.
bool Vocabulary::takes(Kind kind, std::size_t views) const {
  const std::size_t count = (*this)[kind].operands.size();
  return kind == kSend || kind == kRecv ? views >= count : views == count;
}

Access Vocabulary::access(const Op& op, std::size_t v) const {
  const KindWord& word = (*this)[op.kind];
  if (op.is_comm()) return word.operands.front().access;
  const Operand& operand = word.operands[v];
  if (operand.access != Access::Update || !operand.tensor) return operand.access;
  const std::size_t side = (*this)[*operand.tensor].side;
  const bool begun = op.init[side] && (word.begins >> side & 1) != 0;
  return begun ? Access::Write : Access::Update;
}

// Views past the first one of a message get their number.
std::string Vocabulary::operand_name(Kind kind, std::size_t v) const {
  const auto operands = (*this)[kind].operands;
  std::string name(operands[std::min(v, operands.size() - 1)].name);
  if (v >= operands.size()) name += std::to_string(v);
  return name;
}

void expect_no_joint_ops(std::string_view where, const RankProgram& program) {
  const Vocabulary& words = *program.words;
  if (std::ranges::none_of(words.kinds, &KindWord::joint)) return;
  for (const Op& op : program.ops) {
    if (!words[op.kind].joint) continue;
    fail<InvalidArgument>(
        "{}: rank {} has {}, an op of a group of ranks; sends and receives are required", where,
        program.rank, words[op.kind].name);
  }
}

}  // namespace armillary::plan
