// table.h: predictions as Markdown.
#pragma once

#include <string>
#include <vector>

#include "armillary/validate/predict.h"

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
/// one file with equal cluster, shape, tp degree, length, batch, mask, pass and dtype.
std::string table(const std::vector<Row>& rows, const std::vector<Prediction>& predictions);

/// A line with the errors of fitted and of predicted rows.
std::string summary(const std::vector<Row>& rows, const std::vector<Prediction>& predictions);

}  // namespace armillary::validate
