// The data of the page. Ops, views and tiles are short arrays: a pass of 64 ranks has some ten
// thousand of them. report.h lists their fields.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "armillary/core/error.h"
#include "armillary/lab/report/channel_load.h"
#include "armillary/lab/report/report.h"
#include "armillary/plan/text.h"
#include "armillary/predict/sim/cost.h"

namespace armillary::report {
namespace {

using Json = nlohmann::ordered_json;

/// Parts of the time for which the load of a channel is told.
constexpr int kLoadParts = 120;

/// Microseconds, to the nanosecond.
double us(double seconds) {
  return std::round(seconds * 1e9) / 1e3;
}

/// Runs of ids as first, last, first, last ..
Json flat(const plan::BlockIds& ids) {
  Json json = Json::array();
  for (const plan::IdRun& run : ids.runs()) {
    json.push_back(run.first);
    json.push_back(run.last);
  }
  return json;
}

/// Owners of blocks, and their runs of positions.
Json to_json(const std::vector<plan::Block>& blocks) {
  Json json = Json::array();
  for (const plan::Block& block : blocks) {
    Json runs = Json::array();
    for (const plan::Run& run : block.runs) {
      for (const std::int64_t number : {run.begin, run.count, run.step, run.width}) {
        runs.push_back(number);
      }
    }
    json.push_back({block.owner, std::move(runs)});
  }
  return json;
}

/// Bands as [q begin, q end, k begin, k end, lo, hi]; distances that do not bind are cut to the
/// lengths, for 64 bits do not fit into a number of JavaScript.
Json to_json(const plan::Mask& mask) {
  const std::int64_t most = mask.q_len() + mask.kv_len();
  Json json = Json::array();
  for (const plan::Band& band : mask.bands()) {
    json.push_back({band.q.begin, band.q.end, band.k.begin, band.k.end,
                    std::clamp(band.lo, -most, most), std::clamp(band.hi, -most, most)});
  }
  return json;
}

/// A tile as it is drawn: the first op that touches it, and its end.
struct DrawnTile {
  int first_op = -1;   ///< The first op that touches it.
  int last_step = -1;  ///< The last step of the plan that touches it.
  double end_s = 0;
  bool at_begin = false;  ///< The caller's, there before the first op.
  bool at_end = false;    ///< The caller's, there after the last op.
};

/// Lives of tiles, by tile. Tiles of the caller begin with the pass or outlive it.
std::vector<DrawnTile> tile_lives(const plan::RankProgram& program, plan::Pass pass,
                                  const sim::RankTimeline& timeline) {
  std::vector<DrawnTile> lives(program.tiles.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    for (const plan::View& view : program.ops[i].views) {
      DrawnTile& life = lives[view.tile];
      if (life.first_op < 0) life.first_op = static_cast<int>(i);
      life.last_step = std::max(life.last_step, program.ops[i].step);
      life.end_s = std::max(life.end_s, timeline.ops[i].end_s);
    }
  }
  // Forward leaves the saved tiles behind, backward finds them.
  const bool backward = pass == plan::Pass::Backward;
  for (const int tile : program.inputs) lives[tile].at_begin = true;
  for (const int tile : program.outputs) lives[tile].at_end = true;
  for (const int tile : program.saved)
    (backward ? lives[tile].at_begin : lives[tile].at_end) = true;
  return lives;
}

/// Writes the programs of one pass, with times and the words of the printed grid.
class PassWriter {
 public:
  explicit PassWriter(const ReportedPass& pass)
      : plan_(pass.plan), timeline_(pass.timeline), work_(plan_.problem, plan_.blocks, false) {
    ARMILLARY_CHECK(timeline_.ranks.size() == plan_.ranks.size());
  }

  /// One rank: ops, words of the printed grid, tiles, memory and totals.
  Json rank(std::size_t r) const {
    const plan::RankProgram& program = plan_.ranks[r];
    const sim::RankTimeline& timeline = timeline_.ranks[r];
    ARMILLARY_CHECK(timeline.ops.size() == program.ops.size());
    Json ops = Json::array();
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      ops.push_back(op(program, program.ops[i], timeline.ops[i]));
    }
    Json words = Json::array();
    for (const plan::GridWord& word : plan::grid_words(plan_, program.rank)) {
      words.push_back({word.step, word.text, word.ops});
    }
    Json memory = Json::array();
    for (const sim::MemoryUse& use : timeline.memory) {
      memory.push_back(us(use.time_s));
      memory.push_back(use.bytes);
    }
    return {{"ops", std::move(ops)},
            {"words", std::move(words)},
            {"tiles", tiles(program, timeline)},
            {"memory", std::move(memory)},
            {"compute_us", us(timeline.compute_s)},
            {"exposed_us", us(timeline.exposed_s)},
            {"sent_bytes", timeline.sent_bytes},
            {"external_bytes", timeline.external_bytes},
            {"peak_bytes", timeline.peak_bytes}};
  }

 private:
  /// [heads begin, heads end, block runs..] of a view.
  static Json view(const plan::View& view) {
    Json json = flat(view.blocks);
    json.insert(json.begin(), {view.heads.begin, view.heads.end});
    return json;
  }

  /// Five numbers that all ops have, then those of its kind.
  Json op(const plan::RankProgram& program, const plan::Op& op, const sim::OpTime& time) const {
    Json json{op.kind.number(), op.lane, op.step, us(time.start_s), us(time.end_s)};
    if (op.is_comm()) {
      json.push_back(op.peer);
      json.push_back(bytes_of(plan_.problem, plan_.blocks, program, op));
      Json tiles = Json::array();
      for (const plan::View& view : op.views) tiles.push_back(view.tile);
      json.push_back(std::move(tiles));
    } else if (attends(op) || attends_grad(op)) {
      // The first two operands are queries and keys, forward and backward.
      const sim::OpWork work = work_.of(program, op);
      json.push_back(work.full_pairs + work.cut_pairs);
      json.push_back(view(op.views[0]));
      json.push_back(view(op.views[1]));
    }
    return json;
  }

  /// All tiles, with the time in which each is held.
  Json tiles(const plan::RankProgram& program, const sim::RankTimeline& timeline) const {
    const std::vector<DrawnTile> lives = tile_lives(program, plan_.pass, timeline);
    Json json = Json::array();
    for (std::size_t t = 0; t < lives.size(); ++t) {
      const plan::Tile& tile = program.tiles[t];
      const DrawnTile& life = lives[t];
      json.push_back({tile.tensor.number(), tile.partial ? 1 : 0, tile.heads.begin, tile.heads.end,
                      flat(tile.blocks), life.first_op, life.last_step, us(life.end_s),
                      life.at_begin ? 1 : 0, life.at_end ? 1 : 0});
    }
    return json;
  }

  const plan::Plan& plan_;
  const sim::Timeline& timeline_;
  sim::WorkCounter work_;
};

/// Channels with their load in percent.
Json channels_json(const ReportedPass& pass, sim::Topology& topology) {
  Json json = Json::array();
  for (const ChannelLoad& load : channel_loads(pass.timeline, topology, kLoadParts)) {
    Json shares = Json::array();
    for (const double share : load.share) shares.push_back(std::lround(100 * share));
    json.push_back({{"name", load.name},
                    {"bytes_per_s", load.bytes_per_s},
                    {"bytes", load.bytes},
                    {"load", std::move(shares)}});
  }
  return json;
}

/// Times of a run, flat: two numbers for each op of a rank.
Json to_json(const MeasuredPass& measured) {
  Json ranks = Json::array();
  for (const std::vector<sim::OpTime>& times : measured.ranks) {
    Json ops = Json::array();
    for (const sim::OpTime& time : times) {
      ops.push_back(us(time.start_s));
      ops.push_back(us(time.end_s));
    }
    ranks.push_back(std::move(ops));
  }
  return {{"run", measured.run},
          {"step", measured.step},
          {"call", measured.call},
          {"end_us", us(measured.end_s)},
          {"ranks", std::move(ranks)}};
}

Json to_json(const ReportedPass& pass, sim::Topology& topology) {
  const PassWriter writer(pass);
  Json ranks = Json::array();
  for (std::size_t r = 0; r < pass.plan.ranks.size(); ++r) ranks.push_back(writer.rank(r));
  Json json{{"pass", to_string(pass.plan.pass)},
            {"end_us", us(pass.timeline.end_s)},
            {"ranks", std::move(ranks)},
            {"channels", channels_json(pass, topology)}};
  if (pass.measured) json["measured"] = to_json(*pass.measured);
  return json;
}

/// Rows of the table of strategies.
Json to_json(const std::vector<sim::StrategyTimes>& rows) {
  Json json = Json::array();
  for (const sim::StrategyTimes& row : rows) {
    Json passes = Json::array();
    for (const sim::PassTime& pass : row.passes) {
      passes.push_back({us(pass.end_s), us(pass.exposed_s), pass.sent_bytes});
    }
    json.push_back({{"name", to_string(row.strategy)},
                    {"total_us", us(row.total_s())},
                    {"passes", std::move(passes)},
                    {"memory_bytes", row.memory_bytes},
                    {"fits", row.fits}});
  }
  return json;
}

Json to_json(const std::vector<ReportedPhase>& phases) {
  Json json = Json::array();
  for (const ReportedPhase& phase : phases) {
    Json terms = Json::array();
    for (const auto& [name, seconds] : phase.terms) terms.push_back({name, us(seconds)});
    json.push_back(
        {{"name", phase.name}, {"total_us", us(phase.total_s)}, {"terms", std::move(terms)}});
  }
  return json;
}

/// The part of a cluster that the page shows; links are in the list of channels.
Json to_json(const sim::Cluster& cluster) {
  return {{"name", cluster.name},
          {"summary", cluster.summary},
          {"devices_per_node", cluster.devices_per_node},
          {"device", cluster.device.name},
          {"memory_bytes", cluster.device.memory_bytes}};
}

/// Names by number, up to and with the last.
template <class Enum>
Json names_up_to(Enum last) {
  Json json = Json::array();
  for (int i = 0; i <= static_cast<int>(last); ++i) json.push_back(to_string(static_cast<Enum>(i)));
  return json;
}

}  // namespace

std::string to_json(const Report& report) {
  const plan::Plan& plan = report.passes.front().plan;
  const plan::Problem& problem = plan.problem;
  sim::Topology topology(report.cluster, problem.world);
  Json passes = Json::array();
  for (const ReportedPass& pass : report.passes) passes.push_back(to_json(pass, topology));
  const Json json{{"format", 1},
                  {"strategy", plan.strategy},
                  {"mask", report.mask},
                  {"layout", to_string(problem.layout)},
                  {"dtype", to_string(problem.dtype)},
                  {"wire", to_string(problem.transfer_dtype)},
                  {"world", problem.world},
                  {"batch", problem.batch},
                  {"heads", problem.heads},
                  {"kv_heads", problem.kv_heads},
                  {"head_dim", problem.head_dim},
                  {"value_dim", problem.value_dim},
                  {"q_len", problem.mask.q_len()},
                  {"kv_len", problem.mask.kv_len()},
                  {"bands", to_json(problem.mask)},
                  {"q_blocks", to_json(plan.blocks.q)},
                  {"kv_blocks", to_json(plan.blocks.kv)},
                  {"kinds", names_up_to(plan::OpKind::AttendGradAll)},
                  {"tensors", names_up_to(plan::Tensor::DV)},
                  {"cluster", to_json(report.cluster)},
                  {"passes", std::move(passes)},
                  {"strategies", to_json(report.strategies)},
                  {"machines", report.machines},
                  {"phases", to_json(report.phases)},
                  {"phase_notes", report.phase_notes}};
  // Names of files may not be valid UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace armillary::report
