// rules.h: why a mutant may be as good as its plan.
//
//   same batches   other batch: only numbers changed, every batch holds what it held
//   other batches  other batch: batches are split or joined, messages keep their order
//   row of print   other batch of a compute op: its step is only the row it prints in
//   again          doubled: the op reads nothing that it writes, so once more changes nothing (but
//                  a `delta`, which adds to what no tile shows)
//   copied         other zero copy: a copy is made that nothing requires
//   rests          other zero copy: nothing is written over a tile that is lent or borrowed
//   cleared anyway other start: the op adds to what was cleared and nothing added to, or writes it
//   sees nothing   fewer blocks, other block: the same queries see the same keys in the op
//   the same op    swapped: with its equal
//   independent    swapped: neither touches what the other writes, no two messages trade places
//   sums commute   swapped: what both write are sums that both only add to
//   lives apart    slot reused: every read finds the same writes as before, in program order
//   same tensor    other tile: both are that part of the tensor itself, there are no two of it
//   same sums      other tile: what is read there sums the same (a relayed gradient before it is
//                  added to nothing, a complete sum before it is rounded)
//   other order    other tile: the sum is taken in another order, so where partials travel narrow
//                  other terms of it may be rounded
//
// No rule lets a sum travel in another dtype, or the steps of a lane decrease. A rule is a reason,
// from the mutation alone. That the reason is enough is for `replay` to show.
#pragma once

#include <string_view>

#include "armillary/plan/mutate.h"

namespace armillary::mutation {

/// The rule by which `mutant`, made from `plan` by `mutation`, may be as good; empty: by none.
std::string_view rule_of(const plan::Plan& plan, const plan::Mutation& mutation,
                         const plan::Plan& mutant);

}  // namespace armillary::mutation
