#include "armillary/core/spec.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/core/names.h"

namespace armillary {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::size_t parse_choice(std::string_view where, std::string_view name,
                         std::span<const std::string_view> choices) {
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == name) return i;
  }
  const std::vector<std::string> names(choices.begin(), choices.end());
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("{}: '{:.60}' is not known; {} is required{}", where, name,
                        list_names(names),
                        nearest.empty() ? "" : fmt::format("; nearest is '{}'", nearest));
}

std::int64_t parse_integer(std::string_view where, std::string_view text, IntegerRange range) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < range.min || number > range.max) {
    fail<InvalidArgument>("{}: '{:.60}' given; a whole number from {} to {} is required", where,
                          text, range.min, range.max);
  }
  return number;
}

Spec parse_spec(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

Arguments::Arguments(std::string where, std::optional<std::string_view> text,
                     std::initializer_list<std::string_view> keys)
    : where_(std::move(where)) {
  if (!text) return;
  for (const std::string_view part : split(*text, ',')) {
    const std::size_t equals = part.find('=');
    if (part.empty() || equals == part.size() - 1) {
      fail<InvalidArgument>(
          "{}: '{:.60}' has an empty part; a value is required after ':', ',' and '='", where_,
          *text);
    }
    if (equals == std::string_view::npos) {
      values_.push_back(part);
      continue;
    }
    const std::string_view key = part.substr(0, equals);
    if (keys.size() == 0) {
      fail<InvalidArgument>("{}: key '{:.60}' given; no key is allowed", where_, key);
    }
    parse_choice(where_ + " key", key, keys);
    if (find(key))
      fail<InvalidArgument>("{}: key '{}' is given twice; once is required", where_, key);
    keys_.emplace_back(key, part.substr(equals + 1));
  }
}

std::string_view Arguments::value(std::string_view what) const {
  if (values_.size() != 1) {
    fail<InvalidArgument>("{}: {} values given; exactly one, {}, is required", where_,
                          values_.size(), what);
  }
  return values_.front();
}

void Arguments::refuse_values() const {
  if (!values_.empty()) {
    fail<InvalidArgument>("{}: '{:.60}' given; no value without a key is allowed", where_,
                          values_.front());
  }
}

std::optional<std::string_view> Arguments::find(std::string_view key) const {
  for (const auto& [name, text] : keys_) {
    if (name == key) return text;
  }
  return std::nullopt;
}

std::int64_t Arguments::integer(std::string_view key, IntegerRange range) const {
  const std::optional<std::string_view> text = find(key);
  if (!text) fail<InvalidArgument>("{}: no {} given; {}=NUMBER is required", where_, key, key);
  return parse_integer(fmt::format("{} {}", where_, key), *text, range);
}

}  // namespace armillary
