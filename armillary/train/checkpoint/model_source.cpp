// model_source.cpp: a folder of one file and one of several are read the same way: the index, or
// what it would be, says which file has a tensor.
#include "armillary/train/checkpoint/model_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/half_floats.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/io/gguf.h"
#include "armillary/io/mapped_file.h"
#include "armillary/io/safetensors.h"
#include "armillary/train/checkpoint/expert_folder.h"
#include "armillary/train/checkpoint/gguf_model.h"
#include "armillary/train/checkpoint/hf_config.h"
#include "armillary/train/checkpoint/model_config.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/checkpoint/size_keys.h"

namespace armillary::train {
namespace {

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

/// A tensor that a folder must have.
struct RequiredTensor {
  std::string name;
  model::Shape shape;
  /// The keys that ask for its shape where another is there, as differing_keys().
  std::function<std::string(const model::Shape& there)> keys = {};
};

/// The tensors of a model folder, by their names there.
class ModelFiles {
 public:
  explicit ModelFiles(const std::string& folder) : folder_(folder) {
    std::error_code error;
    // One file: its own header is the list of tensors.
    if (!std::filesystem::exists(folder + "/" + kIndexName, error)) {
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

  /// @throws IoError unless the tensor is there, of this shape, and a float of at most 32 bits, or
  /// of 64.
  const io::SafetensorsFile& file_with(const RequiredTensor& required, bool takes_fp64) {
    const auto& [name, shape, keys] = required;
    const auto entry = file_of_.find(name);
    if (entry == file_of_.end()) {
      fail<IoError>("model: {} has no tensor '{}'; all of the recipe's model are required",
                    excerpt(folder_), name);
    }
    const io::SafetensorsFile& file = open(entry->second);
    const io::TensorInfo& info = file.info(name);
    const bool is_float =
        info.dtype == io::TensorDtype::F32 || info.dtype == io::TensorDtype::F16 ||
        info.dtype == io::TensorDtype::BF16 || (takes_fp64 && info.dtype == io::TensorDtype::F64);
    if (!is_float || info.shape != shape) {
      fail<IoError>("model: {}: tensor '{}' is {} [{}]; F32 [{}] is required, or F16 or BF16{}",
                    excerpt(file.path()), name, to_string(info.dtype), fmt::join(info.shape, ","),
                    fmt::join(shape, ","), keys ? keys(info.shape) : "");
    }
    return file;
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

  /// Names of tensors that are there for which `of` is true.
  template <class Of>
  std::set<std::string> names(const Of& of) const {
    std::set<std::string> names;
    for (const auto& [name, file] : file_of_) {
      if (of(name)) names.insert(name);
    }
    return names;
  }

 private:
  /// A file of the folder, opened once.
  const io::SafetensorsFile& open(const std::string& name) {
    auto& file = files_[name];
    if (!file) file = std::make_unique<io::SafetensorsFile>(folder_ + "/" + name);
    return *file;
  }

  std::string folder_;
  std::map<std::string, std::string> file_of_;  ///< By the name of the tensor.
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;
};

/// Values of a file, in another dtype.
template <class Value, class Float>
void convert(const std::byte* first, std::span<Float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Value value{};
    std::memcpy(&value, first + sizeof value * i, sizeof value);
    if constexpr (std::is_same_v<Value, double>) {
      values[i] = static_cast<Float>(value);
    } else {
      values[i] = static_cast<float>(value);
    }
  }
}

/// Elements [begin, begin + values.size()) of a tensor as fp32, or as fp64.
template <class Float>
void widen(io::TensorDtype dtype, std::span<const std::byte> bytes, std::int64_t begin,
           std::span<Float> values) {
  const std::byte* const first = bytes.data() + begin * io::bytes_of(dtype);
  switch (dtype) {
    case io::TensorDtype::F64:
      return convert<double>(first, values);
    case io::TensorDtype::F32:
      return convert<float>(first, values);
    case io::TensorDtype::F16:
      return convert<Fp16>(first, values);
    default:
      return convert<Bf16>(first, values);
  }
}

class FolderSource : public ModelSource {
 public:
  explicit FolderSource(const std::string& folder)
      : path_(folder + "/" + kConfigName),
        config_(read_json(path_)),
        format_(format_of(config_)),
        model_(read_model_config(path_, config_)),
        folder_(folder) {}

  const model::ModelOptions& model() const override { return model_; }
  const std::string& path() const override { return path_; }

  void read(const std::string& parameter, const model::GlobalRange& range,
            std::span<float> values) override {
    read_rows(parameter, range, values);
  }
  void read_fp64(const std::string& parameter, const model::GlobalRange& range,
                 std::span<double> values) override {
    read_rows(parameter, range, values);
  }

  void expect_tensors(std::span<const model::Parameter> parameters) override {
    const auto model_type = config_.at("model_type").get<std::string>();
    // transformers leaves these out too: a copy of the embedding, and buffers of old versions.
    std::set<std::string> names = files().names([&](const std::string& name) {
      return format_ == FolderFormat::Hf &&
             ((model_.enable_weight_tying && name == "lm_head.weight") ||
              name.ends_with("rotary_emb.inv_freq"));
    });
    const auto expect = [&](const RequiredTensor& tensor) {
      files().file_with(tensor, /*takes_fp64=*/true);
      names.insert(tensor.name);
    };
    for (const model::Parameter& parameter : parameters) {
      const auto keys = [&](const model::Shape& there) { return keys_of(parameter, there); };
      if (format_ == FolderFormat::Armillary || !has_all_experts(parameter.name)) {
        expect({folder_name(parameter.name, model_type), parameter.shape, keys});
        continue;
      }
      // A tensor for each expert: the first that is not there ends the loop.
      const model::Shape one(parameter.shape.begin() + 1, parameter.shape.end());
      for (std::int64_t i = 0; i < parameter.shape[0]; ++i) {
        expect({expert_name(parameter.name, i, model_type), one, keys});
      }
    }
    files().expect_no_other(names);
  }

 private:
  template <class Float>
  void read_rows(const std::string& parameter, const model::GlobalRange& range,
                 std::span<Float> values) {
    const auto model_type = config_.at("model_type").get<std::string>();
    if (format_ == FolderFormat::Armillary || !has_all_experts(parameter)) {
      return read_tensor(folder_name(parameter, model_type), range, values);
    }
    // A tensor for each expert.
    const auto inner = [](const model::Shape& all) {
      return model::Shape(all.begin() + 1, all.end());
    };
    const model::GlobalRange one{
        .whole = inner(range.whole), .begin = inner(range.begin), .size = inner(range.size)};
    const auto count = static_cast<std::size_t>(model::count_of_values(one.size));
    for (std::int64_t i = 0; i < range.size[0]; ++i) {
      read_tensor(expert_name(parameter, range.begin[0] + i, model_type), one,
                  values.subspan(static_cast<std::size_t>(i) * count, count));
    }
  }
  template <class Float>
  void read_tensor(const std::string& name, const model::GlobalRange& range,
                   std::span<Float> values) {
    const io::SafetensorsFile& file =
        files().file_with({name, range.whole}, std::is_same_v<Float, double>);
    const io::TensorDtype dtype = file.info(name).dtype;
    const std::span<const std::byte> bytes = file.bytes(name);
    model::for_each_row(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
      if (count == 0) return;
      widen(dtype, bytes, global,
            values.subspan(static_cast<std::size_t>(local), static_cast<std::size_t>(count)));
    });
  }
  /// The keys of config.json that ask for the shape of a parameter, where another is there.
  std::string keys_of(const model::Parameter& parameter, const model::Shape& there) const {
    std::vector<std::vector<std::string_view>> keys = size_keys(model_, parameter.name);
    model::Shape required = parameter.shape;
    if (format_ == FolderFormat::Hf && has_all_experts(parameter.name) && !keys.empty()) {
      keys.erase(keys.begin());  // the dim of experts, each of which is a tensor there
      required.erase(required.begin());
    }
    return differing_keys(there, required, keys, [&](std::string_view key) {
      return format_ == FolderFormat::Hf ? hf_size_key(key, config_) : fmt::format("model.{}", key);
    });
  }
  /// The files, which a reader of the model alone does not need.
  ModelFiles& files() {
    if (!files_) files_ = std::make_unique<ModelFiles>(folder_);
    return *files_;
  }

  std::string path_;
  nlohmann::json config_;
  FolderFormat format_;
  model::ModelOptions model_;
  std::string folder_;
  std::unique_ptr<ModelFiles> files_;
};

class GgufSource : public ModelSource {
 public:
  explicit GgufSource(const std::string& path) : file_(path), model_(read_gguf_model(file_)) {}

  const model::ModelOptions& model() const override { return model_; }
  const std::string& path() const override { return file_.path(); }

  void read(const std::string& parameter, const model::GlobalRange& range,
            std::span<float> values) override {
    read_gguf_parameter(file_, model_, parameter, range, values);
  }

  void expect_tensors(std::span<const model::Parameter> parameters) override {
    expect_gguf_tensors(file_, model_, parameters);
  }

 private:
  io::GgufFile file_;
  model::ModelOptions model_;
};

}  // namespace

void ModelSource::read_fp64(const std::string& parameter, const model::GlobalRange& range,
                            std::span<double> values) {
  std::vector<float> narrow(values.size());
  read(parameter, range, narrow);
  std::ranges::copy(narrow, values.begin());
}

std::unique_ptr<ModelSource> open_model_source(const std::string& path) {
  if (path.ends_with(".gguf")) return std::make_unique<GgufSource>(path);
  return std::make_unique<FolderSource>(path);
}

}  // namespace armillary::train
