// The verb `explain`: reads the flight files of a run folder and prints the cause, a line for each
// rank, and who waits for whom. The logic is in host/recorder/diagnosis.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/names.h"
#include "armillary/host/recorder/diagnosis.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/host/recorder/trace.h"
#include "cli/output_file.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kExplainExamples = R"(
Examples:
  armillary explain runs/default
  armillary explain runs/default --json | jq .cause
  armillary explain runs/default --trace trace.json        for ui.perfetto.dev

The cause is the rank that the others wait for, or that failed first. A run that goes on can be
asked too. --json has the last ops of every rank (times in seconds since 1970).
Exit code: 0 done, 2 no folder of a run, or a damaged file.)";

using recorder::Diagnosis;
using recorder::Flight;
using recorder::RecordedRun;

constexpr double kNs = 1e-9;

/// Seconds since 1970.
double seconds(const Flight& flight, std::int64_t monotonic_ns) {
  return static_cast<double>(flight.wall_ns(monotonic_ns)) * kNs;
}

/// Seconds for a reader: nothing shorter than a millisecond is seen in files.
double to_ms(double seconds) {
  return std::round(seconds * 1000) / 1000;
}

/// Seconds for which the rank has waited in attention, up to the reference of the diagnosis.
double waits_s(const Flight& flight, const Diagnosis& diagnosis) {
  if (flight.wait == recorder::Wait::None) return 0;
  const std::int64_t since = flight.wall_ns(flight.wait_since_ns);
  return static_cast<double>(std::max<std::int64_t>(diagnosis.reference_ns - since, 0)) * kNs;
}

std::string_view end_text(const Flight& flight) {
  switch (flight.end) {
    case recorder::End::Done:
      return "ended";
    case recorder::End::Failed:
    case recorder::End::FailedWithPeers:
      return "failed";
    case recorder::End::Running:
      break;
  }
  return "no end";
}

/// `rank 2: host h, pid 123, alive; no end; silent for 4.2 s; step 17, ring forward of call 3, ..`,
/// of a rank with a file.
std::string line_of(const Diagnosis& diagnosis, int rank) {
  const auto& flight = diagnosis.run.flights[rank];
  std::string line =
      fmt::format("rank {}: host {}, pid {}, {}; {}; silent for {:.3g} s; {}", rank, flight->host,
                  flight->pid, to_string(diagnosis.run.states[rank]), end_text(*flight),
                  to_ms(silent_s(*flight, diagnosis.reference_ns)), recorder::place_of(*flight));
  if (flight->wait != recorder::Wait::None) {
    line += fmt::format("; waits {:.3g} s for {}", to_ms(waits_s(*flight, diagnosis)),
                        recorder::wait_text(*flight));
  }
  if (flight->torn > 0) line += fmt::format("; {} half written", count_of(flight->torn, "op"));
  if (!flight->reason.empty()) line += fmt::format("\n  {}", flight->reason);
  return line;
}

/// The graph: `waits: 0 -> 3; 1 -> 0, 2`.
std::string graph_of(const Diagnosis& diagnosis) {
  std::string text;
  for (std::size_t rank = 0; rank < diagnosis.waits_for.size(); ++rank) {
    if (diagnosis.waits_for[rank].empty()) continue;
    text += fmt::format("{}{} -> {}", text.empty() ? "waits: " : "; ", rank,
                        list_numbers(diagnosis.waits_for[rank], ", "));
  }
  return text;
}

/// One op; messages have a peer and bytes.
nlohmann::ordered_json json_of(const Flight& flight, const recorder::RecordedOp& op) {
  nlohmann::ordered_json json{{"number", op.number},
                              {"step", op.step},
                              {"call", op.call},
                              {"pass", op.pass},
                              {"plan_step", op.op.plan_step},
                              {"op", op.op.index},
                              {"kind", op.kind},
                              {"lane", op.op.lane},
                              {"start_s", seconds(flight, op.start_ns)},
                              {"done", op.complete}};
  if (op.complete) json["end_s"] = seconds(flight, op.end_ns);
  if (op.is_message()) {
    json["peer"] = op.op.peer;
    json["bytes"] = op.op.bytes;
  }
  return json;
}

/// One rank at the time of the diagnosis, and all its ops.
nlohmann::ordered_json json_of(const RecordedRun& run, const Diagnosis& diagnosis, int rank) {
  const auto& flight = diagnosis.run.flights[rank];
  if (!flight) return {{"rank", rank}, {"file", false}};
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const recorder::RecordedOp& op : run.flights[rank]->ops) {
    ops.push_back(json_of(*flight, op));
  }
  return {{"rank", rank},
          {"file", true},
          {"host", flight->host},
          {"pid", flight->pid},
          {"process", to_string(run.states[rank])},
          {"program", flight->program},
          {"end", end_text(*flight)},
          {"reason", flight->reason},
          {"silent_s", silent_s(*flight, diagnosis.reference_ns)},
          {"step", flight->work.step},
          {"call", flight->work.call},
          {"strategy", flight->work.strategy},
          {"activity", flight->work.activity},
          {"place", recorder::place_of(*flight)},
          {"wait", recorder::wait_text(*flight)},
          {"waits_s", waits_s(*flight, diagnosis)},
          {"waits_for", diagnosis.waits_for[rank]},
          {"torn", flight->torn},
          {"ops", std::move(ops)}};
}

/// The command line of the verb.
struct ExplainArguments {
  std::string folder;
  std::string trace;
  bool json = false;
};

void run_explain(const ExplainArguments& arguments) {
  const RecordedRun run = recorder::read_run(arguments.folder);
  if (!arguments.trace.empty())
    write_file("explain", arguments.trace, recorder::to_trace(run) + "\n");
  const Diagnosis diagnosis = recorder::diagnose(run);
  const int world = static_cast<int>(run.flights.size());
  if (!arguments.json) {
    fmt::print("cause: {}\n", diagnosis.cause);
    fmt::print("run: {}, {}\n", to_string(diagnosis.verdict), count_of(world, "rank"));
    std::vector<int> without_file;
    for (int rank = 0; rank < world; ++rank) {
      if (diagnosis.run.flights[rank]) {
        fmt::print("{}\n", line_of(diagnosis, rank));
      } else {
        without_file.push_back(rank);
      }
    }
    if (!without_file.empty()) {
      fmt::print("rank{} {}: no flight file\n", plural_s(without_file.size()),
                 list_numbers(without_file));
    }
    const std::string graph = graph_of(diagnosis);
    if (!graph.empty()) fmt::print("{}\n", graph);
    return;
  }
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (int rank = 0; rank < world; ++rank) ranks.push_back(json_of(run, diagnosis, rank));
  const nlohmann::ordered_json whole{{"verdict", to_string(diagnosis.verdict)},
                                     {"cause", diagnosis.cause},
                                     {"causes", diagnosis.causes},
                                     {"cycle", diagnosis.is_cycle},
                                     {"ranks", std::move(ranks)}};
  fmt::print("{}\n", json_text(whole));
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* verb = app.add_subcommand(
      "explain", "Say who waited for whom in a run that hangs, failed or was killed");
  verb->add_option("run", arguments->folder, "Folder of the run")->option_text("RUN")->required();
  verb->add_flag("--json", arguments->json, "One JSON object");
  verb->add_option("--trace", arguments->trace,
                   "Also write the recorded ops as a trace for Perfetto, in the form of "
                   "`armillary simulate --trace`")
      ->check(not_empty());
  verb->footer(kExplainExamples);
  verb->callback([arguments, &exit_code] {
    run_explain(*arguments);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
