// table.h: predictions and statements as Markdown and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/lab/validate/checks.h"
#include "armillary/lab/validate/predict.h"

namespace armillary::validate {

/// Mean and largest |error| of some rows, with their number.
struct Errors {
  int rows = 0;
  double mean = 0;
  double largest = 0;
  void add(double error);
  /// `12 rows, |error| mean 3.1 %, largest 8.0 %`; `none` without rows.
  std::string text() const;
};

/// One row a line: predicted, published, error, place in the order of its group (1 is the fastest)
/// as predicted and as published, and whether a constant was fitted on it. A group has the rows of
/// one file with equal cluster, shape, tp degree, length, batch, mask, pass, part of it and dtype.
std::string table(const std::vector<PublishedRow>& rows,
                  const std::vector<Prediction>& predictions);

/// A line with the errors of fitted and of predicted rows.
std::string summary(const std::vector<PublishedRow>& rows,
                    const std::vector<Prediction>& predictions);

/// The same as objects: of each row `id`, `unit` (s, or x for a gain over ring), `predicted`,
/// `published`, `error`, `place_predicted`, `place_published`, `fitted`, `missing`, `refused`, null
/// if there is none; and of the errors `rows`, `mean`, `largest`.
nlohmann::ordered_json to_json(const RowFile& file, const std::vector<Prediction>& predictions);

/// Checks as an array: `statement`, `found`, `published`, `value`, `least`, `most`, `holds`, and
/// `cause` of one that is known to be outside, else null.
nlohmann::ordered_json to_json(const std::vector<Check>& checks);

}  // namespace armillary::validate
