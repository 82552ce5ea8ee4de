// toml_table.h: one table of a TOML text, read strictly: a table knows which of its keys were asked
// for, and refuses the others at its end.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/predict/sim/cluster.h"

namespace armillary::sim {

/// Units of the keys whose names end in GiB, GBps, TFLOPs and us.
inline constexpr double kGiB = 1 << 30;
inline constexpr double kGiga = 1e9;
inline constexpr double kTera = 1e12;
inline constexpr double kMicro = 1e-6;

/// Values that a number may have.
enum class Sign : std::uint8_t { Positive, NotNegative };

/// A table of a document. Every reader notes its key as asked for, and throws InvalidArgument that
/// begins with where() if the value is of another type or out of range, or if a key is missing that
/// is required.
class TomlTable {
 public:
  /// `path` is that of the table in its document, empty for the document itself. `table` must
  /// outlive the object.
  TomlTable(const toml::table& table, std::string origin, std::string path);

  /// Beginning of every message: `cluster: my.toml:7: `, the line of the node or of the table.
  std::string where(const toml::node* node = nullptr) const;
  /// A key with the path of the table: `device.kernel`.
  std::string path(std::string_view key) const;

  /// The value of a key, or nothing. Every key that is allowed is asked for.
  const toml::node* find(std::string_view key);
  /// The value of a key that is required.
  const toml::node& get(std::string_view key);

  /// A number from 1e-12 to 1e24, or 0 if the sign allows it; nothing without the key.
  std::optional<double> number(std::string_view key, Sign sign);
  /// A number above 0.
  double required(std::string_view key);
  /// A whole number from 1 to plan::kMaxWorld, required.
  int count(std::string_view key);
  std::string string(std::string_view key);
  std::string string_or(std::string_view key, std::string otherwise);
  /// Index of the text among the choices, required.
  std::size_t choice(std::string_view key, std::span<const std::string_view> choices);
  bool flag(std::string_view key, bool otherwise);
  /// Points [[size, rate], ..] of ascending sizes, rates in `unit`; none without the key.
  std::vector<RatePoint> points(std::string_view key, double unit);
  /// Numbers above 0; none without the key.
  std::vector<double> numbers(std::string_view key);
  /// The table of a key, required.
  TomlTable table(std::string_view key);
  /// The tables [[key]]; none without the key.
  std::vector<TomlTable> tables(std::string_view key);

  /// Refuses the keys that were not asked for. @throws InvalidArgument
  void refuse_others() const;

 private:
  const toml::array& array(const toml::node& node, const std::string& path) const;
  double to_number(const toml::node& node, const std::string& path, Sign sign) const;
  std::string to_string(const toml::node& node, const std::string& path) const;

  const toml::table& table_;
  std::string origin_;
  std::string path_;
  std::vector<std::string> asked_;
};

/// The document of a TOML text. @throws InvalidArgument that begins with `where`, the word for what
/// is read, and names the origin, the line and the column.
toml::table parse_toml(std::string_view where, std::string_view text, const std::string& origin);

}  // namespace armillary::sim
