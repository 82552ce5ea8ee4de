// link_names.h: names of link ends with placeholders, as LinkRule describes them. Internal to sim.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace armillary::sim {

/// Values of the placeholders {n}, {i} and {j}.
struct PlaceholderValues {
  int n = 0;
  int i = 0;
  int j = 0;
};

/// A name with placeholders, taken apart: `leaf{n/4}`.
class LinkName {
 public:
  /// @throws InvalidArgument for a brace without its partner, or something else than n, i or j with
  /// at most one *NUMBER, one /NUMBER and one %NUMBER, in this order, between them. `where` begins
  /// the message.
  LinkName(std::string_view where, std::string_view text);

  /// The name of a switch: `leaf{n/4}` is `leaf1` for n = 4 to 7.
  std::string at(const PlaceholderValues& place) const;
  bool is_device() const { return device_; }  ///< `device`, `device{i}` or `device{j}`
  /// The device of `place` in its node. Requires is_device().
  int device(const PlaceholderValues& place) const { return second_ ? place.j : place.i; }
  bool uses(char variable) const;
  /// The text of a name that has the value of this one at `factor` times its {i} and {j}.
  std::string with_spacing(int factor) const;

 private:
  /// Literal text, then the value of a variable, *, / and %; no variable at the end.
  struct NamePart {
    std::string text;
    char variable = 0;
    int factor = 1;
    int divisor = 1;
    int modulus = 0;  ///< 0: none.
  };
  std::vector<NamePart> pieces_;
  bool device_ = false;
  bool second_ = false;  ///< `device{j}`
};

}  // namespace armillary::sim
