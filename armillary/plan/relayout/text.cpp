#include "armillary/plan/relayout/text.h"

#include <fmt/format.h>

#include "armillary/core/count_text.h"
#include "armillary/plan/program/grid.h"

namespace armillary::plan::relayout {

std::string to_grid(const World& world, const RelayoutShape& shape, const Diagnostic* at) {
  const RelayoutTables tables(shape);
  std::int64_t all = 0;
  for (const Transfer& transfer : tables.transfers()) all += tables.bytes(transfer);
  const std::int64_t moved = tables.moved_bytes();
  std::string text =
      fmt::format("relayout {} -> {}: {}, {}; {} move, {} stay\n", to_string(shape.from),
                  to_string(shape.to), count_of(shape.cache.layers, "layer"),
                  count_of(shape.from.tokens(), "token"), count_of(moved, "byte"), all - moved);
  text += fmt::format("{:<6}{:>9}{:>9}{:>12}\n", "part", "from", "to", "tokens");
  for (std::size_t part = 0; part < tables.parts().size(); ++part) {
    const TokenPart& of = tables.parts()[part];
    text += fmt::format("{:<6}{:>9}{:>9}{:>12}\n", part, of.from, of.to, of.tokens);
  }
  return text + '\n' + plan::to_string(world, at);
}

}  // namespace armillary::plan::relayout
