// Rows with their predictions, for readers and for programs. Places in an order are counted within
// a group of rows that differ in strategy alone.
#include "armillary/lab/validate/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "armillary/core/count_text.h"

namespace armillary::validate {
namespace {

constexpr double kMilli = 1e-3;

/// Rows whose order is compared.
std::string group(const PublishedRow& row) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", row.cluster, row.gpus, row.tp,
                     row.q_heads.value_or(0), row.kv_heads.value_or(0), row.head_dim.value_or(0),
                     row.seq.value_or(0), row.batch, row.causal, row.pass, row.phase,
                     to_string(row.dtype));
}

/// The run of a row: without its times and texts that people write in their own words.
PublishedRow run_of(PublishedRow row) {
  row.time_s = row.iters_per_s = row.derived_time_s = row.speedup = row.uncertainty = std::nullopt;
  for (std::string* text :
       {&row.source, &row.model, &row.implementation, &row.confidence, &row.notes}) {
    text->clear();
  }
  return row;
}

/// Whether two rows are one measurement; their times may be rounded differently.
bool is_same(const PublishedRow& a, const PublishedRow& b) {
  constexpr double kRounded = 0.01;
  if (!(run_of(a) == run_of(b))) return false;
  if (!a.seconds() || !b.seconds()) return a.seconds() == b.seconds();
  return std::abs(*a.seconds() / *b.seconds() - 1) <= kRounded;
}

/// Whether a constant was fitted on the row: a row of the program, not another with its id.
bool is_fitted(const PublishedRow& row) {
  if (row.cluster.empty() || !constants(row.cluster).is_fitted_on(row.id)) return false;
  static const std::vector<RowFile> files = published_rows();
  return std::ranges::any_of(files, [&](const RowFile& file) {
    return std::ranges::any_of(file.rows, [&](const PublishedRow& known) {
      return known.id == row.id && is_same(known, row);
    });
  });
}

/// The place of a value among others: 1 + the number that are smaller.
template <class Value>
int place(const Value& value, const std::vector<Value>& all) {
  return 1 + static_cast<int>(
                 std::count_if(all.begin(), all.end(), [&](const Value& v) { return v < value; }));
}

/// Place of a row in its group, as predicted and as published.
struct Places {
  int predicted = 0;
  int published = 0;
};

/// Nothing for rows that are alone, or have no error.
std::vector<std::optional<Places>> places(const std::vector<PublishedRow>& rows,
                                          const std::vector<Prediction>& predictions) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> groups;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!predictions[r].error()) continue;
    auto& [predicted, published] = groups[group(rows[r])];
    predicted.push_back(*predictions[r].predicted);
    published.push_back(*predictions[r].published);
  }
  std::vector<std::optional<Places>> result(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!predictions[r].error()) continue;
    const auto& [predicted, published] = groups[group(rows[r])];
    if (predicted.size() < 2) continue;
    result[r] = Places{.predicted = place(*predictions[r].predicted, predicted),
                       .published = place(*predictions[r].published, published)};
  }
  return result;
}

std::string value(const Prediction& prediction, const std::optional<double>& number) {
  if (!number) return "";
  if (prediction.is_speedup) return fmt::format("{:.2f} x", *number);
  return *number < 1 ? fmt::format("{:.4g} ms", *number / kMilli)
                     : fmt::format("{:.4g} s", *number);
}

}  // namespace

void Errors::add(double error) {
  mean = (mean * rows + std::abs(error)) / (rows + 1);
  largest = std::max(largest, std::abs(error));
  ++rows;
}

std::string Errors::text() const {
  if (rows == 0) return "none";
  return fmt::format("{}, |error| mean {:.1f} %, largest {:.1f} %", count_of(rows, "row"),
                     100 * mean, 100 * largest);
}

std::string table(const std::vector<PublishedRow>& rows,
                  const std::vector<Prediction>& predictions) {
  const std::vector<std::optional<Places>> order = places(rows, predictions);
  std::string text =
      "| row | predicted | published | error | order | |\n|---|---:|---:|---:|---|---|\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Prediction& prediction = predictions[r];
    const std::optional<double> error = prediction.error();
    text += fmt::format(
        "| {} | {} | {} | {} | {} | {} |\n", rows[r].id, value(prediction, prediction.predicted),
        value(prediction, prediction.published),
        error ? fmt::format("{:+.1f} %", 100 * *error) : "",
        order[r] ? fmt::format("{} / {}", order[r]->predicted, order[r]->published) : "",
        !prediction.refused.empty()   ? "refused"
        : !prediction.missing.empty() ? prediction.missing
        : is_fitted(rows[r])          ? "fitted"
                                      : "");
  }
  return text;
}

namespace {

/// Errors of fitted rows and of predicted ones.
std::pair<Errors, Errors> errors(const std::vector<PublishedRow>& rows,
                                 const std::vector<Prediction>& predictions) {
  std::pair<Errors, Errors> result;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::optional<double> error = predictions[r].error();
    if (error) (is_fitted(rows[r]) ? result.first : result.second).add(*error);
  }
  return result;
}

using Json = nlohmann::ordered_json;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}
Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json to_json(const Errors& errors) {
  const bool none = errors.rows == 0;
  return {{"rows", errors.rows},
          {"mean", none ? Json() : Json(errors.mean)},
          {"largest", none ? Json() : Json(errors.largest)}};
}

}  // namespace

std::string summary(const std::vector<PublishedRow>& rows,
                    const std::vector<Prediction>& predictions) {
  const auto [fitted, predicted] = errors(rows, predictions);
  return fmt::format("Fitted: {}. Predicted: {}.\n", fitted.text(), predicted.text());
}

Json to_json(const RowFile& file, const std::vector<Prediction>& predictions) {
  const std::vector<std::optional<Places>> order = places(file.rows, predictions);
  Json rows = Json::array();
  for (std::size_t r = 0; r < file.rows.size(); ++r) {
    const Prediction& one = predictions[r];
    rows.push_back({{"id", file.rows[r].id},
                    {"unit", one.is_speedup ? "x" : "s"},
                    {"predicted", or_null(one.predicted)},
                    {"published", or_null(one.published)},
                    {"error", or_null(one.error())},
                    {"place_predicted", order[r] ? Json(order[r]->predicted) : Json()},
                    {"place_published", order[r] ? Json(order[r]->published) : Json()},
                    {"fitted", is_fitted(file.rows[r])},
                    {"missing", or_null(one.missing)},
                    {"refused", or_null(one.refused)}});
  }
  const auto [fitted, predicted] = errors(file.rows, predictions);
  return {{"source", file.source},
          {"rows", std::move(rows)},
          {"fitted", to_json(fitted)},
          {"predicted", to_json(predicted)}};
}

Json to_json(const std::vector<Check>& checks) {
  Json all = Json::array();
  for (const Check& check : checks) {
    all.push_back({{"statement", check.statement},
                   {"found", check.value_text},
                   {"published", check.published},
                   {"value", check.value},
                   {"least", check.least},
                   {"most", check.most},
                   {"holds", check.holds()},
                   {"cause", or_null(check.cause)},
                   {"known", check.cause.empty() ? Json() : Json(check.known)},
                   {"drifted", check.drifted()}});
  }
  return all;
}

}  // namespace armillary::validate
