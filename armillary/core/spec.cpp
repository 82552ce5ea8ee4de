// Readers of `name[:part,part,..]`: first the colon, then the commas, then the '=' of each part.
// Each reader that meets text it does not understand throws an InvalidArgument that quotes it.
#include "armillary/core/spec.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  // Each iteration takes the text up to the next separator; the last one takes the rest.
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<KeyValue> split_key_value(std::string_view part) {
  const std::size_t equals = part.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  return KeyValue{part.substr(0, equals), part.substr(equals + 1)};
}

std::size_t parse_choice(std::string_view where, std::string_view name,
                         std::span<const std::string_view> choices) {
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == name) return i;
  }
  const std::vector<std::string> names(choices.begin(), choices.end());
  const std::string nearest = nearest_name(name, names);  // Empty if none is near.
  fail<InvalidArgument>("{}: {} is not known; {} is required{}", where, quote(name),
                        list_names(names),
                        nearest.empty() ? "" : fmt::format("; nearest is '{}'", nearest));
}

std::int64_t parse_integer(std::string_view where, std::string_view text, IntegerRange range) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  // The whole text must be the number: from_chars alone would stop at the first other character.
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < range.min || number > range.max) {
    fail<InvalidArgument>("{}: {} given; a whole number from {} to {} is required", where,
                          quote(text), range.min, range.max);
  }
  return number;
}

Spec parse_spec(std::string_view text) {
  // Values may have colons of their own, so only the first one ends the name.
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

Arguments::Arguments(const std::string& where, std::optional<std::string_view> text,
                     std::initializer_list<std::string_view> keys)
    : where_(excerpt(where)) {
  if (!text) return;
  // A part is a value or a key with its value. Values keep their order; keys are looked up by name.
  for (const std::string_view part : split(*text, ',')) {
    const std::optional<KeyValue> pair = split_key_value(part);
    if (part.empty() || (pair && pair->value.empty())) {
      fail<InvalidArgument>("{}: {} has an empty part; a value is required after ':', ',' and '='",
                            where_, quote(*text));
    }
    if (!pair) {
      values_.push_back(part);
      continue;
    }
    // A specification without keys gets a text of its own: there is no nearest key to name.
    if (keys.size() == 0) {
      fail<InvalidArgument>("{}: key {} given; no key is allowed", where_, quote(pair->key));
    }
    parse_choice(where_ + " key", pair->key, keys);
    if (find(pair->key)) {
      fail<InvalidArgument>("{}: key {} is given twice; once is required", where_,
                            quote(pair->key));
    }
    keys_.push_back(*pair);
  }
}

// Whether an argument may be left out is decided by the functions below, not by the constructor: it
// depends on the name, and the text must say which argument is missing.
std::string_view Arguments::value(std::string_view what) const {
  if (values_.size() != 1) {
    fail<InvalidArgument>("{}: {} given; exactly one, {}, is required", where_,
                          count_of(values_.size(), "value"), what);
  }
  return values_.front();
}

void Arguments::refuse_values() const {
  if (!values_.empty()) {
    fail<InvalidArgument>("{}: {} given; no value without a key is allowed", where_,
                          quote(values_.front()));
  }
}

std::optional<std::string_view> Arguments::find(std::string_view key) const {
  for (const KeyValue& pair : keys_) {
    if (pair.key == key) return pair.value;
  }
  return std::nullopt;
}

std::int64_t Arguments::integer(std::string_view key, IntegerRange range) const {
  const std::optional<std::string_view> text = find(key);
  if (!text) fail<InvalidArgument>("{}: no {} given; {}=NUMBER is required", where_, key, key);
  return parse_integer(fmt::format("{} {}", where_, key), *text, range);
}

}  // namespace armillary
