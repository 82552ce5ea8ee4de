// words.cpp: the tables of a relayout. Rows stand in the order of the enums.
#include "armillary/plan/relayout/words.h"

#include <array>

namespace armillary::plan::relayout {
namespace {

constexpr std::array<Operand, 2> kKeepOperands{
    {{.name = "to", .access = Access::Write}, {.name = "from"}}};

constexpr std::array kRelayoutKinds{
    kSendWord, kRecvWord,
    kind_word({.name = "keep", .operands = kKeepOperands, .same_tensor = true})};

constexpr std::array<TensorWord, 2> kRelayoutTensorWords{{{.name = "k"}, {.name = "v"}}};
constexpr std::array<SideWord, 1> kRelayoutSides{{{.name = "part", .plural = "parts"}}};
constexpr std::array<JointName, 1> kRelayoutJointNames{{{"k", "v", "kv"}}};
constexpr std::array<std::string_view, 1> kRelayoutPasses{"relayout"};

constexpr Vocabulary kRelayoutWords{.name = "relayout",
                                    .kinds = kRelayoutKinds,
                                    .tensors = kRelayoutTensorWords,
                                    .sides = kRelayoutSides,
                                    .joint_names = kRelayoutJointNames,
                                    .passes = kRelayoutPasses};

}  // namespace

const Vocabulary& relayout_words() {
  return kRelayoutWords;
}

}  // namespace armillary::plan::relayout
