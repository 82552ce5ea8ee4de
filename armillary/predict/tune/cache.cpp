// cache.cpp: files of answers. The first line of a file is its key and the hash of all that
// follows.
#include "armillary/predict/tune/cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/io/content_hash.h"
#include "armillary/predict/tune/search.h"
#include "armillary/version.h"

namespace armillary::tune {
namespace {

std::string file_of(const std::string& folder, const std::string& key) {
  return (std::filesystem::path(folder) / (key + ".json")).string();
}

/// Everything that the answer depends on, as text. A choice that is free has no value.
std::string text_of(const Question& question) {
  const plan::Problem& p = question.problem;
  const std::string layout = question.free.layout ? "any" : to_string(p.layout);
  const std::string transfer_dtype =
      question.free.transfer_dtype ? "any" : std::string(to_string(p.transfer_dtype));
  std::string text =
      fmt::format("armillary {} tune {}\n{} {} {} {} {} {} {} {} {} {}\n{} {}\n", ARMILLARY_VERSION,
                  kTuneVersion, p.world, p.batch, p.heads, p.kv_heads, p.head_dim, p.value_dim,
                  to_string(p.dtype), layout, p.return_lse, transfer_dtype, question.free.placement,
                  question.reserved_bytes);
  for (const plan::Pass pass : question.passes) text += fmt::format("{} ", to_string(pass));
  for (const std::string& name : question.names) text += fmt::format("{} ", name);
  for (const plan::Strategy& strategy : question.against) text += "+" + to_string(strategy);
  text += fmt::format("\n{} {}\n", p.mask.q_len(), p.mask.kv_len());
  for (const plan::Band& band : p.mask.bands()) text += to_string(band) + ";";
  return text + "\n" + to_toml(question.cluster);
}

/// The evaluations in one layout; nothing if none of them was measured. The fastest measured is
/// chosen.
std::optional<Answer> in_layout(Answer answer, const plan::Layout& layout) {
  std::erase_if(answer.evaluations, [&](const Evaluation& evaluation) {
    return evaluation.candidate.layout != layout;
  });
  if (answer.evaluations.empty() || answer.evaluations.front().measured_s == 0) return std::nullopt;
  for (Evaluation& evaluation : answer.evaluations) {
    if (evaluation.outcome == Outcome::Chosen) evaluation.outcome = Outcome::Slower;
  }
  answer.evaluations.front().outcome = Outcome::Chosen;
  return answer;
}

/// A file of the cache and what it says.
struct CachedAnswer {
  Answer answer;
  std::string key;
};

/// The measured answer to a question, or what one with a free layout says about it.
std::optional<CachedAnswer> known_measured(const std::string& folder, const Question& question) {
  if (std::optional<Answer> own = cached(folder, question, Evidence::Measured)) {
    return CachedAnswer{std::move(*own), key_of(question, Evidence::Measured)};
  }
  // The question with a free layout is the one that was just looked up.
  if (question.free.layout) return std::nullopt;
  Question any = question;  // As `armillary tune --measure` asks by itself.
  any.free.layout = true;
  std::optional<Answer> answer = cached(folder, any, Evidence::Measured);
  if (answer) answer = in_layout(std::move(*answer), question.problem.layout);
  if (!answer) return std::nullopt;
  return CachedAnswer{std::move(*answer), key_of(any, Evidence::Measured)};
}

std::optional<CachedAnswer> known_simulated(const std::string& folder, const Question& question) {
  std::optional<Answer> answer = cached(folder, question);
  if (!answer) return std::nullopt;
  return CachedAnswer{std::move(*answer), key_of(question)};
}

}  // namespace

std::optional<std::string> user_cache_folder() {
  const auto lookup = [](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  if (std::string own = lookup("ARMILLARY_CACHE"); !own.empty()) return own;
  if (const std::string xdg = lookup("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/armillary";
  if (const std::string home = lookup("HOME"); !home.empty()) return home + "/.cache/armillary";
  return std::nullopt;
}

std::string key_of(const Question& question, Evidence evidence) {
  const char* const kind = evidence == Evidence::Measured ? "\nmeasured" : "";
  return io::content_hash(text_of(question) + kind);
}

std::optional<Answer> cached(const std::string& folder, const Question& question,
                             Evidence evidence) {
  const std::string key = key_of(question, evidence);
  try {
    const std::string text = read_input(
        {.where = "tune", .required = "an answer", .most_bytes = kMostConfigurationBytes},
        file_of(folder, key));
    const std::size_t head = text.find('\n');
    if (head == std::string::npos) return std::nullopt;
    const std::string body = text.substr(head + 1);
    if (text.substr(0, head) != key + " " + io::content_hash(body)) return std::nullopt;
    return parse_answer(body);
  } catch (const IoError&) {  // No answer yet, or something else in its place.
    return std::nullopt;
  } catch (const InvalidArgument&) {  // of a strategy that this program does not have
    return std::nullopt;
  }
}

bool store(const std::string& folder, const Question& question, const Answer& answer,
           Evidence evidence) {
  const std::string key = key_of(question, evidence);
  const std::string body = to_json(answer);
  const std::string path = file_of(folder, key);
  const std::string unfinished = fmt::format("{}.{}", path, getpid());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  // The pid in the name: two processes that tune the same question write two files.
  std::ofstream file(unfinished, std::ios::binary);
  file << key << ' ' << io::content_hash(body) << '\n' << body;
  file.close();
  if (file) std::filesystem::rename(unfinished, path, error);
  if (file && !error) return true;
  std::filesystem::remove(unfinished, error);
  return false;
}

Tuned tune(const Question& question) {
  const std::optional<std::string> cache = user_cache_folder();
  const std::string folder = cache ? *cache + "/tuned" : "";
  if (cache) {
    std::optional<CachedAnswer> known = known_measured(folder, question);
    if (!known) known = known_simulated(folder, question);
    if (known) {
      return {.answer = std::move(known->answer),
              .from_cache = true,
              .file = file_of(folder, known->key)};
    }
  }
  Tuned tuned{.answer = search(question)};
  if (cache) store(folder, question, tuned.answer);
  return tuned;
}

}  // namespace armillary::tune
