// fields.cpp: fields in a list, searched by name: data have two or three of them, and their order
// is that in which they were given.
#include "armillary/model/fields.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::model {

std::vector<Fields::Field>::const_iterator Fields::find(std::string_view name) const {
  return std::ranges::find(fields_, name, &Field::first);
}

const at::Tensor& Fields::at(std::string_view name) const {
  const auto result = find(name);
  if (result != fields_.end()) return result->second;
  fail<InvalidArgument>("data: field {} is read; one of {} is required", quote(name),
                        fields_.empty() ? "none" : list_names(names()));
}

void Fields::set(const std::string& name, at::Tensor values) {
  const auto entry = std::ranges::find(fields_, name, &Field::first);
  if (entry == fields_.end()) {
    fields_.emplace_back(name, std::move(values));
  } else {
    entry->second = std::move(values);
  }
}

std::vector<std::string> Fields::names() const {
  std::vector<std::string> names;
  names.reserve(fields_.size());
  for (const auto& [name, values] : fields_) names.push_back(name);
  return names;
}

Fields rows_of(const Fields& sequence, const at::Tensor& positions_L) {
  Fields rows;
  for (const auto& [name, values] : sequence) {
    rows.set(name, values.index_select(0, positions_L).unsqueeze(0));
  }
  return rows;
}

std::int64_t targets_of(const Fields& tokens) {
  if (tokens.contains(kLabels)) {
    return tokens.at(kLabels).ne(kIgnoredLabel).sum().item().toLong();
  }
  // A model without labels predicts at every position, so any field tells their number.
  return tokens.begin() == tokens.end() ? 0 : tokens.begin()->second.size(0);
}

}  // namespace armillary::model
