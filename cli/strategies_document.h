// strategies_document.h: the text of docs/strategies.md, made from the registry of strategies and
// from real plans.
#pragma once

#include <string>

namespace armillary::cli {

/// Returns Markdown. A section of each strategy has the texts of its StrategyInfo, the forward plan
/// of a small problem as a grid, and a table of the costs of its plans. tests/golden compares it
/// with docs/strategies.md.
std::string strategies_document();

}  // namespace armillary::cli
