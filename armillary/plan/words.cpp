// The tables of attention. Rows stand in the order of the enums.
#include "armillary/plan/words.h"

#include <array>

#include "armillary/plan/operands.h"

namespace armillary::plan {
namespace {

constexpr std::array<TensorWord, 10> kTensors{
    {{.name = "q", .side = kQSide},
     {.name = "k", .side = kKvSide},
     {.name = "v", .side = kKvSide},
     {.name = "out", .side = kQSide, .sums = true, .partial_name = "po"},
     {.name = "lse", .side = kQSide, .sums = true, .partial_name = "plse"},
     {.name = "dout", .side = kQSide},
     {.name = "delta", .side = kQSide},
     {.name = "dq", .side = kQSide, .sums = true},
     {.name = "dk", .side = kKvSide, .sums = true},
     {.name = "dv", .side = kKvSide, .sums = true}}};

constexpr std::array<SideWord, 2> kSides{
    {{.name = "q", .plural = "queries"}, {.name = "kv", .plural = "keys"}}};

/// Tensors that travel side by side: the grid prints `kv1>r2` instead of one word for each.
constexpr std::array<JointName, 3> kJointNames{
    {{"k", "v", "kv"}, {"dk", "dv", "dkv"}, {"po", "plse", "o"}}};

/// In the order of Pass (plan.h).
constexpr std::array<std::string_view, 3> kPasses{"forward", "backward", "replay"};

// A timeline sums seconds by kind in an array of kMostKinds.
static_assert(kOpTable.size() <= kMostKinds && kPasses.size() <= kMostPasses);
constexpr Vocabulary kWords{.name = "attention",
                            .kinds = kOpTable,
                            .tensors = kTensors,
                            .sides = kSides,
                            .joint_names = kJointNames,
                            .passes = kPasses};

}  // namespace

const Vocabulary& attention_words() {
  return kWords;
}

std::span<const Operand> operands(OpKind kind) {
  return kWords[kind].operands;
}

bool takes(OpKind kind, std::size_t views) {
  return kWords.takes(kind, views);
}

Access access(const Op& op, std::size_t v) {
  return kWords.access(op, v);
}

std::string operand_name(OpKind kind, std::size_t v) {
  return kWords.operand_name(kind, v);
}

std::string_view to_string(Tensor tensor) {
  return kTensors.at(static_cast<std::size_t>(tensor)).name;
}

std::string_view to_string(OpKind kind) {
  return kOpTable.at(static_cast<std::size_t>(kind)).name;
}

}  // namespace armillary::plan
