// program_json.h: the program of a rank as JSON, in the words of its vocabulary.
//
// The members of `ranks` of a plan (plan/json.h), which documents the format: names of ops,
// operands, tensors and sides are those of the vocabulary, all other keys are the machine's.
#pragma once

#include <string>
#include <string_view>

#include "armillary/plan/program/json_node.h"
#include "armillary/plan/program/vocabulary.h"

namespace armillary::plan {

/// One line of text without a newline. Requires that every op has as many views as it takes.
std::string to_json(const RankProgram& program);
/// The inverse: parse_program_json(to_json(p), *p.words) == p. Strict, and checks nothing else.
/// @throws InvalidArgument naming the place.
RankProgram parse_program_json(std::string_view text, const Vocabulary& words);

// The same as values, for formats that hold programs.

Json json_of(const RankProgram& program);
RankProgram parse_program(const Node& node, const Vocabulary& words);
/// The text as JSON, no deeper than a plan is. `required` is named in the error.
/// @throws InvalidArgument
Json parse_syntax(std::string_view text, std::string_view required);

}  // namespace armillary::plan
