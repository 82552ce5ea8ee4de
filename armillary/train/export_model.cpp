// export_model.cpp: all bytes of a checkpoint are verified before anything is written. Special
// tokens of config.json are those of text, unless the run has a tokenizer or prepared data of its
// own.
#include "armillary/train/export_model.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/io/file_system.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/recipe.h"

namespace armillary::train {
namespace {

namespace fs = std::filesystem;

/// Names of parameters in a checkpoint; optimizer state has other prefixes and is not exported.
constexpr const char* kParameterPrefix = "parameters/";

/// The folder of the tokenizer of a run, or of the run of a checkpoint.
std::string tokenizer_of(const std::string& run, const std::string& checkpoint) {
  if (run != checkpoint) return tokenizer_folder(run);
  std::error_code error;
  const fs::path whole = fs::canonical(checkpoint, error);
  return tokenizer_folder(whole.parent_path().parent_path().string());
}

/// Gives a config the ids that the tokenizer's generation_config.json has, or none: those of text
/// are other words there.
void take_special_tokens(nlohmann::json& config, const std::string& tokenizer) {
  std::error_code error;
  const std::string path = tokenizer + "/generation_config.json";
  nlohmann::json ids = nlohmann::json::object();
  if (fs::is_regular_file(path, error)) {
    const JsonRead read =
        read_json_text(read_input({.where = "export", .required = "a readable file"}, path));
    if (read.fault || !read.value.is_object()) {
      fail<IoError>("export: {} {}; a JSON object is required", excerpt(path),
                    read.fault ? to_string(*read.fault) : "is no JSON object");
    }
    ids = read.value;
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    config[key] = ids.value(key, nlohmann::json());
  }
}

/// Gives a config the end token of the data: of prepared data, whose ids are not those of text, if
/// it has another; of text its separator; else none, unless a tokenizer has said one.
void set_end_token(nlohmann::json& config, const RunProgress& progress, bool has_tokenizer) {
  constexpr std::string_view kSeparatorLine = "separator = ";
  nlohmann::json& ends = config["eos_token_id"];  // One, several or null.
  if (!has_tokenizer && progress.vocab_size != kVocabSize) ends = nullptr;
  for (const std::string& line : progress.data) {
    if (!line.starts_with(kSeparatorLine)) continue;
    std::int64_t number = 0;
    const char* const last = line.data() + line.size();
    const auto [end, error] = std::from_chars(line.data() + kSeparatorLine.size(), last, number);
    if (error != std::errc() || end != last) {
      fail<IoError>("export: the checkpoint is of data with {}; a token is required",
                    excerpt(line));
    }
    const nlohmann::json id = number;
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends = id;
  }
}

/// transformers takes the end token of generation_config.json: it becomes that of config.json.
void set_end_of_generation(const std::string& folder, const nlohmann::json& end) {
  std::error_code error;
  const std::string path = folder + "/generation_config.json";
  if (!fs::is_regular_file(path, error)) return;
  // An object: take_special_tokens has read it.
  nlohmann::json generation =
      read_json_text(read_input({.where = "export", .required = "a readable file"}, path)).value;
  if (generation.value("eos_token_id", nlohmann::json()) == end) return;
  generation["eos_token_id"] = end;
  io::write_synced(io::real_file_system(), path, generation.dump(2) + "\n");
}

}  // namespace

std::string checkpoint_of(const std::string& run, std::string_view verb) {
  std::error_code error;
  if (fs::is_regular_file(run + "/" + kManifestName, error)) return run;
  const std::string recipe_path = run + "/" + kRecipeName;
  if (!fs::is_regular_file(recipe_path, error)) {
    fail<InvalidArgument>(
        "{}: {} has neither {} nor {}; the folder of a run or of a checkpoint is required", verb,
        excerpt(run), kRecipeName, kManifestName);
  }
  const std::string folder = run + "/" + load_recipe(recipe_path).checkpoint.folder;
  const FoundCheckpoints checkpoints = find_checkpoints(folder);
  if (checkpoints.whole.empty()) {
    fail<InvalidArgument>("{}: {} has no whole checkpoint; one is required", verb, excerpt(folder));
  }
  return checkpoints.whole.back().path;
}

std::string export_model(const std::string& run, const std::string& folder, FolderFormat format) {
  const std::string path = checkpoint_of(run, "export");
  const Checkpoint checkpoint(path);
  // All bytes are checked here: an export is read by programs that do not know the hashes.
  checkpoint.verify(0, 1);
  const Recipe recipe = parse_recipe(checkpoint.recipe(), path + "/" + kRecipeName);
  std::vector<std::vector<std::byte>> values;
  std::vector<io::TensorBytes> parameters;
  for (io::TensorInfo info : checkpoint.tensors()) {
    if (!info.name.starts_with(kParameterPrefix)) continue;
    values.push_back(checkpoint.bytes(info));
    info.name.erase(0, std::strlen(kParameterPrefix));
    parameters.push_back({std::move(info), values.back()});
  }
  nlohmann::json config =
      model_config(recipe.model, recipe.training.seq_len, format, recipe.training.dtype);
  const std::string tokenizer = tokenizer_of(run, path);
  std::error_code error;
  const bool has_tokenizer = format == FolderFormat::Hf && fs::is_directory(tokenizer, error);
  if (has_tokenizer) take_special_tokens(config, tokenizer);
  if (format == FolderFormat::Hf) {
    set_end_token(config, checkpoint.manifest().progress, has_tokenizer);
  }
  write_model_folder(folder, format, config, std::move(parameters));
  if (has_tokenizer) {
    copy_tokenizer(tokenizer, folder);
    set_end_of_generation(folder, config["eos_token_id"]);
  }
  return path;
}

}  // namespace armillary::train
