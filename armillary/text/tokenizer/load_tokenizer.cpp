#include "armillary/text/tokenizer/load_tokenizer.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "armillary/core/input_file.h"
#include "armillary/io/mapped_file.h"
#include "armillary/text/tokenizer/gguf.h"
#include "armillary/text/tokenizer/huggingface.h"

namespace armillary::tokenizer {
namespace {

constexpr std::int64_t kMostJsonBytes = std::int64_t{512} << 20;
constexpr InputRequest kTokenizerFile{.where = "tokenizer",
                                      .required = "tokenizer.json or a GGUF file"};

}  // namespace

Tokenizer load_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const std::string file = is_folder ? (fs::path(path) / "tokenizer.json").string() : path;
  const io::MappedFile mapped(kTokenizerFile, file);
  const auto bytes = mapped.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("GGUF")) return Tokenizer(read_gguf(bytes, file));
  InputRequest request = kTokenizerFile;
  request.most_bytes = kMostJsonBytes;
  const std::string json = read_input(request, file);
  const fs::path config = fs::path(file).parent_path() / "tokenizer_config.json";
  std::string config_text;
  if (fs::is_regular_file(config, error)) config_text = read_input(request, config.string());
  return Tokenizer(read_huggingface(json, config_text, file));
}

}  // namespace armillary::tokenizer
