// sessions.cpp: sessions of a model for Python, over ranks that are threads of this process, or
// over the processes of a group, each of which makes the same calls.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/serve/model_sessions.h"
#include "armillary/serve/sampling.h"
#include "armillary/serve/session_threads.h"
#include "armillary/serve/token_text.h"
#include "python/src/bind.h"
#include "python/src/groups.h"

namespace armillary::python {
namespace py = pybind11;
namespace {

using serve::ModelSessions;
using serve::SessionId;

/// The ranks and their sessions as Python asks for them.
struct SessionSettings {
  std::string model;
  std::string group;  ///< Empty: `threads.ranks` threads.
  int tp_ranks = 1;
  at::ScalarType dtype = at::kFloat;
  serve::SessionThreadsOptions threads;
};

SessionSettings read_settings(const py::dict& fields) {
  const auto number = [&](const char* key) { return fields[key].cast<std::int64_t>(); };
  const auto text = [&](const char* key) { return fields[key].cast<std::string>(); };
  return {.model = text("model"),
          .group = text("group"),
          .tp_ranks = fields["tensor_parallel"].cast<int>(),
          .dtype = text("dtype") == "bfloat16" ? at::kBFloat16 : at::kFloat,
          .threads = {.ranks = fields["ranks"].cast<int>(),
                      .timeout_s = fields["timeout"].cast<double>(),
                      .sessions = {.layout = plan::parse_layout(text("layout")),
                                   .strategy = text("strategy"),
                                   .chunk = number("chunk"),
                                   .gather_queries = fields["gather_queries"].cast<bool>(),
                                   .cache = {.page = number("page"), .pages = number("pages")}}}};
}

/// @throws InvalidArgument as check_sampling.
serve::Sampling read_sampling(const py::dict& fields) {
  const serve::Sampling sampling{.temperature = fields["temperature"].cast<double>(),
                                 .top_k = fields["top_k"].cast<std::int64_t>(),
                                 .top_p = fields["top_p"].cast<double>(),
                                 .seed = fields["seed"].cast<std::uint64_t>()};
  serve::check_sampling(sampling);
  return sampling;
}

constexpr const char* kWhereSessions = "sessions";

/// Ranks that are threads of this process, once the file and this machine allow them.
std::shared_ptr<serve::SessionThreads> open_threads(const serve::ModelFile& file,
                                                    const SessionSettings& settings) {
  const int ranks = settings.threads.ranks;
  serve::check_thread_ranks(ranks);
  serve::mesh_of_sessions(ranks, settings.tp_ranks);
  serve::check_cache_memory(file.options(),
                            {.tp_ranks = settings.tp_ranks, .dtype = settings.dtype},
                            settings.threads.sessions.cache, ranks);
  return std::make_shared<serve::SessionThreads>(
      serve::open_parts(file, settings.tp_ranks, settings.dtype), settings.threads);
}

/// Ranks of the group on this machine.
int count_local_ranks(comm::Communicator& comm) {
  const std::size_t host = std::hash<std::string>()(this_host());
  std::vector<std::size_t> hosts(static_cast<std::size_t>(comm.world()));
  comm::all_gather(comm, std::as_bytes(std::span(&host, 1)),
                   std::as_writable_bytes(std::span(hosts)));
  return static_cast<int>(std::ranges::count(hosts, host));
}

/// The end of this process in a group, with its sessions.
struct GroupSessions {
  explicit GroupSessions(const SessionSettings& settings)
      : comm(join_group({.name = settings.group, .timeout_s = settings.threads.timeout_s})) {
    const int local_ranks = count_local_ranks(*comm);
    std::shared_ptr<const serve::OpenModel> model;
    comm::run_together(*comm, [&] {
      file = std::make_shared<const serve::ModelFile>(kWhereSessions, settings.model);
      const MeshShape mesh = serve::mesh_of_sessions(comm->world(), settings.tp_ranks);
      const serve::WeightOptions part{.tp_index = mesh_index(mesh, comm->rank(), MeshAxis::Tp),
                                      .tp_ranks = mesh.tp,
                                      .dtype = settings.dtype};
      serve::check_cache_memory(file->options(), part, settings.threads.sessions.cache,
                                local_ranks);
      model = serve::open_model(*file, part);
    });
    sessions = std::make_unique<ModelSessions>(*comm, std::move(model), settings.threads.sessions);
  }

  /// Runs an action of all processes; calls of this one run one after the other. An error that is
  /// not of the arguments is of this process alone: it ends the others.
  template <class Result>
  Result run(const std::function<Result(ModelSessions&)>& action) {
    const std::lock_guard lock(calls);
    try {
      return action(*sessions);
    } catch (const InvalidArgument&) {
      throw;
    } catch (const std::exception& error) {
      comm->abort(error.what());
      throw;
    }
  }

  std::unique_ptr<comm::Communicator> comm;
  std::shared_ptr<const serve::ModelFile> file;
  std::unique_ptr<ModelSessions> sessions;
  std::mutex calls;
};

/// The modes of a caller end with its call, and the cache does not: tensors of inference mode
/// cannot be written to outside of it.
struct OwnModes {
  c10::impl::ExcludeDispatchKeyGuard below_autocast{c10::autocast_dispatch_keyset};
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad;
};

/// Ranks along cp: the first, and how many.
using RankRange = std::pair<int, int>;

plan::relayout::CacheLayout layout_of(RankRange ranks) {
  return {.extents = {}, .ranks = ranks.second, .first = ranks.first};
}

/// Functions are called without Python's lock, so close() may come while another thread is in a
/// call: the last of both ends the ranks.
class PythonSessions {
 public:
  explicit PythonSessions(const SessionSettings& settings) {
    const OwnModes modes;
    if (settings.group.empty()) {
      ranks_.file = std::make_shared<const serve::ModelFile>(kWhereSessions, settings.model);
      ranks_.threads = open_threads(*ranks_.file, settings);
    } else {
      ranks_.group = std::make_shared<GroupSessions>(settings);
      ranks_.file = ranks_.group->file;
    }
  }
  PythonSessions(const PythonSessions&) = delete;
  PythonSessions& operator=(const PythonSessions&) = delete;
  ~PythonSessions() {
    const py::gil_scoped_release no_gil;  // Threads are joined.
    close();
  }

  void close() {
    OpenRanks last;  // They end after the lock is free.
    const std::lock_guard lock(mutex_);
    std::swap(last, ranks_);
  }

  /// The result of a call that all ranks make.
  template <class Result>
  Result call(const std::function<Result(ModelSessions&)>& action) {
    const OwnModes modes;
    const OpenRanks ranks = open_ranks();
    if (ranks.group) return ranks.group->run(action);
    Result result{};
    ranks.threads->run([&](ModelSessions& sessions, int rank) {
      Result own = action(sessions);
      if (rank == 0) result = std::move(own);
    });
    return result;
  }

  SessionId open() {
    return call<SessionId>([](ModelSessions& s) { return s.sessions().open(); });
  }
  SessionId fork(SessionId session) {
    return call<SessionId>([&](ModelSessions& s) { return s.sessions().fork(session); });
  }
  void release(SessionId session) {
    call<bool>([&](ModelSessions& s) {
      s.sessions().release(session);
      return true;
    });
  }
  std::int64_t tokens(SessionId session) {
    return call<std::int64_t>([&](ModelSessions& s) { return s.sessions().tokens(session); });
  }
  at::Tensor prefill(const std::vector<std::pair<SessionId, std::vector<std::int64_t>>>& pairs) {
    std::vector<serve::Prompt> prompts;
    for (const auto& [session, tokens] : pairs) prompts.push_back({session, tokens});
    return call<at::Tensor>([&](ModelSessions& s) { return s.prefill(prompts); });
  }
  at::Tensor prefill_to(SessionId session, std::vector<std::int64_t> tokens, RankRange ranks) {
    const serve::Prompt prompt{session, std::move(tokens)};
    return call<at::Tensor>(
        [&](ModelSessions& s) { return s.prefill_to(prompt, layout_of(ranks)); });
  }
  void relayout(SessionId session, RankRange ranks) {
    call<bool>([&](ModelSessions& s) {
      s.relayout(session, layout_of(ranks));
      return true;
    });
  }
  at::Tensor decode(const std::vector<std::pair<SessionId, std::int64_t>>& pairs) {
    std::vector<serve::NextToken> next;
    for (const auto& [session, token] : pairs) next.push_back({session, token});
    return call<at::Tensor>([&](ModelSessions& s) { return s.decode(next); });
  }
  /// The token at a position behind logits, which are the same bits on all ranks. That of rank 0:
  /// processes of other machines may round sums of probabilities in another way.
  std::int64_t draw(const at::Tensor& logits_V, const serve::Sampling& sampling,
                    std::int64_t position) {
    const OwnModes modes;
    const OpenRanks ranks = open_ranks();
    std::int64_t token = serve::next_token(logits_V, sampling, {.position = position});
    if (!ranks.group) return token;
    return ranks.group->run<std::int64_t>([&](ModelSessions&) {
      comm::broadcast(*ranks.group->comm, comm::array(std::span(&token, 1)), 0);
      return token;
    });
  }
  /// Tokens behind which texts of the model end.
  std::vector<std::int64_t> ends() {
    const std::shared_ptr<const serve::ModelFile> file = open_ranks().file;
    std::vector<std::int64_t> ends = file->ends();
    if (const std::optional<serve::TokenText> words = serve::words_of(*file)) {
      const std::vector<std::int64_t> more = words->ends();
      ends.insert(ends.end(), more.begin(), more.end());
    }
    return ends;
  }

 private:
  /// Threads or a group; nothing if they were closed.
  struct OpenRanks {
    std::shared_ptr<const serve::ModelFile> file;
    std::shared_ptr<serve::SessionThreads> threads;
    std::shared_ptr<GroupSessions> group;
  };

  OpenRanks open_ranks() {
    const std::lock_guard lock(mutex_);
    if (ranks_.file) return ranks_;
    fail<InvalidArgument>("Sessions: they were closed; new ones are required");
  }

  std::mutex mutex_;  ///< Guards the members behind it, not what they point to.
  OpenRanks ranks_;
};

}  // namespace

void bind_sessions(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<serve::Sampling>(module, "Sampling")
      .def(py::init(&read_sampling), py::arg("settings"));
  py::class_<PythonSessions>(module, "Sessions")
      .def(py::init([](const py::dict& fields) {
             const SessionSettings settings = read_settings(fields);
             const py::gil_scoped_release no_gil;
             return std::make_unique<PythonSessions>(settings);
           }),
           py::arg("settings"))
      .def("open", &PythonSessions::open, Release())
      .def("fork", &PythonSessions::fork, py::arg("session"), Release())
      .def("release", &PythonSessions::release, py::arg("session"), Release())
      .def("tokens", &PythonSessions::tokens, py::arg("session"), Release())
      .def("prefill", &PythonSessions::prefill, py::arg("prompts"), Release())
      .def("prefill_to", &PythonSessions::prefill_to, py::arg("session"), py::arg("tokens"),
           py::arg("ranks"), Release())
      .def("relayout", &PythonSessions::relayout, py::arg("session"), py::arg("ranks"), Release())
      .def("decode", &PythonSessions::decode, py::arg("next"), Release())
      .def("draw", &PythonSessions::draw, py::arg("logits"), py::arg("sampling"),
           py::arg("position"), Release())
      .def("ends", &PythonSessions::ends, Release())
      .def("close", &PythonSessions::close, Release());
}

}  // namespace armillary::python
