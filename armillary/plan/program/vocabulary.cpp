#include "armillary/plan/program/vocabulary.h"

#include <algorithm>

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

}  // namespace armillary::plan
