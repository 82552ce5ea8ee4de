// json.h: a relayout as JSON, for other programs and other languages.
//
//   {"format_version":1,"world":2,
//    "cache":{"layers":2,"kv_heads":1,"head_dim":64,"value_dim":64,"dtype":"bf16"},
//    "from":{"ranks":2,"first":0,"head_groups":1,"stages":1,
//            "extents":[{"tokens":8,"layout":"contiguous","skipped":0,"behind":0}]},
//    "to":{..},
//    "ranks":[..]}      programs as in plan/json.h, in the words of a relayout
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/relayout/shape.h"

namespace armillary::plan::relayout {

/// The version is raised when a reader of the old format could misunderstand the new one.
inline constexpr int kRelayoutFormatVersion = 1;

/// A shape and the programs that are said to be its relayout.
struct RelayoutText {
  RelayoutShape shape;
  std::vector<RankProgram> ranks;
  bool operator==(const RelayoutText&) const = default;
};

/// One line of text without a newline. Requires that every op has as many views as it takes.
/// parse_json(to_json(r)) == r, also for programs that check_relayout() refuses.
std::string to_json(const RelayoutText& relayout);

/// Strict, as plan::parse_json. The shape is checked, the programs are not.
/// @throws InvalidArgument naming the place.
RelayoutText parse_json(std::string_view text);

}  // namespace armillary::plan::relayout
