// row.h: published measurements as rows, read from JSON files.
//
// A file is one object: `source`, optionally `note`, extras that are not read, and `rows`, a list
// of objects with the columns below, all of them in every row; null means not applicable or not
// known. The optional object `common` has columns that are the same in all rows (rows/ has files).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/problem.h"

namespace armillary::validate {

/// One published value with the run that it belongs to. Columns that no prediction needs are
/// required in the file but not kept. A number that is not known is empty.
struct PublishedRow {
  std::string id;
  std::string source;
  std::string cluster;  ///< `C6`; empty if not known.
  int gpus = 1;
  std::string model;
  std::optional<int> layers, q_heads, kv_heads, head_dim, hidden, ffn, vocab;
  std::optional<std::int64_t> seq;
  std::int64_t batch = 1;
  plan::Dtype dtype = plan::Dtype::Bf16;
  bool causal = false;
  /// fwd, bwd, fwd_bwd, train_step, prefill, decode: corrected, or as printed; may be empty.
  std::string pass;
  std::string phase;  ///< A part of the pass; empty or `total`: all of it.
  std::string strategy;
  std::string implementation;
  bool balanced = true;
  int tp = 1, dp = 1;
  std::optional<int> ulysses, ring, team;
  std::optional<double> iters_per_s, time_s, derived_time_s, speedup;
  std::optional<double> uncertainty;
  std::string confidence;
  std::string notes;

  /// The published seconds: 1 / iterations per second, or the time reported, or the one derived.
  std::optional<double> seconds() const;
  bool operator==(const PublishedRow&) const = default;
};

/// The names of all columns, each of which a file must have.
const std::vector<std::string>& columns();

/// Rows of one file.
struct RowFile {
  std::string source;
  std::string note;  ///< How to read the source; may be empty.
  std::vector<PublishedRow> rows;
};

/// Parses a file. `origin` names it in errors.
/// @throws InvalidArgument for text that is no such JSON, a column that is missing (names column
/// and row), a value of another type, or a number that is not above zero.
RowFile parse_rows(std::string_view text, const std::string& origin);

/// The files that the program contains, in the order in which they are printed.
std::vector<RowFile> published_rows();

}  // namespace armillary::validate
