// turns_output.h: what the verb `bench` prints.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/lab/bench/contender.h"
#include "armillary/lab/bench/interleaved_timing.h"

namespace armillary::cli {

/// Commands and reasons come from others and may not be valid UTF-8.
void print_json(const nlohmann::ordered_json& line);

/// A result in words: `bench kernel, isa avx2, dtype fp32, ..`, numbers to four digits.
std::string as_text(const nlohmann::ordered_json& line);

/// Prints the facts and the names of the sides, then runs a side for every line of `in` that names
/// one. So another program can let the sides of several programs take turns.
void serve(const nlohmann::ordered_json& facts, const std::vector<bench::Side>& sides,
           std::istream& in);

/// Prints all sides of the turns, those of other programs too: one object, or one line a side.
void print_turns(const bench::TurnSummary& turns, const bench::Contenders& others, bool json);

/// Says which turns were left out, unless the output is JSON, which has them in its results.
void print_left_out(const bench::TurnSummary& turns, bool json);

}  // namespace armillary::cli
