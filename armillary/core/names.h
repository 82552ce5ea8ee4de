// names.h: what to say when a name is not known.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace armillary {

/// The candidate nearest to `name` by edit distance; empty if none is closer than a third of
/// `name`'s length plus two. Cost: product of the lengths, per candidate.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// "a, b or c" for error texts.
std::string list_names(std::span<const std::string> names);

}  // namespace armillary
