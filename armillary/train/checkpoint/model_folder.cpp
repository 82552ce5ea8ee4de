// Model folders. A folder of one file and one of several are read the same way: the index, or what
// it would be, says which file has a tensor.
#include "armillary/train/checkpoint/model_folder.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/io/file_system.h"
#include "armillary/io/mapped_file.h"

namespace armillary::train {
namespace {

namespace fs = std::filesystem;

// Names that transformers gives to these files.
constexpr const char* kConfigName = "config.json";
constexpr const char* kIndexName = "model.safetensors.index.json";

/// A file that holds one JSON object.
nlohmann::json read_json(const std::string& path) {
  const io::MappedFile file("model", path);
  const JsonRead read =
      read_json_text({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  if (read.fault || !read.value.is_object()) {
    fail<IoError>("model: {} {}; a JSON object is required", excerpt(path),
                  read.fault ? to_string(*read.fault) : "is no JSON object");
  }
  return read.value;
}

/// The tensors of a model folder, by their names there.
class ModelFiles {
 public:
  explicit ModelFiles(const std::string& folder) : folder_(folder) {
    std::error_code error;
    // One file: its own header is the list of tensors.
    if (!fs::exists(folder + "/" + kIndexName, error)) {
      const io::SafetensorsFile& file = open("model.safetensors");
      for (const io::TensorInfo& info : file.tensors()) file_of_[info.name] = "model.safetensors";
      return;
    }
    // Several files: the index names the file of each tensor, which is opened when it is needed.
    const std::string path = folder + "/" + kIndexName;
    const nlohmann::json index = read_json(path);
    const nlohmann::json map = index.value("weight_map", nlohmann::json());
    if (!map.is_object())
      fail<IoError>("model: {} has no weight_map; one is required", excerpt(path));
    for (const auto& [name, file] : map.items()) {
      if (!file.is_string()) {
        fail<IoError>("model: {}: tensor {} is in {}; a file is required", excerpt(path),
                      quote(name), excerpt(json_text(file)));
      }
      file_of_[name] = file.get<std::string>();
    }
  }

  /// Whether the tensor is there and fp64.
  bool has_fp64(const std::string& name) {
    const auto entry = file_of_.find(name);
    return entry != file_of_.end() && open(entry->second).info(name).dtype == io::TensorDtype::F64;
  }

  /// @throws IoError unless the tensor is there, of this dtype and shape.
  std::span<const std::byte> bytes(const io::TensorInfo& request) {
    const auto entry = file_of_.find(request.name);
    if (entry == file_of_.end()) {
      fail<IoError>("model: {} has no tensor '{}'; all of the recipe's model are required",
                    excerpt(folder_), request.name);
    }
    const io::SafetensorsFile& file = open(entry->second);
    const io::TensorInfo& info = file.info(request.name);
    if (info.dtype != request.dtype || info.shape != request.shape) {
      fail<IoError>("model: {}: tensor '{}' is {} [{}]; {} [{}] is required", excerpt(file.path()),
                    request.name, to_string(info.dtype), fmt::join(info.shape, ","),
                    to_string(request.dtype), fmt::join(request.shape, ","));
    }
    return file.bytes(request.name);
  }

  /// Refuses tensors that are not among `names`: they would change what the model computes.
  void expect_no_other(const std::set<std::string>& names) const {
    for (const auto& [name, file] : file_of_) {
      if (names.contains(name)) continue;
      fail<IoError>(
          "model: {}/{}: tensor {} is not one of the recipe's model; none but those are required",
          excerpt(folder_), excerpt(file), quote(name));
    }
  }

 private:
  /// A file of the folder, opened once.
  const io::SafetensorsFile& open(const std::string& name) {
    std::unique_ptr<io::SafetensorsFile>& file = files_[name];
    if (!file) file = std::make_unique<io::SafetensorsFile>(folder_ + "/" + name);
    return *file;
  }

  std::string folder_;
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;
  std::map<std::string, std::string> file_of_;
};

/// Copies the elements of a range of a whole tensor, row by row, to a flat one of its dtype.
void copy_range(const model::GlobalRange& range, std::span<const std::byte> whole,
                const at::Tensor& to) {
  const auto element = static_cast<std::int64_t>(to.element_size());
  auto* const bytes = static_cast<std::byte*>(to.data_ptr());
  model::for_each_row(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
    if (count == 0) return;
    std::memcpy(bytes + local * element, whole.data() + global * element,
                static_cast<std::size_t>(count * element));
  });
}

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

}  // namespace

void write_model_folder(const std::string& folder, FolderFormat format,
                        const nlohmann::json& config, std::vector<io::TensorBytes> parameters,
                        std::int64_t most_file_bytes) {
  expect_free(folder);
  for (io::TensorBytes& tensor : parameters) {
    tensor.info.name = folder_name(tensor.info.name, format);
  }
  io::FileSystem& files = io::real_file_system();
  io::make_folders(files, folder);
  // One file if it fits, else numbered files with an index, as transformers writes them.
  const auto cut = cut_into_files(std::move(parameters), most_file_bytes);
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

void load_parameters(const std::string& folder, const model::ModelOptions& options, Store& store) {
  const std::string config_path = folder + "/" + kConfigName;
  const nlohmann::json config = read_json(config_path);
  check_config(config_path, config, options);
  const FolderFormat format = format_of(config);
  ModelFiles files(folder);
  // Each parameter is looked for by its name, and then nothing may be left over.
  std::set<std::string> names;
  store.fill(
      [&](const std::string& name, const model::GlobalRange& range, const at::Tensor& values) {
        io::TensorInfo request{
            .name = folder_name(name, format), .dtype = io::TensorDtype::F32, .shape = range.whole};
        at::Tensor read = values;
        if (values.scalar_type() == at::kDouble) {
          if (files.has_fp64(request.name)) {
            request.dtype = io::TensorDtype::F64;
          } else {
            read = at::empty(values.sizes(), at::kFloat);
          }
        }
        copy_range(range, files.bytes(request), read);
        if (!read.is_same(values)) values.copy_(read);
        names.insert(request.name);
      });
  files.expect_no_other(names);
}

}  // namespace armillary::train
