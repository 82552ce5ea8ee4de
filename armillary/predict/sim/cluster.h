// cluster.h: a cluster as numbers: devices, nodes and links, read from a TOML file or a preset.
//
//   preset or file --load_cluster--> Cluster --Topology--> routes between ranks      (topology.h)
//                                       '----DeviceCosts--> seconds of compute ops   (cost.h)
//
// Units. In memory everything is in SI base units: seconds, bytes, bytes/s, FLOP/s. Files have
// units in the names of their keys: `GBps` is 1e9 bytes/s in one direction, `TFLOPs` 1e12 FLOP/s,
// `us` microseconds, `GiB` 2^30 bytes. docs/simulation.md describes the file format.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/predict/sim/curves.h"

namespace armillary::sim {

inline constexpr double kNoCap = std::numeric_limits<double>::infinity();

/// One accelerator or one rank's share of a CPU. All devices of a cluster are alike.
struct DeviceSpec {
  std::string name;
  double memory_bytes = 0;
  double peak_flops_per_s = 0;    ///< The vendor's figure; for utilisation only.
  double matmul_flops_per_s = 0;  ///< Reached by large matrix products; 0: not known.
  // The same in one dtype (device_dtype.h); 0: not known.
  double matmul_fp32_flops_per_s = 0;
  double matmul_fp64_flops_per_s = 0;
  double memory_bytes_per_s = 0;    ///< Reached by copies, merges and sums, reads plus writes.
  double host_bytes_per_s = 0;      ///< To or from its host; 0: one memory, in which copies go.
  std::vector<MemoryCurve> memory;  ///< The same of some kinds of ops, by bytes.
  double launch_s = 0;              ///< Added to every op of the compute lane.
  /// Factor on the time of compute while messages are in flight: entry n for n messages in the
  /// direction that has more of them, the last entry for more. Entry 0 is 1.
  std::vector<double> slowdown{1};
  std::vector<KernelCurve> kernels;
  /// An op pays for the length of the mask's edges in it, by the difference of the causal and the
  /// full curve; false: pairs of blocks that an edge cuts take the causal curve, at the size of the
  /// op.
  bool mask_edges = false;
  /// Bytes/s at which an op that attends reads the accumulators that it adds to; a curve is that of
  /// an op that only writes them. kNoCap: no time.
  double carry_bytes_per_s = kNoCap;
  bool operator==(const DeviceSpec&) const = default;
};

/// A rule for links of a topology. `from` and `to` name its ends with placeholders, and the rule
/// makes one link for each different pair of names:
///
///   {n}       the node; {n/4} is the group of 4 nodes it is in, {n%4} its place in the group
///   {i}       the device in its node, likewise {i/2} and {i%2}; {i*2/3} is of twice its number
///   {j}       a device of the same node with j > i, for links between all pairs
///   device    the device (n, i); `device{j}` is the device (n, j). Other names are switches.
struct LinkRule {
  std::string from;
  std::string to;
  double bytes_per_s = 0;             ///< Capacity of each direction, shared by all flows.
  double latency_s = 0;               ///< Added once per message that crosses the link.
  double flow_bytes_per_s = kNoCap;   ///< Largest rate of one flow.
  std::vector<RatePoint> flow_rates;  ///< Largest rate of one flow by bytes; empty: not limited.
  bool half_duplex = false;           ///< Both directions share one capacity.
  /// Loss by flows that disturb each other, as on PCIe root complexes: n flows share the capacity
  /// divided by 1 + crowding * (n - 1).
  double crowding = 0;
  /// Bytes that each direction passes at once after a pause, as a token bucket does; they come back
  /// at the rate of the link while nothing flows.
  double burst_bytes = 0;
  bool operator==(const LinkRule&) const = default;
};

/// The engine that moves messages.
struct Messages {
  double latency_s = 0;  ///< From the time when both ends are ready to the first byte.
  /// True: a batch of a lane starts when the batch before it is complete, as in NCCL. False: it
  /// starts as soon as it may, after the batch before has started, as in MPI.
  bool serial = true;
  /// Messages that the plan marks `zero_copy` take only the latency between ranks of one node.
  bool zero_copy = false;
  /// Messages from one rank to another flow one after the other, as on one connection of tcp.
  /// False: at the same time.
  bool in_order = false;
  bool operator==(const Messages&) const = default;
};

/// The threads that drive the devices. The defaults are those of a GPU: a thread of its own queues
/// ops, which costs nothing here.
struct Host {
  double forward_s = 0;   ///< Work of a call of attention before its first op.
  double backward_s = 0;  ///< The same of its backward pass.
  /// Bytes of each of ceil(log2 world) exchanges before the first message of forward, in which
  /// ranks agree on the call. A rank computes meanwhile, after its spin time. 0: they do not.
  double agreement_bytes = 0;
  /// The thread that starts messages is the one that computes: they start between two ops.
  bool computes = false;
  /// A message within a node that is not zero copy is copied by a rank, which does nothing else
  /// meanwhile: by the receiver if it is idle, else by the rank that came second.
  bool copies = false;
  /// Cores that all devices share: if more ranks compute, each is slower. 0: each has its own.
  int cores = 0;
  bool operator==(const Host&) const = default;

  /// Spin time: that for which a rank waits for the others to agree before it computes. At least
  /// these seconds; if the thread that starts messages computes, at least this share of the first
  /// op that attends. That of processes in attention/attention_call.cpp; threads agree in less.
  static constexpr double kSpinSeconds = 500e-6;
  static constexpr double kSpinOps = 0.5;
};

/// The whole. Device d is device d % devices_per_node of node d / devices_per_node.
struct Cluster {
  std::string name;
  std::string summary;  ///< One line.
  int nodes = 1;
  int devices_per_node = 1;
  DeviceSpec device;
  Messages messages;
  Host host;
  std::vector<LinkRule> links;
  bool operator==(const Cluster&) const = default;

  int devices() const { return nodes * devices_per_node; }
  /// Whether a link passes bytes at once after a pause (LinkRule::burst_bytes).
  bool has_bursts() const {
    return std::any_of(links.begin(), links.end(),
                       [](const LinkRule& link) { return link.burst_bytes > 0; });
  }
};

/// Parses a description. `origin` names it in errors, which have the line.
/// @throws InvalidArgument for text that is no TOML, an unknown key (with the nearest), a key that
/// is missing, a value of another type, a capacity, rate or size that is not above zero, or a
/// slowdown below 1.
Cluster parse_cluster(std::string_view text, const std::string& origin);

/// The text that parse_cluster() reads. parse_cluster(to_toml(c), ..) == c.
std::string to_toml(const Cluster& cluster);

/// A preset, with other numbers of nodes if asked for, or a file: `c6`, `c1:nodes=4`, `my.toml`. A
/// name with a '/' or that ends with `.toml` is a file.
/// @throws InvalidArgument for a preset that does not exist (with the nearest), a file whose links
/// do not connect all devices, or as parse_cluster(); IoError for a file that cannot be read.
Cluster load_cluster(const std::string& name);

/// The names of all presets, in alphabetical order.
std::vector<std::string> preset_names();

}  // namespace armillary::sim
