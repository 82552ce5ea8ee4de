// cache.h: answers kept in files, so that a question is searched once.
//
//   question --key--> FOLDER/KEY.json     one file for each question
//
// The key covers the problem, the cluster, all that is free, and the versions of the library and of
// the search: another version does not see old answers. A file holds its key and a hash of its
// answer. One that is damaged, cut short, or of another question is not used and is written again.
// Files are made under another name and renamed, so processes that tune at once never see half of
// one.
//
// An answer is simulated, or its best few candidates were also measured on ranks
// (`armillary tune --measure`). Both kinds have files of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "armillary/predict/tune/answer.h"

namespace armillary::tune {

/// The version of answers. It is raised when the search or a cost would choose differently.
inline constexpr int kTuneVersion = 4;

/// The user's folder: `$ARMILLARY_CACHE`, else `$XDG_CACHE_HOME/armillary`, else
/// `$HOME/.cache/armillary`; nothing if none of them is set. Its folder `tuned` has the answers.
std::optional<std::string> user_cache_folder();

/// Grounds of an answer.
enum class Evidence : std::uint8_t { Simulated, Measured };

/// 32 hexadecimal digits that stand for a question. Cost: O(bands of the mask).
std::string key_of(const Question& question, Evidence evidence = Evidence::Simulated);

/// The answer of a file; nothing if there is none that can be used.
std::optional<Answer> cached(const std::string& folder, const Question& question,
                             Evidence evidence = Evidence::Simulated);
/// Writes the file. A folder that cannot be written is no error: the next search is as long as this
/// one. True if it was written.
bool store(const std::string& folder, const Question& question, const Answer& answer,
           Evidence evidence = Evidence::Simulated);

/// An answer and where it is from.
struct Tuned {
  Answer answer;
  bool from_cache = false;
  std::string file = {};  ///< The file of the cache that it was read from; else empty.
};
/// The answer of the user's cache, or of a search that is then kept there. A measured answer goes
/// first; one to the same question with a free layout counts if a candidate in the layout asked for
/// was measured, and is cut down to that layout.
/// @throws InvalidArgument as search().
Tuned tune(const Question& question);

}  // namespace armillary::tune
