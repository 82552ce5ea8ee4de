// armillary doctor: the sets of kernels that this machine can run, their peaks, and which is taken.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/kernel/cpu/isa.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

using kernel::cpu::IsaReport;
using kernel::cpu::IsaUse;

constexpr const char* kDoctorNotes =
    "Rates are the peak of one thread in GFLOP/s, probed for a millisecond. A set is taken by "
    "them:\n"
    "pairs of bf16 are faster than fp32 on some CPUs, slower on others.\n"
    "ARMILLARY_ISA=amx|avx512_bf16|avx512|avx2|portable forces a set for all dtypes.\n"
    "\nExamples:\n"
    "  armillary doctor\n"
    "  armillary doctor --json\n"
    "  ARMILLARY_ISA=avx2 armillary doctor\n"
    "\nExit code: 0 done, 2 ARMILLARY_ISA names no set that runs here.";

/// In the order of kernel::cpu::Element.
constexpr std::array<std::string_view, kernel::cpu::kElements> kDtypes{"fp32", "bf16", "fp16"};

std::string as_cell(double gflops) {
  return gflops == 0 ? "-" : fmt::format("{:.1f}", gflops);
}

void print_table(const std::vector<IsaReport>& reports) {
  fmt::print("{:<12}{:>10}{:>10}{:>10}  GFLOP/s of one thread\n", "set", kDtypes[0], kDtypes[1],
             kDtypes[2]);
  for (const IsaReport& report : reports) {
    // bf16 has the most to say: sets differ there.
    const IsaUse& bf16 = report.uses[index_of(kernel::cpu::Element::BFloat16)];
    fmt::print("{:<12}", report.name);
    for (const IsaUse& use : report.uses) fmt::print("{:>10}", as_cell(use.gflops));
    fmt::print("  {}\n", bf16.taken               ? "taken"
                         : report.missing.empty() ? "not taken: " + bf16.why
                                                  : "does not run here: " + report.missing);
  }
  for (std::size_t dtype = 0; dtype < kDtypes.size(); ++dtype) {
    for (const IsaReport& report : reports) {
      const IsaUse& use = report.uses[dtype];
      if (use.taken) fmt::print("{} takes {}: {}\n", kDtypes[dtype], report.name, use.why);
    }
  }
}

nlohmann::ordered_json as_json(const std::vector<IsaReport>& reports) {
  nlohmann::ordered_json taken;
  nlohmann::ordered_json sets = nlohmann::ordered_json::array();
  for (const IsaReport& report : reports) {
    nlohmann::ordered_json set{{"name", report.name}, {"runs", report.missing.empty()}};
    if (!report.missing.empty()) set["missing"] = report.missing;
    for (std::size_t dtype = 0; dtype < kDtypes.size(); ++dtype) {
      const IsaUse& use = report.uses[dtype];
      nlohmann::ordered_json& out = set[std::string(kDtypes[dtype])];
      if (use.gflops != 0) out["peak_gflops"] = use.gflops;
      out["taken"] = use.taken;
      out["why"] = use.why;
      if (use.taken) taken[std::string(kDtypes[dtype])] = report.name;
    }
    sets.push_back(std::move(set));
  }
  return {{"taken", std::move(taken)}, {"sets", std::move(sets)}};
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("doctor", kDoctorDescription);
  const auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "One JSON object");
  verb->footer(kDoctorNotes);
  verb->callback([json, &exit_code] {
    const std::vector<IsaReport> reports = kernel::cpu::report_isas();
    if (*json) {
      fmt::print("{}\n", as_json(reports).dump());
    } else {
      print_table(reports);
    }
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
