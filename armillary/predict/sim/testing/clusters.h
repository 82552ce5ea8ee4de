// clusters.h: small clusters with round numbers, for tests.
#pragma once

#include "armillary/predict/sim/cluster.h"

namespace armillary::sim::testing {

/// A device of 1 TFLOP/s whatever the size of a block, with memory that costs no time.
inline DeviceSpec round_device() {
  DeviceSpec device{
      .name = "round", .memory_bytes = 1e12, .peak_flops_per_s = 1e12, .memory_bytes_per_s = 1e30};
  for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
    for (const bool causal : {false, true}) {
      device.kernels.push_back({.pass = pass, .causal = causal, .flops_per_s = 1e12});
    }
  }
  return device;
}

/// `devices` on one switch, 1 GB/s each way, without latency.
inline Cluster flat(int devices) {
  return {.name = "flat",
          .nodes = 1,
          .devices_per_node = devices,
          .device = round_device(),
          .links = {{.from = "device", .to = "switch", .bytes_per_s = 1e9}}};
}

/// Nodes of a fast switch, joined by links of 1 GB/s for each device.
inline Cluster two_level(int nodes, int devices_per_node) {
  return {.name = "two_level",
          .nodes = nodes,
          .devices_per_node = devices_per_node,
          .device = round_device(),
          .links = {{.from = "device", .to = "nvswitch{n}", .bytes_per_s = 1e10, .latency_s = 1e-6},
                    {.from = "nvswitch{n}",
                     .to = "network",
                     .bytes_per_s = 1e9 * devices_per_node,
                     .latency_s = 5e-6}}};
}

/// Nodes of a fast switch, with a link of each device to the network.
inline Cluster nic_per_device(int nodes, int devices_per_node) {
  Cluster cluster = two_level(nodes, devices_per_node);
  cluster.name = "nic_per_device";
  cluster.links[1] = {.from = "device", .to = "network", .bytes_per_s = 1e9, .latency_s = 5e-6};
  return cluster;
}

/// The same, where devices with one place in their nodes have a network of their own.
inline Cluster rails(int nodes, int devices_per_node) {
  Cluster cluster = nic_per_device(nodes, devices_per_node);
  cluster.name = "rails";
  cluster.links[1].to = "rail{i}";
  cluster.links.push_back(
      {.from = "rail{i}", .to = "spine", .bytes_per_s = 2e9, .latency_s = 1e-6});
  return cluster;
}

/// Nodes of 8 devices: two to a PCIe switch, four to a host bridge, bridges joined by one link.
inline Cluster pcie_tree(int nodes) {
  return {
      .name = "pcie_tree",
      .nodes = nodes,
      .devices_per_node = 8,
      .device = round_device(),
      .links = {{.from = "device", .to = "pcie{n}.{i/2}", .bytes_per_s = 3e9, .latency_s = 1e-6},
                {.from = "pcie{n}.{i/2}", .to = "host{n}.{i/4}", .bytes_per_s = 4e9},
                {.from = "host{n}.{i/4}", .to = "bridge{n}", .bytes_per_s = 5e9},
                {.from = "bridge{n}", .to = "network", .bytes_per_s = 2e9, .latency_s = 5e-6}}};
}

}  // namespace armillary::sim::testing
