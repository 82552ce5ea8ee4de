// cpu_sets.h: the instruction sets for which there are kernels, as `doctor` shows them: their peak
// rates on this machine, and for each dtype the set that is used, with the reason.
#pragma once

#include <nlohmann/json.hpp>

namespace armillary::cli {

/// A row for each set, then a line for each dtype. @throws InvalidArgument if ARMILLARY_ISA names
/// no set that runs here.
void print_cpu_sets();

/// `taken`: the set of each dtype; `sets`: all facts about each set. @throws likewise.
nlohmann::ordered_json cpu_sets_json();

}  // namespace armillary::cli
