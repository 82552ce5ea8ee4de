// Rows from JSON, read strictly: every column must be there, in the row or in what all rows share,
// and have a value that can be used.
#include "armillary/lab/validate/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/lab/validate/files.h"

namespace armillary::validate {
namespace {

using Json = nlohmann::ordered_json;

/// One row of a file, with the columns that all rows share.
class RowReader {
 public:
  RowReader(const Json& row, const Json& common, std::string where)
      : row_(row), common_(common), where_(std::move(where)) {
    for (const std::string& column : columns()) {
      if (!row_.contains(column) && !common_.contains(column)) {
        fail<InvalidArgument>("{}: column {} is missing; every row needs it, null if not known",
                              where_, column);
      }
    }
    // Later messages name the row by its id as well.
    const std::string id = text("id");
    if (!id.empty()) where_ += " (" + excerpt(id) + ")";
  }

  std::string text(const char* column) const {
    const Json& value = cell(column);
    if (value.is_null()) return "";
    if (!value.is_string()) refuse(column, "text or null");
    return printable(value.get<std::string>());
  }

  std::optional<double> number(const char* column) const {
    const Json& value = cell(column);
    if (value.is_null()) return std::nullopt;
    constexpr double kLeast = 1e-12;
    constexpr double kMost = 1e12;
    if (!value.is_number() || !(value.get<double>() >= kLeast && value.get<double>() <= kMost)) {
      refuse(column, "a number from 1e-12 to 1e12 or null");
    }
    return value.get<double>();
  }

  /// A pass, or nothing if the column is null.
  std::string pass(const char* column) const {
    std::string name = text(column);
    constexpr std::array<std::string_view, 7> kPasses{"",           "fwd",     "bwd",   "fwd_bwd",
                                                      "train_step", "prefill", "decode"};
    if (std::ranges::find(kPasses, name) == kPasses.end()) {
      refuse(column, "fwd, bwd, fwd_bwd, train_step, prefill, decode or null");
    }
    return name;
  }

  template <class Int>
  std::optional<Int> whole(const char* column) const {
    const Json& value = cell(column);
    if (value.is_null()) return std::nullopt;
    constexpr std::int64_t kMost = sizeof(Int) == 8 ? std::int64_t{1} << 50 : 1 << 30;
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
        value.get<std::int64_t>() > kMost) {
      refuse(column, "a whole number above 0 or null");
    }
    return static_cast<Int>(value.get<std::int64_t>());
  }

  bool flag(const char* column, bool otherwise) const {
    const Json& value = cell(column);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) refuse(column, "true, false or null");
    return value.get<bool>();
  }

  [[noreturn]] void refuse(const char* column, std::string_view required) const {
    fail<InvalidArgument>("{}: {} = {}; {} is required", where_, column,
                          excerpt(json_text(cell(column))), required);
  }

 private:
  const Json& cell(const char* column) const {
    return row_.contains(column) ? row_.at(column) : common_.at(column);
  }

  const Json& row_;
  const Json& common_;
  std::string where_;
};

bool causal(const RowReader& reader) {
  const std::string mask = reader.text("mask");
  if (mask != "causal" && mask != "full") reader.refuse("mask", "causal or full");
  return mask == "causal";
}

plan::Dtype dtype(const RowReader& reader) {
  const std::string name = reader.text("dtype");
  if (name.empty()) return plan::Dtype::Bf16;
  try {
    return plan::parse_dtype(name);
  } catch (const InvalidArgument&) {
    reader.refuse("dtype", "fp64, fp32, bf16, fp16 or null");
  }
}

/// A text of the file itself, which is not empty.
std::string text_of(const Json& file, const char* key, const std::string& origin) {
  if (!file.contains(key)) {
    fail<InvalidArgument>("{}: {} is missing; text is required", excerpt(origin), key);
  }
  const Json& value = file[key];
  if (!value.is_string() || value.get<std::string>().empty()) {
    fail<InvalidArgument>("{}: {} = {}; text is required", excerpt(origin), key,
                          excerpt(json_text(value)));
  }
  return printable(value.get<std::string>());
}

PublishedRow read_row(const RowReader& in) {
  // Names, then the shape of the model, then the run, then what was measured.
  PublishedRow row;
  row.id = in.text("id");
  if (row.id.empty() || row.id.size() > kMostQuotedBytes) {
    in.refuse("id", fmt::format("a name of 1 to {} bytes", kMostQuotedBytes));
  }
  row.source = in.text("source");
  row.cluster = in.text("cluster_id");
  row.gpus = in.whole<int>("gpus").value_or(1);
  row.model = in.text("model_id");
  row.layers = in.whole<int>("layers");
  row.q_heads = in.whole<int>("q_heads");
  row.kv_heads = in.whole<int>("kv_heads");
  row.head_dim = in.whole<int>("head_dim");
  row.hidden = in.whole<int>("hidden_dim");
  row.ffn = in.whole<int>("ffn_dim");
  row.vocab = in.whole<int>("vocab_size");
  row.seq = in.whole<std::int64_t>("seq_len_tokens");
  row.batch = in.whole<std::int64_t>("global_batch").value_or(1);
  row.dtype = dtype(in);
  row.causal = causal(in);
  const std::string printed = in.pass("pass");
  const std::string corrected = in.pass("corrected_pass");
  row.pass = corrected.empty() ? printed : corrected;
  row.phase = in.text("phase");
  row.strategy = in.text("strategy");
  row.implementation = in.text("implementation");
  row.balanced = in.flag("load_balanced", true);
  row.tp = in.whole<int>("tp_degree").value_or(1);
  row.dp = in.whole<int>("dp_degree").value_or(1);
  row.ulysses = in.whole<int>("ulysses_degree");
  row.ring = in.whole<int>("ring_degree");
  row.team = in.whole<int>("team_size_c");
  row.iters_per_s = in.number("reported_iters_per_s");
  row.time_s = in.number("reported_time_s");
  row.derived_time_s = in.number("derived_time_s");
  row.speedup = in.number("reported_speedup_vs_ring");
  row.uncertainty = in.number("relative_uncertainty");
  row.confidence = in.text("confidence");
  row.notes = in.text("notes");
  return row;
}

}  // namespace

// Iterations per second have more digits in most tables than the times derived from them.
std::optional<double> PublishedRow::seconds() const {
  if (iters_per_s) return 1 / *iters_per_s;
  return time_s ? time_s : derived_time_s;
}

const std::vector<std::string>& columns() {
  static const std::vector<std::string> names{"id",
                                              "source",
                                              "cluster_id",
                                              "gpus",
                                              "model_id",
                                              "layers",
                                              "q_heads",
                                              "kv_heads",
                                              "head_dim",
                                              "hidden_dim",
                                              "ffn_dim",
                                              "vocab_size",
                                              "seq_len_tokens",
                                              "tokens_per_gpu",
                                              "global_batch",
                                              "dtype",
                                              "mask",
                                              "pass",
                                              "corrected_pass",
                                              "phase",
                                              "strategy",
                                              "implementation",
                                              "load_balanced",
                                              "tp_degree",
                                              "dp_degree",
                                              "ulysses_degree",
                                              "ring_degree",
                                              "team_size_c",
                                              "reported_iters_per_s",
                                              "reported_time_s",
                                              "reported_tflops_per_gpu",
                                              "reported_mfu",
                                              "reported_speedup_vs_ring",
                                              "reported_efficiency_vs_single_gpu",
                                              "derived_time_s",
                                              "derived_tokens_per_s_per_gpu",
                                              "derived_causal_tflops_per_gpu",
                                              "derived_causal_mfu",
                                              "value_kind",
                                              "relative_uncertainty",
                                              "confidence",
                                              "notes"};
  return names;
}

RowFile parse_rows(std::string_view text, const std::string& origin) {
  const JsonRead read = read_json_text(text);
  const Json& file = read.value;
  if (read.fault || !file.is_object()) {
    fail<InvalidArgument>("{}: the text {}; an object with a list `rows` is required",
                          excerpt(origin),
                          read.fault ? to_string(*read.fault) : "is no JSON object");
  }
  if (!file.contains("rows") || !file["rows"].is_array()) {
    fail<InvalidArgument>("{}: no list `rows`; one is required", excerpt(origin));
  }
  const Json common = file.contains("common") ? file["common"] : Json::object();
  if (!common.is_object())
    fail<InvalidArgument>("{}: common is no object; one is required", excerpt(origin));
  RowFile result;
  result.source = text_of(file, "source", origin);
  if (file.contains("note")) result.note = text_of(file, "note", origin);
  int number = 0;
  for (const Json& row : file["rows"]) {
    const std::string where = fmt::format("{}: row {}", excerpt(origin), number++);
    if (!row.is_object()) fail<InvalidArgument>("{}: no object; one is required", where);
    result.rows.push_back(read_row(RowReader(row, common, where)));
  }
  return result;
}

std::vector<RowFile> published_rows() {
  std::vector<RowFile> files;
  for (const File& file : row_files()) {
    files.push_back(parse_rows(file.text, std::string(file.name) + ".json"));
  }
  return files;
}

}  // namespace armillary::validate
