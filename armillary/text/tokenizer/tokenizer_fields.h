// tokenizer_fields.h: the keys of a JSON object, each asked for once: a key that nobody asks for is
// refused, since it would not be obeyed.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

namespace armillary::tokenizer {

/// An object of tokenizer.json. `where` names it in errors: "pre_tokenizer Split".
class TokenizerFields {
 public:
  /// @throws InvalidArgument unless it is an object.
  TokenizerFields(std::string where, const nlohmann::json& object);

  const std::string& where() const { return where_; }

  /// The value of a key, null if it has none.
  const nlohmann::json& get(const std::string& key);
  /// The same of a type that is required. @throws InvalidArgument for another type, or no value.
  std::string text(const std::string& key);
  std::int64_t integer(const std::string& key);
  bool boolean(const std::string& key, bool otherwise);
  const nlohmann::json& list(const std::string& key);
  /// @throws InvalidArgument unless the key has this value, no value, or an empty one of its type.
  void require_nothing(const std::string& key);
  /// Keys that change nothing here.
  void ignore(std::initializer_list<std::string_view> keys);
  /// @throws InvalidArgument for a key with a value that was not asked for.
  void finish() const;

  [[noreturn]] void refuse(std::string_view key, std::string_view requirement) const;

 private:
  std::string where_;
  const nlohmann::json& object_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace armillary::tokenizer
