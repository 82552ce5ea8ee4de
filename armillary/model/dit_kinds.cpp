#include "armillary/model/dit_kinds.h"

#include <algorithm>
#include <cstddef>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::model {
namespace {

/// The place of a name among those of a key.
std::ptrdiff_t place_of_name(const char* key, const std::string& name,
                             const std::vector<std::string>& names) {
  const auto entry = std::ranges::find(names, name);
  if (entry == names.end()) {
    const std::string nearest = nearest_name(name, names);
    fail<InvalidArgument>("recipe: model.{} {} is not known; {} is required{}", key, quote(name),
                          list_names(names), nearest.empty() ? "" : "; nearest: " + nearest);
  }
  return entry - names.begin();
}

}  // namespace

const std::vector<std::string>& modulation_names() {
  static const std::vector<std::string> names{"zero", "single"};
  return names;
}

ModulationKind modulation_kind(const std::string& name) {
  return static_cast<ModulationKind>(place_of_name("modulation", name, modulation_names()));
}

const std::vector<std::string>& words_names() {
  static const std::vector<std::string> names{"joint", "cross"};
  return names;
}

WordsKind words_kind(const std::string& name) {
  return static_cast<WordsKind>(place_of_name("words", name, words_names()));
}

}  // namespace armillary::model
