#include "armillary/plan/step/text.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string_view>

#include "armillary/plan/program/grid.h"
#include "armillary/plan/step/storage.h"
#include "armillary/plan/step/types.h"

namespace armillary::plan::step {
namespace {

/// The name of a unit, with the use over tp of a part that is not split.
std::string part_name(const StepTables& tables, const StepPart& part) {
  const std::string& unit = tables.shape().units[part.unit].name;
  constexpr std::array<std::string_view, kTpUses> kUsesInText{
      "", ", summed over tp", ", alike over tp", ", shared along tp", ", experts along ep"};
  return fmt::format("{}{}", unit, kUsesInText[static_cast<std::size_t>(part.use)]);
}

}  // namespace

std::string to_grid(const World& world, const StepShape& shape, const Diagnostic* at) {
  const StepTables tables(shape);
  std::string text = fmt::format("{:<6}{:<30}{:>14}  {}\n", "part", "unit", "values", "gradient");
  for (std::size_t part = 0; part < tables.parts().size(); ++part) {
    const StepPart& of = tables.parts()[part];
    text += fmt::format("{:<6}{:<30}{:>14}  {}\n", part, part_name(tables, of), of.values,
                        to_string(gradient_type(tables, of.use)));
  }
  text += fmt::format(
      "borders: {}; bytes of rank 0 at rest: {}{}\n\n", to_string(border_type(tables)),
      resting_bytes(tables, 0),
      shape.state_on_host ? fmt::format(", of which on the host: {}", host_bytes(tables, 0)) : "");
  return text + plan::to_string(world, at);
}

std::string grid_around(const World& world, const StepShape& shape, const Diagnostic& fault) {
  constexpr int kLines = 8;
  std::string grid = to_grid(world, shape, &fault);
  const std::size_t here = grid.find("<-- HERE");
  if (here == std::string::npos) return grid;
  std::size_t begin = here;
  for (int i = 0; i < kLines && begin != std::string::npos && begin > 0; ++i) {
    begin = grid.rfind('\n', begin - 1);
  }
  std::size_t end = here;
  for (int i = 0; i < kLines && end != std::string::npos; ++i) end = grid.find('\n', end + 1);
  begin = begin == std::string::npos ? 0 : begin + 1;
  return grid.substr(begin, end == std::string::npos ? end : end - begin);
}

}  // namespace armillary::plan::step
