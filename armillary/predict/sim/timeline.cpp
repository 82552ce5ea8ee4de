// The timeline as JSON.
#include "armillary/predict/sim/timeline.h"

#include <nlohmann/json.hpp>

#include "armillary/core/json_text.h"

namespace armillary::sim {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const RankTimeline& rank, const plan::Vocabulary& words) {
  Json json{{"end_s", rank.end_s},
            {"compute_s", rank.compute_s},
            {"messages_s", rank.messages_s},
            {"exposed_s", rank.exposed_s},
            {"idle_s", rank.idle_s},
            {"sent_bytes", rank.sent_bytes},
            {"received_bytes", rank.received_bytes},
            {"slot_bytes", rank.slot_bytes},
            {"external_bytes", rank.external_bytes},
            {"peak_bytes", rank.peak_bytes}};
  Json& kinds = json["compute_by_kind_s"] = Json::object();
  for (std::size_t kind = 0; kind < words.kinds.size(); ++kind) {
    const double seconds = rank.compute_by_kind_s[kind];
    if (seconds > 0) kinds[std::string(words.kinds[kind].name)] = seconds;
  }
  // Times of ops are kept on demand, and memory over time with them.
  if (rank.ops.empty()) return json;
  Json& ops = json["ops"] = Json::array();
  for (const OpTime& op : rank.ops) ops.push_back({op.start_s, op.end_s});
  Json& memory = json["memory"] = Json::array();
  for (const MemoryUse& use : rank.memory) memory.push_back({use.time_s, use.bytes});
  return json;
}

Json to_json(const Flow& flow) {
  Json json{{"from", flow.from},       {"to", flow.to},       {"send", flow.send},
            {"recv", flow.recv},       {"bytes", flow.bytes}, {"matched_s", flow.matched_s},
            {"start_s", flow.start_s}, {"end_s", flow.end_s}};
  if (flow.passed_bytes > 0) json["passed_bytes"] = flow.passed_bytes;
  Json& rates = json["rates"] = Json::array();
  for (const FlowRate& rate : flow.rates) rates.push_back({rate.time_s, rate.bytes_per_s});
  return json;
}

}  // namespace

std::string to_json(const Timeline& timeline) {
  Json json{{"strategy", timeline.strategy}, {"pass", to_string(timeline.pass)},
            {"cluster", timeline.cluster},   {"world", timeline.world},
            {"end_s", timeline.end_s},       {"flow_events", timeline.flow_events}};
  for (const char* key : {"ranks", "channels"}) json[key] = Json::array();
  for (const RankTimeline& rank : timeline.ranks)
    json["ranks"].push_back(to_json(rank, *timeline.words));
  for (const ChannelUse& channel : timeline.channels) {
    json["channels"].push_back({{"name", channel.name},
                                {"bytes_per_s", channel.bytes_per_s},
                                {"bytes", channel.bytes},
                                {"busy_share", channel.busy_share}});
  }
  if (!timeline.flows.empty()) {
    json["flows"] = Json::array();
    for (const Flow& flow : timeline.flows) json["flows"].push_back(to_json(flow));
  }
  return json_text(json);
}

}  // namespace armillary::sim
