// serve_cases.cpp: cases of sessions (serve/sessions.h) of one model on ranks that are threads, for
// tests that compare their logits with those of transformers and of one rank.
//
//   serve_cases MODEL TEXTS CASES
//
// TEXTS is a safetensors file with `NAME.ids`, int64 [L], and perhaps `NAME.logits`, fp32 [R, V],
// those behind the last R of L tokens. A line of CASES is a case, and has a line of the output:
// {"name": "..", "ranks": 3, "pages": 64, "calls": [{"call": "open", "session": "a", "text": ".."},
//  {"call": "prefill", "to": {"a": 100}}, {"call": "decode", "sessions": ["a"], "steps": 8}]}
// with any of tp, dtype, layout, strategy, chunk, page, gather_queries. Behind each call its logits
// are compared: `error` beside the file's, `of_first` beside the first case's with as many tokens.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/mesh.h"
#include "armillary/core/error.h"
#include "armillary/io/safetensors.h"
#include "armillary/model/registry.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/relayout/cache_layout.h"
#include "armillary/serve/model_weights.h"
#include "armillary/serve/sessions.h"
#include "armillary/serve/windows.h"
#include "armillary/train/tensor_parallel_over_ranks.h"

namespace armillary {
namespace {

using Json = nlohmann::json;

/// A text with what is known of it.
struct Text {
  std::vector<std::int64_t> ids;
  at::Tensor logits_RV;  ///< Undefined if there are none.
};

/// Tokens of a text that were read.
using TextBegin = std::pair<std::string, std::int64_t>;

/// The model, its weights and the texts: what all cases have in common.
class SessionTexts {
 public:
  SessionTexts(const std::string& model, const std::string& texts)
      : model_("serve_cases", model), file_(texts) {
    for (const io::TensorInfo& info : file_.tensors()) {
      const std::size_t dot = info.name.rfind('.');
      Text& text = texts_[info.name.substr(0, dot)];
      // The file outlives the tensors, which are only read.
      auto* const bytes = const_cast<std::byte*>(file_.bytes(info.name).data());
      if (info.dtype == io::TensorDtype::I64) {
        const auto* const ids = reinterpret_cast<const std::int64_t*>(bytes);
        text.ids.assign(ids, ids + info.shape.at(0));
      } else {
        text.logits_RV = at::from_blob(bytes, info.shape, at::kFloat);
      }
    }
  }

  const serve::ModelFile& model() const { return model_; }
  const Text& text(const std::string& name) const { return texts_.at(name); }

  /// Weights of a rank along tp, read once.
  std::shared_ptr<const serve::ModelWeights> weights(const serve::WeightOptions& options) {
    const std::lock_guard lock(mutex_);
    auto& weights = weights_[{options.tp_index, options.tp_ranks, options.dtype}];
    if (!weights) weights = std::make_shared<const serve::ModelWeights>(model_.weights(options));
    return weights;
  }

  /// The logits of the first case behind so many tokens; these, if it is the first. Rank 0 asks.
  at::Tensor first(const TextBegin& begin, const at::Tensor& logits_V) {
    return first_.emplace(begin, logits_V).first->second;
  }

 private:
  using WeightKey = std::tuple<int, int, at::ScalarType>;

  serve::ModelFile model_;
  io::SafetensorsFile file_;
  std::map<std::string, Text> texts_;
  std::mutex mutex_;
  std::map<WeightKey, std::shared_ptr<const serve::ModelWeights>> weights_;
  std::map<TextBegin, at::Tensor> first_;
};

/// The largest difference over the largest logit.
double error_of(const at::Tensor& logits_V, const at::Tensor& required_V) {
  const double difference = (logits_V - required_V).abs().max().item().toDouble();
  return difference / required_V.abs().max().item().toDouble();
}

/// The calls of a case on one rank, whose sessions have names.
class SessionCalls {
 public:
  SessionCalls(serve::Sessions& sessions, SessionTexts& inputs, bool checks)
      : sessions_(sessions), inputs_(inputs), checks_(checks) {}

  /// The comparisons, one object for each session and call.
  const Json& results() const { return results_; }

  void run(const Json& call) {
    const std::string kind = call.at("call");
    if (kind == "open") return open(call);
    if (kind == "prefill") return prefill(call);
    if (kind == "prefill_to") return prefill_to(call);
    if (kind == "fork") return fork(call.at("session"), call.at("as"));
    if (kind == "relayout") return relayout(call);
    if (kind == "decode") return decode(call);
    if (kind == "release") return release(call.at("session"));
    fail<InvalidArgument>("serve_cases: call {} given", kind);
  }

  void release_all() {
    while (!open_.empty()) release(std::string(open_.begin()->first));
  }

 private:
  struct OpenText {
    serve::SessionId id = 0;
    std::string text;
  };

  void open(const Json& call) { open_[call.at("session")] = {sessions_.open(), call.at("text")}; }

  void fork(const std::string& name, const std::string& copy) {
    const OpenText parent = open_.at(name);
    open_[copy] = {sessions_.fork(parent.id), parent.text};
  }

  void release(const std::string& name) {
    sessions_.release(open_.at(name).id);
    open_.erase(name);
  }

  /// The tokens of a session's text from those that were read on.
  serve::Prompt prompt_to(const std::string& name, std::int64_t to) const {
    const OpenText& open = open_.at(name);
    const std::vector<std::int64_t>& ids = inputs_.text(open.text).ids;
    const std::int64_t begin = sessions_.tokens(open.id);
    if (to > static_cast<std::int64_t>(ids.size()) || to <= begin) {
      fail<InvalidArgument>("serve_cases: tokens {} to {} of {}", begin, to, ids.size());
    }
    return {open.id, {ids.begin() + begin, ids.begin() + to}};
  }

  void prefill(const Json& call) {
    std::vector<std::string> names;
    std::vector<serve::Prompt> prompts;
    for (const auto& [name, to] : call.at("to").items()) {
      names.push_back(name);
      prompts.push_back(prompt_to(name, to.get<std::int64_t>()));
    }
    const std::int64_t stop = call.value("stop", std::int64_t{-1});
    const std::int64_t fork_at = call.value("fork_at", std::int64_t{-1});
    const at::Tensor logits_BV =
        sessions_.prefill(prompts, [&](std::int64_t tokens, std::int64_t /*of*/) {
          if (tokens == fork_at) fork(names.front(), call.at("as"));
          return stop < 0 || tokens < stop;
        });
    if (logits_BV.defined() != (stop < 0)) {
      fail<InvalidArgument>("serve_cases: a prefill that stops at {} {}", stop,
                            stop < 0 ? "was ended" : "was not ended");
    }
    if (logits_BV.defined()) check(names, logits_BV);
  }

  plan::relayout::CacheLayout layout_of(const Json& call, std::int64_t tokens) const {
    plan::relayout::CacheLayout layout = plan::relayout::one_extent(
        tokens, plan::parse_layout(call.at("layout").get<std::string>()), call.at("ranks"));
    layout.first = call.value("first", 0);
    return layout;
  }

  void prefill_to(const Json& call) {
    const std::string name = call.at("session");
    plan::relayout::CacheLayout to = layout_of(call, 0);
    const plan::Layout deal = to.extents.front().layout;
    const serve::Prompt prompt = prompt_to(name, call.at("to"));
    check({name}, sessions_.prefill_to(prompt, to, deal).logits_BV);
  }

  void relayout(const Json& call) {
    const serve::SessionId session = open_.at(call.at("session")).id;
    sessions_.relayout(session, layout_of(call, sessions_.tokens(session)));
  }

  void decode(const Json& call) {
    const std::vector<std::string> names = call.at("sessions");
    for (int step = 0; step < call.at("steps").get<int>(); ++step) {
      std::vector<serve::NextToken> next;
      for (const std::string& name : names) {
        const std::int64_t read = sessions_.tokens(open_.at(name).id);
        next.push_back({open_.at(name).id, prompt_to(name, read + 1).tokens.front()});
      }
      check(names, sessions_.decode(next));
    }
  }

  /// Compares the logits behind sessions with those that are known.
  void check(const std::vector<std::string>& names, const at::Tensor& logits_BV) {
    if (!checks_) return;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const OpenText& open = open_.at(names[i]);
      const Text& text = inputs_.text(open.text);
      const std::int64_t tokens = sessions_.tokens(open.id);
      const at::Tensor logits_V =
          logits_BV.select(0, static_cast<std::int64_t>(i)).to(at::kFloat).clone();
      Json result{{"session", names[i]},
                  {"text", open.text},
                  {"tokens", tokens},
                  {"next", logits_V.argmax().item().toLong()},
                  {"of_first", error_of(logits_V, inputs_.first({open.text, tokens}, logits_V))}};
      if (text.logits_RV.defined()) {
        const std::int64_t row =
            tokens - 1 - static_cast<std::int64_t>(text.ids.size()) + text.logits_RV.size(0);
        if (row >= 0) result["error"] = error_of(logits_V, text.logits_RV[row]);
      }
      results_.push_back(std::move(result));
    }
  }

  serve::Sessions& sessions_;
  SessionTexts& inputs_;
  bool checks_;
  std::map<std::string, OpenText> open_;
  Json results_ = Json::array();
};

serve::SessionsOptions options_of(const Json& spec, const serve::ModelFile& model) {
  return {.layout = plan::parse_layout(spec.value("layout", std::string("zigzag"))),
          .strategy = spec.value("strategy", std::string("ring")),
          .chunk = spec.value("chunk", std::int64_t{0}),
          .gather_queries = spec.value("gather_queries", false),
          .cache = {.page = spec.value("page", std::int64_t{16}), .pages = spec.at("pages")},
          .windows = serve::windows_of(model.options())};
}

/// One rank of a case; rank 0 writes what was compared, and the pages that are not free behind it.
void run_rank(comm::Communicator& world, const Json& spec, SessionTexts& inputs, Json& line) {
  const int tp_ranks = spec.value("tp", 1);
  const MeshShape shape{.cp = world.world() / tp_ranks, .tp = tp_ranks};
  const comm::Mesh mesh(world, shape);
  comm::Communicator& cp = mesh.along(MeshAxis::Cp);
  const at::ScalarType dtype =
      spec.value("dtype", std::string("fp32")) == "bf16" ? at::kBFloat16 : at::kFloat;
  const auto weights =
      inputs.weights({.tp_index = mesh.index(MeshAxis::Tp), .tp_ranks = tp_ranks, .dtype = dtype});
  const std::unique_ptr<model::Model> model =
      model::make_model(inputs.model().options(), {.dtype = dtype});
  serve::SessionsOptions options = options_of(spec, inputs.model());
  const std::int64_t pages = options.cache.pages;
  if (tp_ranks > 1) {
    options.tensor_parallel = train::tensor_parallel_over_ranks(mesh.along(MeshAxis::Tp));
  }
  serve::Sessions sessions(
      cp, *model, [&](int unit) { return weights->of_unit(unit); }, std::move(options));
  SessionCalls calls(sessions, inputs, world.rank() == 0);
  for (const Json& call : spec.at("calls")) calls.run(call);
  calls.release_all();
  if (world.rank() != 0) return;
  std::int64_t left = 0;
  for (int rank = 0; rank < cp.world(); ++rank) left += pages - sessions.cache().free_pages(rank);
  line["checks"] = calls.results();
  line["pages_left"] = left;
}

void run(const std::span<char*> words) {
  SessionTexts inputs(words[0], words[1]);
  std::ifstream cases(words[2]);
  for (std::string text; std::getline(cases, text);) {
    const Json spec = Json::parse(text);
    const int ranks = spec.at("ranks");
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    Json line{{"name", spec.at("name")}};
    const auto begin = std::chrono::steady_clock::now();
    const comm::LocalOptions options{.timeout_s = 600};
    comm::run_ranks(
        ranks,
        [&](comm::Communicator& world) {
          at::set_num_threads(std::max(1, cores / ranks));  // For this rank's thread.
          run_rank(world, spec, inputs, line);
        },
        options);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    line["seconds"] = seconds.count();
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace armillary

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("serve_cases: MODEL TEXTS CASES are required\n", stderr);
    return 2;
  }
  try {
    armillary::run(std::span(argv + 1, 3));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
