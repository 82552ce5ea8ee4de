#include "armillary/text/tokenizer/tokenizer_fields.h"

#include <cstdint>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::tokenizer {
namespace {

const nlohmann::json kNoValue;

/// A short value as it stands in the file, the kind of a long one.
std::string value_text(const nlohmann::json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return excerpt(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

TokenizerFields::TokenizerFields(std::string where, const nlohmann::json& object)
    : where_(std::move(where)), object_(object) {
  if (!object.is_object()) {
    fail<InvalidArgument>("tokenizer: {} is {}; an object is required", where_, value_text(object));
  }
}

const nlohmann::json& TokenizerFields::get(const std::string& key) {
  known_.insert(key);
  const auto place = object_.find(key);
  return place == object_.end() ? kNoValue : *place;
}

std::string TokenizerFields::text(const std::string& key) {
  const nlohmann::json& value = get(key);
  if (!value.is_string()) refuse(key, "a string");
  return value.get<std::string>();
}

std::int64_t TokenizerFields::integer(const std::string& key) {
  const nlohmann::json& value = get(key);
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (!fits) refuse(key, "an integer");
  return value.get<std::int64_t>();
}

bool TokenizerFields::boolean(const std::string& key, bool otherwise) {
  const nlohmann::json& value = get(key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) refuse(key, "true or false");
  return value.get<bool>();
}

const nlohmann::json& TokenizerFields::list(const std::string& key) {
  const nlohmann::json& value = get(key);
  if (!value.is_array()) refuse(key, "a list");
  return value;
}

void TokenizerFields::require_nothing(const std::string& key) {
  const nlohmann::json& value = get(key);
  const bool is_nothing = value.is_null() || value == "" || value == 0 || value == false;
  if (!is_nothing) refuse(key, "null, as it is not implemented,");
}

void TokenizerFields::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

void TokenizerFields::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || known_.contains(key)) continue;
    fail<InvalidArgument>("tokenizer: {} has key {}, which is not implemented; none is required",
                          where_, quote(key));
  }
}

void TokenizerFields::refuse(std::string_view key, std::string_view requirement) const {
  const auto place = object_.find(std::string(key));
  fail<InvalidArgument>("tokenizer: {} of {} is {}; {} is required", key, where_,
                        place == object_.end() ? "missing" : value_text(*place), requirement);
}

}  // namespace armillary::tokenizer
