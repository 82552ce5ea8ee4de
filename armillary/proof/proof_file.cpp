// Recorded proofs: JSON whose last field is the digest of all other fields.
//
// A file is read in the order in which errors help most: is it JSON, is every field there, does
// each have the value that this problem and version require, was the text edited, are the digests
// well formed. Every refusal says to record the proof again.
#include "armillary/proof/proof_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/io/run_files.h"
#include "armillary/plan/json.h"

namespace armillary::proof {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kFormatVersion = 1;

/// The contents of a file without their digest. The order of the fields is that of the file.
Json contents(const plan::Problem& problem, const plan::Strategy& strategy, Json programs) {
  return {{"format_version", kFormatVersion},
          {"version", version()},
          {"proof_version", kProofVersion},
          {"strategy", to_string(strategy)},
          {"problem", read_json_text(plan::to_json(problem)).value},
          {"programs", std::move(programs)}};
}

/// The field `programs`: for each pass, the digests of all ranks.
Json to_json(const std::array<PassProof, kPasses.size()>& passes) {
  Json programs = Json::object();
  for (std::size_t p = 0; p < kPasses.size(); ++p) {
    Json& list = programs[std::string(to_string(kPasses[p]))] = Json::array();
    for (const Digest& digest : passes[p].programs) list.push_back(to_string(digest));
  }
  return programs;
}

/// Whether anything is at `path`, also a link to nothing: then reading it fails with a text of its
/// own. @throws IoError if `folder` is not a folder.
bool is_there(const std::string& folder, const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail<IoError>("proof: {} is no folder; one of verify --save-proof, or none, is required",
                  excerpt(folder));
  }
  const fs::file_status status = fs::symlink_status(path, error);
  return fs::exists(status);
}

/// @throws InvalidArgument that says what is wrong with the file.
[[noreturn]] void refuse(const std::string& path, const std::string& content) {
  fail<InvalidArgument>("proof: {} {}; run armillary verify --save-proof again", excerpt(path),
                        content);
}

/// Refuses a field whose value is not the required one. For an object, the text names the first key
/// that differs, such as `problem.world`.
void require(const std::string& path, const std::string& key, const Json& content,
             const Json& required) {
  if (content == required) return;
  if (content.is_object() && required.is_object()) {
    for (const auto& [inner, value] : required.items()) {
      require(path, fmt::format("{}.{}", key, inner), content.value(inner, Json()), value);
    }
  }
  const auto shown = [](const Json& json) { return shorten(json_text(json), 80); };
  refuse(path, fmt::format("is of {} {}; {} is required", key, shown(content), shown(required)));
}

/// Reads 32 hexadecimal digits. @throws InvalidArgument for anything else.
Digest parse_digest(const std::string& path, const Json& json) {
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  Digest digest;
  if (text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos) {
    digest = {.low = std::stoull(text.substr(16), nullptr, 16),
              .high = std::stoull(text.substr(0, 16), nullptr, 16)};
  }
  if (to_string(digest) != text) {
    refuse(path, "holds " + shorten(json_text(json), 80) + " where a digest should be");
  }
  return digest;
}

}  // namespace

std::string proof_path(const std::string& folder, const Digest& key) {
  return (fs::path(folder) / (to_string(key) + ".proof.json")).string();
}

std::string save_proof(const std::string& folder, const plan::Problem& problem,
                       const plan::Strategy& strategy, const ProgramSource& source) {
  const plan::Planner planner(problem, strategy);
  std::array<PassProof, kPasses.size()> passes;
  for (std::size_t p = 0; p < kPasses.size(); ++p) {
    passes[p] = prove(planner, kPasses[p], source);
  }
  // Nothing is written for a plan that is wrong.
  const std::string wrong = first_wrong(planner, passes, source);
  if (!wrong.empty()) fail<PlanError>("proof: {}; a plan that is exact is required", wrong);
  Json json = contents(problem, strategy, to_json(passes));
  const std::string digest = to_string(digest_of(json_text(json)));
  json["digest"] = digest;
  std::string path = proof_path(folder, digest_of(problem, strategy));
  io::write_file(path, json_text(json) + "\n");
  return path;
}

std::optional<Programs> load_proof(const std::string& folder, const plan::Problem& problem,
                                   const plan::Strategy& strategy) {
  const std::string path = proof_path(folder, digest_of(problem, strategy));
  if (!is_there(folder, path)) return std::nullopt;
  const JsonRead read = read_json_text(
      read_input({.where = "proof", .required = "a file of verify --save-proof"}, path));
  if (read.fault) refuse(path, "is cut off, or " + to_string(*read.fault));
  Json json = read.value;
  if (!json.is_object()) refuse(path, "is cut off, or is no JSON object");
  // Fields, and the values that are known before.
  const Json expected = contents(problem, strategy, nullptr);
  for (const auto& [key, value] : expected.items()) {
    if (!json.contains(key)) refuse(path, "has no " + key);
    if (key != "programs") require(path, key, json[key], value);
  }
  // The digest, of the text without it, as save_proof makes it.
  const std::string recorded = json.contains("digest") ? json_text(json["digest"]) : "none";
  json.erase("digest");
  const std::string own_digest = json_text(to_string(digest_of(json_text(json))));
  if (recorded != own_digest) {
    refuse(path, fmt::format("was edited: it says digest {}, its text has {}",
                             shorten(recorded, 80), own_digest));
  }
  // The digests of programs: one for each rank and pass.
  Programs programs;
  if (!json["programs"].is_object()) refuse(path, "has no programs");
  for (std::size_t p = 0; p < kPasses.size(); ++p) {
    const Json& list = json["programs"][std::string(to_string(kPasses[p]))];
    if (!list.is_array() || list.size() != static_cast<std::size_t>(problem.world)) {
      refuse(path, fmt::format("has not {} of {}", count_of(problem.world, "program"),
                               to_string(kPasses[p])));
    }
    for (const Json& digest : list) programs[p].push_back(parse_digest(path, digest));
  }
  return programs;
}

}  // namespace armillary::proof
