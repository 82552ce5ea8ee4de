// The part of `doctor` about instruction sets: a row for each, then a line for each dtype.
#include "cli/torch/cpu_sets.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/kernel/cpu/isa.h"

namespace armillary::cli {
namespace {

using kernel::cpu::IsaStatus;
using kernel::cpu::IsaUse;

/// Names of dtypes, in the order of kernel::cpu::Element.
constexpr std::array<std::string_view, kernel::cpu::kElements> kDtypes{"fp32", "bf16", "fp16"};

/// A rate for the table; "-" if it was not measured.
std::string as_cell(double gflops) {
  return gflops == 0 ? "-" : fmt::format("{:.1f}", gflops);
}

}  // namespace

void print_cpu_sets() {
  const std::vector<IsaStatus> statuses = kernel::cpu::isa_statuses();
  fmt::print("{:<12}{:>10}{:>10}{:>10}  GFLOP/s of one thread\n", "set", kDtypes[0], kDtypes[1],
             kDtypes[2]);
  for (const IsaStatus& status : statuses) {
    // The last column is about bf16: it is the dtype for which sets differ most.
    const IsaUse& bf16 = status.uses[index_of(kernel::cpu::Element::BFloat16)];
    fmt::print("{:<12}", status.name);
    for (const IsaUse& use : status.uses) fmt::print("{:>10}", as_cell(use.gflops));
    fmt::print("  {}\n", bf16.taken               ? "taken"
                         : status.missing.empty() ? "not taken: " + bf16.why
                                                  : "does not run here: " + status.missing);
  }
  for (std::size_t dtype = 0; dtype < kDtypes.size(); ++dtype) {
    for (const IsaStatus& status : statuses) {
      const IsaUse& use = status.uses[dtype];
      if (use.taken) fmt::print("{} takes {}: {}\n", kDtypes[dtype], status.name, use.why);
    }
  }
}

nlohmann::ordered_json cpu_sets_json() {
  const std::vector<IsaStatus> statuses = kernel::cpu::isa_statuses();
  nlohmann::ordered_json taken;
  nlohmann::ordered_json sets = nlohmann::ordered_json::array();
  for (const IsaStatus& status : statuses) {
    nlohmann::ordered_json set{{"name", status.name}, {"runs", status.missing.empty()}};
    if (!status.missing.empty()) set["missing"] = status.missing;
    for (std::size_t dtype = 0; dtype < kDtypes.size(); ++dtype) {
      const IsaUse& use = status.uses[dtype];
      nlohmann::ordered_json& out = set[std::string(kDtypes[dtype])];
      if (use.gflops != 0) out["peak_gflops"] = use.gflops;
      out["taken"] = use.taken;
      out["why"] = use.why;
      if (use.taken) taken[std::string(kDtypes[dtype])] = status.name;
    }
    sets.push_back(std::move(set));
  }
  return {{"taken", std::move(taken)}, {"sets", std::move(sets)}};
}

}  // namespace armillary::cli
