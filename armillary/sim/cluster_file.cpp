// Descriptions of clusters as TOML. Reading is strict: a table knows which of its keys were asked
// for, and refuses the others at its end.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/sim/cluster.h"
#include "armillary/sim/presets.h"
#include "armillary/sim/topology.h"

namespace armillary::sim {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;
constexpr double kMicro = 1e-6;

/// Values that a number may have.
enum class Sign : std::uint8_t { Positive, NotNegative };

/// One table of a description.
class Table {
 public:
  Table(const toml::table& table, std::string origin, std::string path)
      : table_(table), origin_(std::move(origin)), path_(std::move(path)) {}

  /// Beginning of every message: `cluster: my.toml:7: `.
  std::string where(const toml::node* node = nullptr) const {
    const toml::source_region& source = node == nullptr ? table_.source() : node->source();
    return fmt::format("cluster: {}:{}: ", origin_, source.begin.line);
  }
  std::string path(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }

  /// The value of a key, or nothing. Every key that is allowed is asked for.
  const toml::node* find(std::string_view key) {
    if (std::ranges::find(asked_, key) == asked_.end()) asked_.emplace_back(key);
    return table_.get(key);
  }
  const toml::node& get(std::string_view key) {
    const toml::node* node = find(key);
    if (node == nullptr) {
      std::vector<std::string> given;
      for (const auto& [name, value] : table_) given.emplace_back(name.str());
      const std::string nearest = nearest_name(key, given);
      fail<InvalidArgument>("{}{} is missing; this key is required{}", where(), path(key),
                            nearest.empty() ? "" : "; nearest of those given: " + nearest);
    }
    return *node;
  }
  std::optional<double> number(std::string_view key, Sign sign) {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    return to_number(*node, path(key), sign);
  }
  double required(std::string_view key) {
    get(key);
    return *number(key, Sign::Positive);
  }
  int count(std::string_view key) {
    const toml::node& node = get(key);
    const std::optional<std::int64_t> value = node.value_exact<std::int64_t>();
    if (!value || *value < 1 || *value > plan::kMaxWorld) {
      fail<InvalidArgument>("{}{} is {}; a whole number from 1 to {} is required", where(&node),
                            path(key), text(node), plan::kMaxWorld);
    }
    return static_cast<int>(*value);
  }
  std::string string(std::string_view key) { return to_string(get(key), path(key)); }
  std::string string_or(std::string_view key, std::string otherwise) {
    const toml::node* node = find(key);
    return node == nullptr ? std::move(otherwise) : to_string(*node, path(key));
  }
  std::size_t choice(std::string_view key, std::span<const std::string_view> choices) {
    const toml::node& node = get(key);
    return parse_choice(where(&node) + path(key), to_string(node, path(key)), choices);
  }
  bool flag(std::string_view key, bool otherwise) {
    const toml::node* node = find(key);
    if (node == nullptr) return otherwise;
    const std::optional<bool> value = node->value_exact<bool>();
    if (!value) {
      fail<InvalidArgument>("{}{} is {}; true or false is required", where(node), path(key),
                            text(*node));
    }
    return *value;
  }
  /// Points [[size, rate], ..]; none without the key.
  std::vector<RatePoint> points(std::string_view key, double unit) {
    std::vector<RatePoint> points;
    const toml::node* node = find(key);
    if (node == nullptr) return points;
    for (const toml::node& item : array(*node, path(key))) {
      const toml::array& pair = array(item, path(key));
      if (pair.size() != 2) {
        fail<InvalidArgument>("{}{} has an item of {} numbers; [size, rate] is required",
                              where(&item), path(key), pair.size());
      }
      points.push_back({to_number(pair[0], path(key), Sign::Positive),
                        unit * to_number(pair[1], path(key), Sign::Positive)});
      if (points.size() > 1 && points[points.size() - 2].size >= points.back().size) {
        fail<InvalidArgument>("{}{}: size {} after {}; ascending sizes are required", where(&item),
                              path(key), points.back().size, points[points.size() - 2].size);
      }
    }
    return points;
  }
  std::vector<double> numbers(std::string_view key) {
    std::vector<double> values;
    const toml::node* node = find(key);
    if (node == nullptr) return values;
    for (const toml::node& item : array(*node, path(key))) {
      values.push_back(to_number(item, path(key), Sign::Positive));
    }
    return values;
  }
  /// The table of a key.
  Table table(std::string_view key) {
    const toml::node& node = get(key);
    if (!node.is_table()) {
      fail<InvalidArgument>("{}{} is {}; a table is required", where(&node), path(key), text(node));
    }
    return {*node.as_table(), origin_, path(key)};
  }
  /// The tables [[key]]; none without the key.
  std::vector<Table> tables(std::string_view key) {
    std::vector<Table> all;
    const toml::node* node = find(key);
    if (node == nullptr) return all;
    for (const toml::node& item : array(*node, path(key))) {
      if (!item.is_table()) {
        fail<InvalidArgument>("{}{} has {}; tables [[{}]] are required", where(&item), path(key),
                              text(item), path(key));
      }
      all.emplace_back(*item.as_table(), origin_, path(key));
    }
    return all;
  }
  /// Refuses the keys that were not asked for.
  void refuse_others() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) continue;
      const std::string nearest = nearest_name(name, asked_);
      fail<InvalidArgument>("cluster: {}:{}: {} is not a known key; {} is required{}", origin_,
                            key.source().begin.line, path(name), list_names(asked_),
                            nearest.empty() ? "" : "; nearest: " + nearest);
    }
  }
  const std::string& origin() const { return origin_; }

 private:
  static std::string text(const toml::node& node) {
    if (node.is_table()) return "a table";
    if (node.is_array()) return "a list";
    std::string result;
    node.visit([&](const auto& value) {
      if constexpr (toml::is_value<decltype(value)>) {
        if constexpr (toml::is_string<decltype(value)>) {
          result = fmt::format("'{}'", value.get());
        } else if constexpr (toml::is_number<decltype(value)> ||
                             toml::is_boolean<decltype(value)>) {
          result = fmt::format("{}", value.get());
        } else {
          result = "a date or time";
        }
      }
    });
    return result;
  }
  const toml::array& array(const toml::node& node, const std::string& path) const {
    if (!node.is_array()) {
      fail<InvalidArgument>("{}{} is {}; a list is required", where(&node), path, text(node));
    }
    return *node.as_array();
  }
  double to_number(const toml::node& node, const std::string& path, Sign sign) const {
    const std::optional<double> value = node.is_number() ? node.value<double>() : std::nullopt;
    // Sizes beyond these are mistakes, and products with them would leave the range of a double.
    constexpr double kLeast = 1e-12;
    constexpr double kMost = 1e24;
    const bool legal = value && (*value > 0 || (sign == Sign::NotNegative && *value == 0));
    if (!legal || std::isinf(*value)) {
      fail<InvalidArgument>("{}{} is {}; a number {} is required", where(&node), path, text(node),
                            sign == Sign::Positive ? "above 0" : "of at least 0");
    }
    if (*value != 0 && (*value < kLeast || *value > kMost)) {
      fail<InvalidArgument>("{}{} is {}; a number from {} to {} is required", where(&node), path,
                            text(node), kLeast, kMost);
    }
    return *value;
  }
  std::string to_string(const toml::node& node, const std::string& path) const {
    const std::optional<std::string> value = node.value_exact<std::string>();
    if (!value) {
      fail<InvalidArgument>("{}{} is {}; a text is required", where(&node), path, text(node));
    }
    return *value;
  }

  const toml::table& table_;
  std::string origin_;
  std::string path_;
  std::vector<std::string> asked_;
};

toml::table parse(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail<InvalidArgument>("cluster: {}:{}: {}; TOML is required", origin, error.source().begin.line,
                          error.description());
  }
}

/// The curves of one [[kernel]]: `both` stands for each pass or mask.
void add_kernel(Table table, std::vector<KernelCurve>& kernels) {
  constexpr std::string_view kPasses[] = {"forward", "backward", "both"};
  constexpr std::string_view kMasks[] = {"full", "causal", "both"};
  KernelCurve curve;
  const std::size_t pass = table.choice("pass", kPasses);
  const std::size_t mask = table.choice("mask", kMasks);
  curve.head_dim = table.count("head_dim");
  curve.dtype = plan::parse_dtype(table.string("dtype"));
  curve.points = table.points("points", kTera);
  if (curve.points.empty()) {
    curve.flops_per_s = table.required("TFLOPs") * kTera;
    curve.half_tokens = table.number("half_tokens", Sign::NotNegative).value_or(0);
  }
  table.refuse_others();
  for (std::size_t p = 0; p < 2; ++p) {
    for (std::size_t m = 0; m < 2; ++m) {
      if ((pass != 2 && pass != p) || (mask != 2 && mask != m)) continue;
      curve.pass = p == 0 ? plan::Pass::Forward : plan::Pass::Backward;
      curve.causal = m == 1;
      kernels.push_back(curve);
    }
  }
}

/// One [[memory]].
MemoryCurve read_memory(Table table) {
  constexpr std::array kOps{plan::OpKind::Merge, plan::OpKind::Add,    plan::OpKind::Copy,
                            plan::OpKind::Clear, plan::OpKind::Finish, plan::OpKind::Delta};
  std::array<std::string_view, kOps.size()> names;
  std::ranges::transform(kOps, names.begin(), [](plan::OpKind op) { return to_string(op); });
  MemoryCurve curve{.op = kOps[table.choice("op", names)], .points = {}};
  table.get("points");
  curve.points = table.points("points", kGiga);
  if (curve.points.empty()) {
    fail<InvalidArgument>("{}{} is empty; at least one [bytes, GBps] is required", table.where(),
                          table.path("points"));
  }
  table.refuse_others();
  return curve;
}

Device read_device(Table table);

/// A device of presets/devices.
Device known_device(const std::string& where, const std::string& name) {
  std::vector<std::string> names;
  for (const Preset& preset : device_presets()) {
    if (preset.name == name) {
      const std::string origin = fmt::format("device {}", name);
      const toml::table text = parse(preset.text, origin);
      return read_device({text, origin, ""});
    }
    names.emplace_back(preset.name);
  }
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("{}device '{}' is not known; {} is required{}", where, name,
                        list_names(names), nearest.empty() ? "" : "; nearest: " + nearest);
}

/// A device; `like` takes the values of a known one for keys that are not given.
Device read_device(Table table) {
  Device device;
  const std::string like = table.string_or("like", "");
  if (!like.empty()) device = known_device(table.where(), like);
  const auto read = [&](const char* key, double unit, double& value) {
    if (like.empty()) table.get(key);
    if (const auto given = table.number(key, Sign::Positive)) value = unit * *given;
  };
  device.name = like.empty() ? table.string("name") : table.string_or("name", device.name);
  read("memory_GiB", kGiB, device.memory_bytes);
  read("memory_GBps", kGiga, device.memory_bytes_per_s);
  read("peak_TFLOPs", kTera, device.peak_flops_per_s);
  if (const auto given = table.number("matmul_TFLOPs", Sign::Positive)) {
    device.matmul_flops_per_s = *given * kTera;
  }
  if (const auto given = table.number("launch_us", Sign::NotNegative)) {
    device.launch_s = *given * kMicro;
  }
  if (const auto given = table.number("carry_GBps", Sign::Positive)) {
    device.carry_bytes_per_s = *given * kGiga;
  }
  const std::vector<double> slowdown = table.numbers("slowdown");
  if (!slowdown.empty()) device.slowdown = slowdown;
  if (device.slowdown[0] != 1) {
    fail<InvalidArgument>("{}{} begins with {}; 1, for no messages, is required", table.where(),
                          table.path("slowdown"), device.slowdown[0]);
  }
  const auto less = std::find_if(device.slowdown.begin(), device.slowdown.end(),
                                 [](double factor) { return factor < 1; });
  if (less != device.slowdown.end()) {
    fail<InvalidArgument>("{}{} has {}; factors of at least 1 are required; nearest: 1",
                          table.where(), table.path("slowdown"), *less);
  }
  device.cut_by_block = table.flag("cut_by_block", device.cut_by_block);
  for (const Table& memory : table.tables("memory")) device.memory.push_back(read_memory(memory));
  const std::vector<Table> kernels = table.tables("kernel");
  if (!kernels.empty()) device.kernels.clear();
  for (const Table& kernel : kernels) add_kernel(kernel, device.kernels);
  if (device.kernels.empty()) {
    fail<InvalidArgument>("{}the device has no kernel; [[{}]] is required", table.where(),
                          table.path("kernel"));
  }
  table.refuse_others();
  return device;
}

Messages read_messages(Table table) {
  constexpr std::string_view kBatches[] = {"serial", "overlapped"};
  Messages messages;
  messages.latency_s = table.number("latency_us", Sign::NotNegative).value_or(0) * kMicro;
  messages.serial = table.choice("batches", kBatches) == 0;
  messages.zero_copy = table.flag("zero_copy", false);
  messages.in_order = table.flag("in_order", false);
  table.refuse_others();
  return messages;
}

Host read_host(Table table) {
  Host host;
  const auto read = [&](const char* key, double unit, double& value) {
    value = table.number(key, Sign::NotNegative).value_or(0) * unit;
  };
  read("forward_us", kMicro, host.forward_s);
  read("backward_us", kMicro, host.backward_s);
  read("agreement_bytes", 1, host.agreement_bytes);
  host.computes = table.flag("computes", false);
  host.copies = table.flag("copies", false);
  if (table.find("cores") != nullptr) host.cores = table.count("cores");
  table.refuse_others();
  return host;
}

LinkRule read_link(Table table) {
  LinkRule link;
  link.from = table.string("from");
  link.to = table.string("to");
  link.bytes_per_s = table.required("GBps") * kGiga;
  link.latency_s = table.number("latency_us", Sign::NotNegative).value_or(0) * kMicro;
  if (const auto cap = table.number("flow_GBps", Sign::Positive)) {
    link.flow_bytes_per_s = *cap * kGiga;
  }
  link.flow_rates = table.points("flow_points", kGiga);
  link.half_duplex = table.flag("half_duplex", false);
  link.crowding = table.number("crowding", Sign::NotNegative).value_or(0);
  link.burst_bytes = table.number("burst_bytes", Sign::NotNegative).value_or(0);
  table.refuse_others();
  return link;
}

std::string read_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    fail<IoError>("cluster: '{}' {}; a TOML file or the name of a preset is required", path,
                  std::filesystem::is_directory(path, error) ? "is a folder" : "does not exist");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file && !file.eof()) fail<IoError>("cluster: '{}' cannot be read", path);
  return text;
}

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& origin) {
  const toml::table document = parse(text, origin);
  Table table(document, origin, "");
  Cluster cluster;
  cluster.name = table.string("name");
  cluster.summary = table.string_or("summary", "");
  Table nodes = table.table("nodes");
  cluster.nodes = nodes.count("count");
  cluster.devices_per_node = nodes.count("devices");
  nodes.refuse_others();
  const toml::node& device = table.get("device");
  cluster.device = device.is_string() ? known_device(table.where(&device), table.string("device"))
                                      : read_device(table.table("device"));
  if (table.find("messages") != nullptr) cluster.messages = read_messages(table.table("messages"));
  if (table.find("host") != nullptr) cluster.host = read_host(table.table("host"));
  for (const Table& link : table.tables("link")) cluster.links.push_back(read_link(link));
  table.refuse_others();
  return cluster;
}

Cluster load_cluster(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".toml")) {
    Cluster cluster = parse_cluster(read_file(name), name);
    // Links must connect all devices, also those that no rank of this problem is on.
    [[maybe_unused]] const Topology checked(cluster, std::min(cluster.devices(), plan::kMaxWorld));
    return cluster;
  }
  const Spec spec = parse_spec(name);
  const Arguments arguments(fmt::format("cluster {}", spec.name), spec.arguments, {"nodes"});
  arguments.refuse_values();
  const std::vector<std::string> names = preset_names();
  for (const Preset& preset : cluster_presets()) {
    if (preset.name != spec.name) continue;
    Cluster cluster = parse_cluster(preset.text, std::string(preset.name));
    if (arguments.find("nodes")) {
      cluster.nodes = static_cast<int>(arguments.integer("nodes", {1, plan::kMaxWorld}));
    }
    return cluster;
  }
  const std::string nearest = nearest_name(spec.name, names);
  fail<InvalidArgument>("cluster: preset '{}' does not exist; {} or a .toml file is required{}",
                        spec.name, list_names(names),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : cluster_presets()) names.emplace_back(preset.name);
  return names;
}

namespace {

/// A text as TOML writes it, with what must be escaped.
std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::toml_formatter(toml::value<std::string>(text), toml::format_flags::none);
  return out.str();
}

std::string points_text(const std::vector<RatePoint>& points, double unit) {
  std::string text;
  for (const RatePoint& point : points) {
    text += fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", point.size, point.rate / unit);
  }
  return fmt::format("[{}]", text);
}

void write_kernel(const KernelCurve& curve, std::string& text) {
  text += fmt::format(
      "\n[[device.kernel]]\npass = \"{}\"\nmask = \"{}\"\nhead_dim = {}\ndtype = \"{}\"\n",
      to_string(curve.pass), curve.causal ? "causal" : "full", curve.head_dim,
      to_string(curve.dtype));
  if (curve.points.empty()) {
    text += fmt::format("TFLOPs = {}\nhalf_tokens = {}\n", curve.flops_per_s / kTera,
                        curve.half_tokens);
  } else {
    text += fmt::format("points = {}\n", points_text(curve.points, kTera));
  }
}

void write_host(const Host& host, std::string& text) {
  if (host == Host{}) return;
  text += fmt::format(
      "\n[host]\nforward_us = {}\nbackward_us = {}\nagreement_bytes = {}\ncomputes = {}\n"
      "copies = {}\n",
      host.forward_s / kMicro, host.backward_s / kMicro, host.agreement_bytes, host.computes,
      host.copies);
  if (host.cores > 0) text += fmt::format("cores = {}\n", host.cores);
}

void write_link(const LinkRule& link, std::string& text) {
  text +=
      fmt::format("\n[[link]]\nfrom = {}\nto = {}\nGBps = {}\nlatency_us = {}\n", quoted(link.from),
                  quoted(link.to), link.bytes_per_s / kGiga, link.latency_s / kMicro);
  if (link.flow_bytes_per_s != kNoCap) {
    text += fmt::format("flow_GBps = {}\n", link.flow_bytes_per_s / kGiga);
  }
  if (!link.flow_rates.empty()) {
    text += fmt::format("flow_points = {}\n", points_text(link.flow_rates, kGiga));
  }
  if (link.half_duplex) text += "half_duplex = true\n";
  if (link.crowding > 0) text += fmt::format("crowding = {}\n", link.crowding);
  if (link.burst_bytes > 0) text += fmt::format("burst_bytes = {}\n", link.burst_bytes);
}

}  // namespace

std::string to_toml(const Cluster& cluster) {
  const Device& device = cluster.device;
  std::string text = fmt::format(
      "name = {}\nsummary = {}\n\n[nodes]\ncount = {}\ndevices = {}\n\n[messages]\n"
      "latency_us = {}\nbatches = \"{}\"\nzero_copy = {}\nin_order = {}\n\n[device]\nname = "
      "{}\n"
      "memory_GiB = {}\nmemory_GBps = {}\npeak_TFLOPs = {}\n",
      quoted(cluster.name), quoted(cluster.summary), cluster.nodes, cluster.devices_per_node,
      cluster.messages.latency_s / kMicro, cluster.messages.serial ? "serial" : "overlapped",
      cluster.messages.zero_copy, cluster.messages.in_order, quoted(device.name),
      device.memory_bytes / kGiB, device.memory_bytes_per_s / kGiga,
      device.peak_flops_per_s / kTera);
  if (device.matmul_flops_per_s > 0) {
    text += fmt::format("matmul_TFLOPs = {}\n", device.matmul_flops_per_s / kTera);
  }
  text += fmt::format("launch_us = {}\nslowdown = [{}]\n", device.launch_s / kMicro,
                      fmt::join(device.slowdown, ", "));
  if (device.carry_bytes_per_s != kNoCap) {
    text += fmt::format("carry_GBps = {}\n", device.carry_bytes_per_s / kGiga);
  }
  if (device.cut_by_block) text += "cut_by_block = true\n";
  for (const MemoryCurve& curve : device.memory) {
    text += fmt::format("\n[[device.memory]]\nop = \"{}\"\npoints = {}\n", to_string(curve.op),
                        points_text(curve.points, kGiga));
  }
  for (const KernelCurve& curve : device.kernels) write_kernel(curve, text);
  write_host(cluster.host, text);
  for (const LinkRule& link : cluster.links) write_link(link, text);
  return text;
}

}  // namespace armillary::sim
