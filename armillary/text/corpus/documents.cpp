// documents.cpp: lines of JSON are read from a mapped file, or from the pipe of a Python that has
// pyarrow: both are taken apart by the same function.
#include "armillary/text/corpus/documents.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "armillary/core/child.h"
#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/io/content_hash.h"
#include "armillary/io/mapped_file.h"

namespace armillary::corpus {
namespace {

constexpr InputRequest kDocumentFile{.where = "data prepare", .required = "a readable file"};

/// Writes each row of a column as a line of JSON.
constexpr const char* kParquetProgram = R"(
import json, sys
import pyarrow.parquet
path, field = sys.argv[1:]
for batch in pyarrow.parquet.ParquetFile(path).iter_batches(columns=[field]):
    for text in batch.column(0).to_pylist():
        if text is not None:
            sys.stdout.write(json.dumps({field: text}) + "\n")
)";

/// Lines of one file, one after the other.
class JsonLineReader {
 public:
  JsonLineReader(const std::string& path, const std::string& field, const OnDocument& on_document)
      : path_(path), field_(field), on_document_(on_document) {}

  void read(std::string_view line) {
    ++number_;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    // Maps find keys in no time, however many an object has.
    if (too_deep_json_at(line, kMostJsonDepth)) refuse("is nested too deep");
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) refuse("is no JSON");
    const auto text = json.is_object() ? json.find(field_) : json.end();
    if (!json.is_object() || text == json.end() || !text->is_string()) {
      refuse(fmt::format("has no text under {}", quote(field_)));
    }
    on_document_(text->get_ref<const std::string&>());
  }

 private:
  [[noreturn]] void refuse(const std::string& fault) const {
    fail<IoError>("data prepare: line {} of '{}' {}; an object with a text is required (--field)",
                  number_, excerpt(path_), fault);
  }

  const std::string& path_;
  const std::string& field_;
  const OnDocument& on_document_;
  std::int64_t number_ = 0;
};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void read_lines(std::string_view text, JsonLineReader& reader) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    reader.read(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// A child that is ended when its owner fails.
class ParquetProcess {
 public:
  ParquetProcess(const std::string& path, const std::string& field)
      : child_(start_child({.label = "pyarrow",
                            .words = {python(), "-c", kParquetProgram, path, field},
                            .where = "data prepare"})) {}
  ParquetProcess(const ParquetProcess&) = delete;
  ParquetProcess& operator=(const ParquetProcess&) = delete;
  ~ParquetProcess() {
    if (child_.pid < 0) return;
    kill(child_.pid, SIGKILL);
    end();
  }

  static std::string python() {
    const char* const choice = std::getenv("ARMILLARY_PYTHON");
    return choice != nullptr && *choice != '\0' ? choice : "python3";
  }

  /// Waits for more of its output. Returns whether there may be more.
  bool read(std::string& out, std::string& err) {
    std::array<pollfd, 2> files{{{child_.out.open() ? child_.out.get() : -1, POLLIN, 0},
                                 {child_.err.open() ? child_.err.get() : -1, POLLIN, 0}}};
    poll(files.data(), files.size(), -1);
    read_some(child_.out, out);
    read_some(child_.err, err);
    return child_.out.open() || child_.err.open();
  }

  /// Returns whether it ended well.
  bool end() {
    int status = 0;
    while (waitpid(child_.pid, &status, 0) < 0 && errno == EINTR) {
    }
    child_.pid = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  Child child_;
};

void read_parquet(const std::string& path, const std::string& field, JsonLineReader& reader) {
  ParquetProcess process(path, field);
  std::string out;
  std::string err;
  for (bool is_open = true; is_open;) {
    is_open = process.read(out, err);
    const std::size_t end = out.rfind('\n');
    if (end == std::string::npos) continue;
    read_lines(std::string_view(out).substr(0, end), reader);
    out.erase(0, end + 1);
  }
  if (process.end()) return;
  while (err.ends_with('\n')) err.pop_back();
  fail<IoError>(
      "data prepare: '{}' cannot be read by {} ({}); a Parquet file with the column {} "
      "and a Python with pyarrow ($ARMILLARY_PYTHON) are required",
      excerpt(path), ParquetProcess::python(), excerpt(err.substr(err.rfind('\n') + 1)),
      quote(field));
}

}  // namespace

SourceFile read_documents(const std::string& path, const DocumentOptions& options,
                          const OnDocument& on_document) {
  const io::MappedFile mapped(kDocumentFile, path);
  const std::string_view text = as_text(mapped.bytes());
  SourceFile file{.path = path,
                  .bytes = static_cast<std::int64_t>(text.size()),
                  .hash = io::content_hash(mapped.bytes())};
  JsonLineReader reader(path, options.field, on_document);
  if (path.ends_with(".parquet")) {
    read_parquet(path, options.field, reader);
  } else if (path.ends_with(".jsonl")) {
    read_lines(text, reader);
  } else {
    if (const auto byte = first_invalid_utf8(text)) {
      fail<IoError>("data prepare: '{}' is not UTF-8 at byte {}; text in UTF-8 is required",
                    excerpt(path), *byte);
    }
    on_document(text);
  }
  return file;
}

}  // namespace armillary::corpus
