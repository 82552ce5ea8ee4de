// Clusters as TOML texts, which parse_cluster reads again. Numbers are written in the units of
// their keys (toml_table.h).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <sstream>

#include "armillary/predict/sim/cluster.h"
#include "armillary/predict/sim/toml_table.h"

namespace armillary::sim {
namespace {

/// A text as TOML writes it, with what must be escaped.
std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::toml_formatter(toml::value<std::string>(text), toml::format_flags::none);
  return out.str();
}

/// [[size, rate], ..], rates in the unit of the key.
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
  // Points take the place of the formula's two numbers, as KernelCurve::rate() reads them.
  if (curve.points.empty()) {
    text += fmt::format("TFLOPs = {}\nhalf_tokens = {}\n", curve.flops_per_s / kTera,
                        curve.half_tokens);
  } else {
    text += fmt::format("points = {}\n", points_text(curve.points, kTera));
  }
}

void write_host(const Host& host, std::string& text) {
  // A table or key that says the same as its absence is left out, here and below.
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
  const DeviceSpec& device = cluster.device;
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
  const auto add_products = [&](const char* key, double flops_per_s) {
    if (flops_per_s > 0) text += fmt::format("{} = {}\n", key, flops_per_s / kTera);
  };
  add_products("matmul_TFLOPs", device.matmul_flops_per_s);
  add_products("matmul_fp32_TFLOPs", device.matmul_fp32_flops_per_s);
  add_products("matmul_fp64_TFLOPs", device.matmul_fp64_flops_per_s);
  if (device.host_bytes_per_s > 0) {
    text += fmt::format("host_GBps = {}\n", device.host_bytes_per_s / kGiga);
  }
  text += fmt::format("launch_us = {}\nslowdown = [{}]\n", device.launch_s / kMicro,
                      fmt::join(device.slowdown, ", "));
  if (device.carry_bytes_per_s != kNoCap) {
    text += fmt::format("carry_GBps = {}\n", device.carry_bytes_per_s / kGiga);
  }
  if (device.mask_edges) text += "mask_edges = true\n";
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
