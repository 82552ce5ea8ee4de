// Descriptions of clusters, from TOML texts (toml_table.h) and presets. Each table has a function
// that reads its keys and refuses others; cluster_writer.cpp writes what is read here.
#include "armillary/predict/sim/cluster.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/predict/sim/presets.h"
#include "armillary/predict/sim/toml_table.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::sim {
namespace {

/// The curves of one [[kernel]]: `both` stands for each pass or mask.
void add_kernel(TomlTable table, std::vector<KernelCurve>& kernels) {
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

/// One [[memory]]; each op has one curve at most.
void add_memory(TomlTable table, std::vector<MemoryCurve>& curves) {
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
  if (std::ranges::find(curves, curve.op, &MemoryCurve::op) != curves.end()) {
    fail<InvalidArgument>("{}{}: two curves of {} given; one is required", table.where(),
                          table.path("op"), to_string(curve.op));
  }
  curves.push_back(std::move(curve));
}

DeviceSpec read_device(TomlTable table);

/// A device of presets/devices.
DeviceSpec known_device(const std::string& where, const std::string& name) {
  std::vector<std::string> names;
  for (const Preset& preset : device_presets()) {
    if (preset.name == name) {
      const std::string origin = fmt::format("device {}", name);
      const toml::table text = parse_toml("cluster", preset.text, origin);
      return read_device({text, origin, ""});
    }
    names.emplace_back(preset.name);
  }
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("{}device {} is not known; {} is required{}", where, quote(name),
                        list_names(names), nearest.empty() ? "" : "; nearest: " + nearest);
}

constexpr std::array<std::pair<const char*, double DeviceSpec::*>, 3> kProductRates{
    {{"matmul_TFLOPs", &DeviceSpec::matmul_flops_per_s},
     {"matmul_fp32_TFLOPs", &DeviceSpec::matmul_fp32_flops_per_s},
     {"matmul_fp64_TFLOPs", &DeviceSpec::matmul_fp64_flops_per_s}}};

/// A device; `like` takes the values of a known one for keys that are not given.
DeviceSpec read_device(TomlTable table) {
  DeviceSpec device;
  const std::string like = table.string_or("like", "");
  if (!like.empty()) device = known_device(table.where(), like);
  const auto read = [&](const char* key, double unit, double& value) {
    // A device of its own has no value to fall back to, so the key is required.
    if (like.empty()) table.get(key);
    if (const auto input = table.number(key, Sign::Positive)) value = unit * *input;
  };
  device.name = like.empty() ? table.string("name") : table.string_or("name", device.name);
  read("memory_GiB", kGiB, device.memory_bytes);
  read("memory_GBps", kGiga, device.memory_bytes_per_s);
  read("peak_TFLOPs", kTera, device.peak_flops_per_s);
  for (const auto& [key, member] : kProductRates) {
    if (const auto value = table.number(key, Sign::Positive)) device.*member = *value * kTera;
  }
  if (const auto value = table.number("host_GBps", Sign::Positive)) {
    device.host_bytes_per_s = *value * kGiga;
  }
  if (const auto value = table.number("launch_us", Sign::NotNegative)) {
    device.launch_s = *value * kMicro;
  }
  if (const auto value = table.number("carry_GBps", Sign::Positive)) {
    device.carry_bytes_per_s = *value * kGiga;
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
  device.mask_edges = table.flag("mask_edges", device.mask_edges);
  // Curves that are given replace those of `like`: a mixture would be of two devices.
  const std::vector<TomlTable> memories = table.tables("memory");
  if (!memories.empty()) device.memory.clear();
  for (const TomlTable& memory : memories) add_memory(memory, device.memory);
  const std::vector<TomlTable> kernels = table.tables("kernel");
  if (!kernels.empty()) device.kernels.clear();
  for (const TomlTable& kernel : kernels) add_kernel(kernel, device.kernels);
  if (device.kernels.empty()) {
    fail<InvalidArgument>("{}the device has no kernel; [[{}]] is required", table.where(),
                          table.path("kernel"));
  }
  table.refuse_others();
  return device;
}

Messages read_messages(TomlTable table) {
  constexpr std::string_view kBatches[] = {"serial", "overlapped"};
  Messages messages;
  messages.latency_s = table.number("latency_us", Sign::NotNegative).value_or(0) * kMicro;
  messages.serial = table.choice("batches", kBatches) == 0;
  messages.zero_copy = table.flag("zero_copy", false);
  messages.in_order = table.flag("in_order", false);
  table.refuse_others();
  return messages;
}

Host read_host(TomlTable table) {
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

LinkRule read_link(TomlTable table) {
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
  return read_input({.where = "cluster",
                     .required = "a TOML file or the name of a preset",
                     .most_bytes = kMostConfigurationBytes},
                    path);
}

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& origin) {
  const toml::table document = parse_toml("cluster", text, origin);
  TomlTable table(document, origin, "");
  Cluster cluster;
  cluster.name = table.string("name");
  cluster.summary = table.string_or("summary", "");
  TomlTable nodes = table.table("nodes");
  cluster.nodes = nodes.count("count");
  cluster.devices_per_node = nodes.count("devices");
  nodes.refuse_others();
  const toml::node& device = table.get("device");
  cluster.device = device.is_string() ? known_device(table.where(&device), table.string("device"))
                                      : read_device(table.table("device"));
  if (table.find("messages") != nullptr) cluster.messages = read_messages(table.table("messages"));
  if (table.find("host") != nullptr) cluster.host = read_host(table.table("host"));
  for (const TomlTable& link : table.tables("link")) cluster.links.push_back(read_link(link));
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
  fail<InvalidArgument>("cluster: preset {} does not exist; {} or a .toml file is required{}",
                        quote(spec.name), list_names(names),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : cluster_presets()) names.emplace_back(preset.name);
  return names;
}

}  // namespace armillary::sim
