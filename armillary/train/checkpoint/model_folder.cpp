// model_folder.cpp: folders are written in one file, or in numbered ones with an index;
// model_source.cpp reads both.
#include "armillary/train/checkpoint/model_folder.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/user_text.h"
#include "armillary/io/file_system.h"
#include "armillary/train/checkpoint/expert_folder.h"
#include "armillary/train/checkpoint/model_source.h"

namespace armillary::train {
namespace {

namespace fs = std::filesystem;

/// Files of a tokenizer, and of how texts are generated, as transformers names them.
constexpr std::array kTokenizerNames{"tokenizer.json",
                                     "tokenizer_config.json",
                                     "tokenizer.model",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "chat_template.jinja",
                                     "generation_config.json"};

/// The parameters cut into files of at most `most` bytes, as far as single tensors allow.
std::vector<std::vector<io::TensorBytes>> cut_into_files(std::vector<io::TensorBytes> parameters,
                                                         std::int64_t most) {
  std::vector<std::vector<io::TensorBytes>> files(1);
  std::int64_t bytes = 0;
  for (io::TensorBytes& tensor : parameters) {
    if (bytes > 0 && bytes + tensor.info.bytes() > most) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += tensor.info.bytes();
    files.back().push_back(std::move(tensor));
  }
  return files;
}

/// The index of several files.
nlohmann::json index_of(const std::vector<std::vector<io::TensorBytes>>& files,
                        const std::vector<std::string>& names) {
  nlohmann::json map = nlohmann::json::object();
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const io::TensorBytes& tensor : files[i]) {
      map[tensor.info.name] = names[i];
      bytes += tensor.info.bytes();
    }
  }
  return {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
}

/// Export never writes over anything.
void expect_free(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  const bool is_free =
      !fs::exists(status) || (fs::is_directory(status) && fs::is_empty(folder, error));
  if (!is_free) {
    fail<InvalidArgument>("export: {} is there and not empty; a new or empty folder is required",
                          excerpt(folder));
  }
}

/// An open folder or file, if it is the one of a model.
std::unique_ptr<ModelSource> source_of(const std::string& path, const model::ModelOptions& options,
                                       std::span<const model::Parameter> parameters) {
  std::unique_ptr<ModelSource> source = open_model_source(path);
  check_same_model(source->path(), source->model(), options);
  source->expect_tensors(parameters);
  return source;
}

}  // namespace

void write_model_folder(const std::string& folder, FolderFormat format,
                        const nlohmann::json& config, std::vector<io::TensorBytes> parameters,
                        std::int64_t most_file_bytes) {
  expect_free(folder);
  const auto model_type = config.at("model_type").get<std::string>();
  std::vector<io::TensorBytes> tensors;
  for (io::TensorBytes& parameter : parameters) {
    if (format == FolderFormat::Hf && has_all_experts(parameter.info.name)) {
      std::ranges::move(experts_apart(parameter, model_type), std::back_inserter(tensors));
      continue;
    }
    parameter.info.name = folder_name(parameter.info.name, model_type);
    tensors.push_back(std::move(parameter));
  }
  io::FileSystem& files = io::real_file_system();
  io::make_folders(files, folder);
  // One file if it fits, else numbered files with an index, as transformers writes them.
  const auto cut = cut_into_files(std::move(tensors), most_file_bytes);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < cut.size(); ++i) {
    names.push_back(cut.size() == 1
                        ? "model.safetensors"
                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, cut.size()));
    // transformers refuses files without this.
    io::write_safetensors(files, folder + "/" + names[i], cut[i], {{"format", "pt"}});
  }
  if (cut.size() > 1) {
    io::write_synced(files, folder + "/" + kIndexName, index_of(cut, names).dump(2) + "\n");
  }
  io::write_synced(files, folder + "/" + kConfigName, config.dump(2) + "\n");
  files.sync_folder(folder);
}

void check_source(const std::string& path, const model::ModelOptions& options,
                  std::span<const model::Parameter> parameters) {
  source_of(path, options, parameters);
}

void load_parameters(const std::string& path, const model::ModelOptions& options, Store& store) {
  const std::unique_ptr<ModelSource> source = source_of(path, options, store.parameters());
  store.fill(
      [&](const std::string& name, const model::GlobalRange& range, const at::Tensor& values) {
        const auto count = static_cast<std::size_t>(values.numel());
        if (values.scalar_type() == at::kDouble) {
          source->read_fp64(name, range, {values.data_ptr<double>(), count});
        } else {
          source->read(name, range, {values.data_ptr<float>(), count});
        }
      });
}

std::string tokenizer_folder(const std::string& run) {
  return run + "/tokenizer";
}

std::vector<std::string> copy_tokenizer(const std::string& from, const std::string& to) {
  std::vector<std::string> copied;
  std::error_code error;
  for (const char* name : kTokenizerNames) {
    const std::string path = from + "/" + name;
    if (!fs::is_regular_file(path, error)) continue;
    io::FileSystem& files = io::real_file_system();
    io::make_folders(files, to);
    io::write_synced(files, to + "/" + name,
                     read_input({.where = "model", .required = "a readable file"}, path));
    copied.emplace_back(name);
  }
  return copied;
}

}  // namespace armillary::train
