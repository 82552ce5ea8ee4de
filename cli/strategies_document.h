// strategies_document.h: the text of docs/strategies.md, made from the registry of strategies and
// from real plans.
#pragma once

#include <string>

namespace armillary::cli {

/// Returns Markdown: a table of the costs of real plans, then the texts of each StrategyInfo.
/// tests/golden compares it with docs/strategies.md.
std::string strategies_document();

}  // namespace armillary::cli
