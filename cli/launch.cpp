// The verb `launch`: starts a verb of this program as several processes of this machine and stays
// until all have ended. With MPI, mpirun starts this verb again in each process (--in-rank), which
// starts the other verb: so lines of output, signals and failures are handled by the same code.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/host/launch/launch_folder.h"
#include "armillary/host/launch/mpirun.h"
#include "armillary/host/launch/orphans.h"
#include "armillary/host/launch/process_place.h"
#include "armillary/host/launch/supervisor.h"
#include "armillary/host/recorder/diagnosis.h"
#include "armillary/host/recorder/reader.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kLaunchExamples = R"(
Output has the rank before each line. If one process fails, all are ended; the exit code is that of
the first that failed. Ctrl-C and SIGTERM ask all to stop, a second one ends them at once.

Examples:
  armillary launch -n 4 -- train recipes/default.toml --set training.dataset_path=src
  armillary launch -n 2 --engine c10d -- train my.toml --resume)";

/// Seconds that ranks have to refuse what another one has refused.
constexpr double kRefusalS = 10;

/// The command line of the verb.
struct LaunchArguments {
  std::string processes;
  std::string engine = "auto";
  bool no_prefix = false;
  bool in_rank = false;
  std::vector<std::string> words;
};

std::string this_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

/// The verb and its arguments, as a command of this program.
std::vector<std::string> words_of(const LaunchArguments& arguments) {
  std::vector<std::string> words{this_program()};
  words.insert(words.end(), arguments.words.begin(), arguments.words.end());
  return words;
}

/// A socket that listens on a port which was free. Rank 0 inherits it, so nobody can take the port.
struct MeetingPoint {
  Descriptor socket;
  int port = 0;
};

MeetingPoint open_meeting_point() {
  MeetingPoint point{Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const int socket = point.socket.get();
  if (socket < 0 || bind(socket, generic, size) != 0 || listen(socket, SOMAXCONN) != 0 ||
      getsockname(socket, generic, &size) != 0) {
    fail<Error>("launch: no free port: {}", std::strerror(errno));
  }
  point.port = ntohs(address.sin_port);
  return point;
}

/// Standard input for rank 0, unless it is a terminal: a process of the background that reads one
/// is stopped by it.
bool has_input() {
  return isatty(STDIN_FILENO) == 0;
}

/// One command for each rank, with the variables of torchrun.
std::vector<ChildCommand> c10d_commands(const LaunchArguments& arguments, int processes,
                                        const MeetingPoint& meeting, const std::string& folder) {
  const std::string world = std::to_string(processes);
  std::vector<ChildCommand> commands;
  for (int rank = 0; rank < processes; ++rank) {
    const std::string number = std::to_string(rank);
    commands.push_back({.label = fmt::format("rank {}", rank),
                        .words = words_of(arguments),
                        .variables = {{"RANK", number},
                                      {"WORLD_SIZE", world},
                                      {"LOCAL_RANK", number},
                                      {"LOCAL_WORLD_SIZE", world},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", std::to_string(meeting.port)},
                                      {"ARMILLARY_LAUNCH", "1"},
                                      {launch::kLaunchFolderVariable, folder}},
                        .takes_input = rank == 0 && has_input()});
  }
  commands[0].inherits = meeting.socket.get();
  commands[0].variables.emplace_back("ARMILLARY_LISTEN_FD", std::to_string(meeting.socket.get()));
  return commands;
}

/// The number of "rank 2" if a signal ended that rank: then it is the cause, whoever waited.
std::optional<int> killed_rank(const launch::Ending& failed) {
  int rank = -1;
  if (failed.signal == 0 || std::sscanf(failed.label.c_str(), "rank %d", &rank) != 1) return {};
  return rank;
}

/// The cause that the flight recorders tell, or nothing. `failed`: the first is the one that failed
/// first; those that were suspended were killed since.
std::optional<recorder::Diagnosis> recorded_cause(const launch::LaunchFolder& folder,
                                                  const std::vector<launch::Ending>& failed) {
  const std::string run_folder = folder.run_folder();
  if (run_folder.empty() || failed[0].by_request) return {};
  try {
    recorder::RecordedRun run = recorder::read_run(run_folder);
    for (const launch::Ending& ending : failed) {
      for (std::size_t rank = 0; ending.suspended && rank < run.states.size(); ++rank) {
        const bool is_it = ending.label == fmt::format("rank {}", rank);
        if (is_it) run.states[rank] = recorder::ProcessState::Stopped;
      }
    }
    return recorder::diagnose(run, killed_rank(failed[0]));
  } catch (const std::exception&) {
    return {};  // The files are gone, or of no use: the ranks have told what they know.
  }
}

/// "rank 2" if that rank told an error of its own, which ends it, or nothing.
std::string label_of_culprit(const std::optional<recorder::Diagnosis>& cause) {
  if (!cause || cause->causes.size() != 1) return "";
  const int rank = cause->causes[0];
  const auto& flight = cause->run.flights[static_cast<std::size_t>(rank)];
  if (!flight || flight->end != recorder::End::Failed) return "";
  return fmt::format("rank {}", rank);
}

/// The ending that counts: of a rank that is to blame, or else the first. A rank that fails takes
/// longer to end than the peers that hear of it.
launch::Ending ending_of_culprit(const std::vector<launch::Ending>& failed,
                                 const std::optional<recorder::Diagnosis>& cause) {
  const auto culprit = std::ranges::find(failed, label_of_culprit(cause), &launch::Ending::label);
  return culprit == failed.end() ? failed[0] : *culprit;
}

/// Says in one line who failed first, and why; returns the exit code of all.
int conclude(const std::vector<launch::Ending>& failed, const launch::LaunchFolder& folder,
             const std::string& verb) {
  if (failed.empty()) return kDone;
  const auto stopped = std::ranges::find_if(failed, &launch::Ending::stopped);
  // A rank has told what it refused before the signal came.
  if (stopped != failed.end() && failed.front().code != kBadInput) {
    // Training ends by itself when it is asked; only a rank that was being loaded could not.
    const bool trains = verb == "train";
    fmt::print(
        stderr, "armillary: launch: {}\n",
        trains ? "stopped before all ranks had begun"
               : fmt::format("stopped by a signal, which ends {} at once, without results", verb));
    return trains ? kDone : stopped->code;
  }
  const std::optional<recorder::Diagnosis> cause = recorded_cause(folder, failed);
  const launch::Ending counts = ending_of_culprit(failed, cause);
  // Bad input has been told by the rank itself.
  const bool tells = cause && counts.code != kBadInput;
  std::string text = launch::describe(counts);
  // Before the recorders tell anything, a rank that is stopped is the one that has not come.
  const auto suspended = std::ranges::find_if(failed, &launch::Ending::suspended);
  if (!cause && suspended != failed.end() && counts.signal == 0) {
    text = fmt::format("{}; {}", launch::describe(*suspended), text);
  }
  fmt::print(stderr, "armillary: launch: {}{}\n", text, tells ? "; cause: " + cause->cause : "");
  return counts.code;
}

/// Options of both engines: the launcher asks the flight recorders whom to wait for, and each rank
/// may say by itself what it refuses.
launch::SuperviseOptions options_of_run(const launch::LaunchFolder& folder) {
  return {.refusal_code = kBadInput, .refusal_s = kRefusalS, .blame = [&](const auto& failed) {
            return label_of_culprit(recorded_cause(folder, {failed}));
          }};
}

/// Stays until the launcher says that all ranks are to end or to stop: mpirun ends the others with
/// the first that exits.
void stay_behind_refusal(const Descriptor& failure, const Descriptor& stop) {
  constexpr int kMostStayMs = static_cast<int>(1000 * kRefusalS) + 2000;
  if (!failure.open()) return;
  std::array<pollfd, 2> lines{{{failure.get(), POLLIN, 0}, {stop.get(), POLLIN, 0}}};
  poll(lines.data(), lines.size(), kMostStayMs);
}

/// One rank under mpirun: its own process, and signals as mpirun passes them on.
int run_in_rank(const LaunchArguments& arguments) {
  const std::optional<launch::ProcessPlace> place = launch::find_place();
  if (!place) fail<InvalidArgument>("launch: --in-rank without mpirun");
  // mpirun may be killed; then this process ends, and with it the rank.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const ChildCommand command{.label = fmt::format("rank {}", place->rank),
                             .words = words_of(arguments),
                             .takes_input = place->rank == 0};
  // When one rank has failed, the others have a moment to say what they know: the one that is to
  // blame may be among them. mpirun tells it too late to ranks that do not fail with the first.
  const Descriptor stop = launch::open_stop_line();
  const Descriptor failure = launch::open_failure_line();
  launch::SuperviseOptions options{.prefix = !arguments.no_prefix,
                                   .stop_signals = {},
                                   .end_signals = {SIGTERM, SIGINT},
                                   .end_signals_grace_s = 0.9,
                                   .stop_line = stop.get(),
                                   .end_line = failure.get()};
  if (place->world > 1) options.stopped_s = 0;  // Its peers wait for it, with their own deadline.
  const std::vector<launch::Ending> failed = launch::supervise(std::span(&command, 1), options);
  for (const launch::Ending& ending : failed) {
    if (!ending.by_request) launch::tell(ending);
  }
  if (failed.empty()) return kDone;
  if (failed[0].code == kBadInput) stay_behind_refusal(failure, stop);
  return failed[0].code;
}

int run_by_mpi(const LaunchArguments& arguments, const std::string& mpirun, int processes) {
  std::vector<std::string> words{this_program(), "launch", "--in-rank"};
  if (arguments.no_prefix) words.emplace_back("--no-prefix");
  words.emplace_back("--");
  words.insert(words.end(), arguments.words.begin(), arguments.words.end());
  const launch::LaunchFolder folder;
  ChildCommand command =
      launch::mpi_command(mpirun, launch::family_of(mpirun), processes, words, folder.path());
  command.takes_input = has_input();
  const launch::Orphans orphans;
  launch::SuperviseOptions options = options_of_run(folder);
  options.prefix = false;
  options.ask = [&folder] { folder.ask_to_stop(); };
  options.on_failure = [&folder] { folder.tell_failure(); };
  options.endings = folder.endings();
  options.told_programs = processes;
  const std::vector<launch::Ending> failed = launch::supervise(std::span(&command, 1), options);
  orphans.end_all();
  return conclude(failed, folder, arguments.words[0]);
}

int run_by_c10d(const LaunchArguments& arguments, int processes) {
  const launch::LaunchFolder folder;
  const MeetingPoint meeting = open_meeting_point();
  launch::SuperviseOptions options = options_of_run(folder);
  options.prefix = !arguments.no_prefix;
  return conclude(
      launch::supervise(c10d_commands(arguments, processes, meeting, folder.path()), options),
      folder, arguments.words[0]);
}

/// Refuses a bench that has no ranks: each process would do all of it.
void require_ranks_of_bench(const std::vector<std::string>& words) {
  constexpr std::array<std::string_view, 4> kWithout{"kernel", "merge", "cores", "turns"};
  if (words.size() < 2 || std::ranges::find(kWithout, words[1]) == kWithout.end()) return;
  fail<InvalidArgument>(
      "launch: bench {}, which runs no ranks; bench layer, overlap, live or collectives is "
      "required, or "
      "`armillary bench {}` without launch",
      words[1], words[1]);
}

int run_launch(const LaunchArguments& arguments) {
  // A verb that runs ranks; others would do their work n times.
  const std::vector<std::string_view> verbs{"train", "eval",  "generate",  "sample",
                                            "check", "bench", "calibrate", "tune"};
  if (arguments.words.empty()) {
    fail<InvalidArgument>(
        "launch: no verb given; `launch -n {} -- train ..` or `-- bench ..` is "
        "required",
        arguments.processes.empty() ? "4" : arguments.processes);
  }
  parse_choice("launch: verb", arguments.words[0], verbs);
  const bool measures = std::find(arguments.words.begin(), arguments.words.end(), "--measure") !=
                        arguments.words.end();
  if (arguments.words[0] == "tune" && !measures) {
    fail<InvalidArgument>(
        "launch: tune without --measure, which runs no ranks; --measure is required");
  }
  if (arguments.words[0] == "bench") require_ranks_of_bench(arguments.words);
  if (arguments.in_rank) return run_in_rank(arguments);
  if (const std::optional<launch::ProcessPlace> outer = launch::find_place();
      outer && outer->launcher != "Slurm") {
    fail<InvalidArgument>(
        "launch: this is rank {} of {} that {} started; launch starts ranks itself and is required "
        "to be the only launcher",
        outer->rank, outer->world, outer->launcher);
  }

  if (arguments.processes.empty()) {
    fail<InvalidArgument>("launch: -n is not given; the number of processes is required");
  }
  const int processes =
      static_cast<int>(parse_integer("launch: -n", arguments.processes, {1, 1024}));
  const std::string mpirun = launch::mpi_launcher();
  constexpr std::array<std::string_view, 3> kEngines{"auto", "mpi", "c10d"};
  const std::size_t engine = parse_choice("--engine", arguments.engine, kEngines);
  if (engine == 1 && mpirun.empty()) {
    fail<InvalidArgument>(
        "launch: --engine mpi in a build without MPI; one that found Open MPI or MPICH is required "
        "(./dev setup mpi), or --engine c10d");
  }
  hold_stop_signals();  // They may come before the ranks have started; supervise() takes them.
  if (engine == 1 || (engine == 0 && !mpirun.empty())) {
    return run_by_mpi(arguments, mpirun, processes);
  }
  return run_by_c10d(arguments, processes);
}

}  // namespace

void add_launch(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* verb =
      app.add_subcommand("launch",
                         "Start train, eval, generate, sample, check, bench, calibrate or "
                         "tune as several processes of this machine");
  verb->add_option("-n,--processes", arguments->processes, "How many; each is one rank")
      ->option_text("N");
  verb->add_option("--engine", arguments->engine,
                   "How they meet: mpi, c10d, or auto: mpi if this build has it [auto]")
      ->option_text(" ");
  verb->add_flag("--no-prefix", arguments->no_prefix, "Output without the rank before each line");
  verb->add_flag("--in-rank", arguments->in_rank)->group("");
  verb->add_option("command", arguments->words, "The verb with its arguments, after --")
      ->option_text("VERB ..");
  verb->footer(kLaunchExamples);
  verb->callback([arguments, &exit_code] { exit_code = run_launch(*arguments); });
}

}  // namespace armillary::cli
