// strategies_document.h: docs/strategies.md, made from the registry and from real plans.
#pragma once

#include <string>

namespace armillary::cli {

/// Markdown. For every strategy: what the registry knows of it, the forward plan of a small problem
/// as a grid, and what its plans cost. tests/golden compares it with docs/strategies.md.
std::string strategies_document();

}  // namespace armillary::cli
