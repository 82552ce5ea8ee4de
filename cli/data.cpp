// The verb `data`: `prepare` makes token shards of files of text, `show` prints what a folder has,
// `check` reads all of it again.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/text/corpus/corpus.h"
#include "armillary/text/corpus/prepare.h"
#include "armillary/text/tokenizer/load_tokenizer.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kDataExamples = R"(Examples:
  armillary data prepare tokens --tokenizer smollm.gguf --source docs --seq-len 2048
  armillary data prepare tokens --tokenizer llama/ --source web=web.jsonl --source code=src --weight code=1.5 --seq-len 4096 --validation 0.01
  armillary data show tokens
  armillary data check tokens
  armillary train my.toml --set training.dataset_path=tokens --set training.seq_len=2048

A tokenizer is tokenizer.json of Hugging Face, a folder with one, or a GGUF file. Files ending in .jsonl have an object
with a text a line, .parquet is read by pyarrow of $ARMILLARY_PYTHON or python3, other files are one document each.)";

/// The command line of `data prepare`.
struct DataFlags {
  std::string folder;
  std::string tokenizer;
  std::vector<std::string> sources;
  std::vector<std::string> weights;
  std::string packing = "best_fit";
  std::string extensions = ".txt,.md,.py,.jsonl,.parquet";
  corpus::PrepareRequest request;
};

/// The last part of a path, for a source without a name.
std::string name_of_path(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

/// `NAME=PATH` or `PATH`.
corpus::SourceRequest parse_source(std::string_view text) {
  const auto parts = split_key_value(text);
  const bool has_name = parts && parts->key.find('/') == std::string_view::npos;
  corpus::SourceRequest source;
  source.path = std::string(has_name ? parts->value : text);
  source.name = has_name ? std::string(parts->key) : name_of_path(source.path);
  if (source.path.empty() || source.name.empty()) {
    fail<InvalidArgument>("data prepare: --source {}; PATH or NAME=PATH is required", quote(text));
  }
  return source;
}

/// Puts `NAME=NUMBER` into its source.
void set_weight(std::vector<corpus::SourceRequest>& sources, std::string_view text) {
  const auto parts = split_key_value(text);
  const std::string number(parts ? parts->value : "");
  char* end = nullptr;
  const double weight = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != '\0') {
    fail<InvalidArgument>("data prepare: --weight {}; NAME=NUMBER is required", quote(text));
  }
  std::vector<std::string_view> names;
  names.reserve(sources.size());
  for (const corpus::SourceRequest& source : sources) names.push_back(source.name);
  sources[parse_choice("data prepare: --weight", parts->key, names)].weight = weight;
}

void run_prepare(const DataFlags& flags) {
  corpus::PrepareRequest request = flags.request;
  request.folder = flags.folder;
  for (const std::string& source : flags.sources) request.sources.push_back(parse_source(source));
  for (const std::string& weight : flags.weights) set_weight(request.sources, weight);
  constexpr std::array<std::string_view, 2> kKinds{"cut", "best_fit"};
  request.packing = static_cast<corpus::PackingKind>(
      parse_choice("data prepare: --packing", flags.packing, kKinds));
  request.documents.extensions.clear();
  if (!flags.extensions.empty()) {
    for (const std::string_view extension : split(flags.extensions, ',')) {
      request.documents.extensions.emplace_back(extension);
    }
  }
  const tokenizer::Tokenizer tokenizer = tokenizer::load_tokenizer(flags.tokenizer);
  std::fputs(corpus::describe(corpus::prepare(request, tokenizer)).c_str(), stdout);
}

void run_data_check(const std::string& folder) {
  const corpus::CorpusIndex index = corpus::read_index(folder);
  std::size_t shards = 0;
  for (const corpus::CorpusPart part :
       {corpus::CorpusPart::Train, corpus::CorpusPart::Validation}) {
    std::int64_t sequences = 0;
    for (const corpus::IndexedSource& source : index.sources) sequences += source.sequences(part);
    if (sequences > 0) corpus::Corpus(folder, part).verify();
  }
  for (const corpus::IndexedSource& source : index.sources) shards += source.shards.size();
  fmt::print("{} shards are as they were written\n", shards);
}

void add_prepare(CLI::App& verb, const std::shared_ptr<DataFlags>& flags) {
  CLI::App* part = verb.add_subcommand("prepare", "Files of text to a folder of token shards");
  part->add_option("folder", flags->folder, "Folder that is written")->required();
  part->add_option("--tokenizer", flags->tokenizer, "tokenizer.json, its folder, or a GGUF file")
      ->required();
  part->add_option("--source", flags->sources,
                   "PATH or NAME=PATH of a file or folder; more than once for several")
      ->expected(1)
      ->take_all()
      ->required();
  part->add_option("--weight", flags->weights, "NAME=TIMES that an epoch reads a source [1]")
      ->expected(1)
      ->take_all();
  part->add_option("--seq-len", flags->request.seq_len, "Tokens of a sequence")->required();
  part->add_option(
      "--packing", flags->packing,
      "best_fit: whole documents with padding, or cut: one after the other [best_fit]");
  part->add_option("--separator", flags->request.separator,
                   "Token behind each document [the end token of the tokenizer]");
  part->add_option("--validation", flags->request.validation,
                   "Share of the documents that is for validation [0]");
  part->add_option("--seed", flags->request.seed,
                   "Chooses them, and the order of documents in sequences [0]");
  part->add_option("--field", flags->request.documents.field,
                   "Key of the text in .jsonl, column in .parquet [text]");
  part->add_option("--extensions", flags->extensions,
                   "Files of a folder to read, by comma; empty: all "
                   "[.txt,.md,.py,.jsonl,.parquet]");
  part->callback([flags] { run_prepare(*flags); });
}

}  // namespace

void add_data(CLI::App& app, int& exit_code) {
  const auto flags = std::make_shared<DataFlags>();
  CLI::App* verb = app.add_subcommand("data", "Turn files of text into token shards for training");
  verb->require_subcommand(1);
  verb->footer(kDataExamples);
  add_prepare(*verb, flags);
  CLI::App* show = verb->add_subcommand("show", "What a prepared folder has");
  show->add_option("folder", flags->folder, "Folder of `data prepare`")->required();
  show->callback(
      [flags] { std::fputs(corpus::describe(corpus::read_index(flags->folder)).c_str(), stdout); });
  CLI::App* check = verb->add_subcommand("check", "Read all shards and compare their hashes");
  check->add_option("folder", flags->folder, "Folder of `data prepare`")->required();
  check->callback([flags] { run_data_check(flags->folder); });
  verb->callback([&exit_code] { exit_code = kDone; });
}

}  // namespace armillary::cli
