// networks.h: the network interfaces of this machine, and those that engines of processes take.
//
//   Open MPI   every interface that is up but loopback; OMPI_MCA_btl_tcp_if_include or _exclude
//   Gloo       the interface that has the address of the host's name; GLOO_SOCKET_IFNAME
//
// The choice is that of the library, told beforehand: a wrong one shows as ranks that do not come.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace armillary::doctor {

/// One interface.
struct Network {
  std::string name;
  std::vector<std::string> addresses;  ///< IPv4, then IPv6.
  bool is_up = false;                  ///< By its administrator; a cable may still be out.
  bool is_loopback = false;
};

/// The interfaces of this machine, in the order of the kernel.
/// @throws Error if the kernel gives no list.
std::vector<Network> networks();

/// The addresses that a host's name stands for; none if it cannot be resolved.
std::vector<std::string> addresses_of(const std::string& host);

/// The interfaces that an engine takes.
struct NetworkChoice {
  std::vector<std::string> names;
  std::string why;      ///< The rule by which they were found.
  std::string problem;  ///< Empty if the choice works, as far as can be seen from here.
};

/// Value of an environment variable, or null.
using Lookup = std::function<const char*(const char* name)>;

/// Open MPI's tcp. Ranks of one machine meet in shared memory and need none of these.
NetworkChoice mpi_networks(const std::vector<Network>& all, const Lookup& lookup);

/// Gloo. `host` is this machine's name and its addresses.
struct HostName {
  std::string name;
  std::vector<std::string> addresses;
};
NetworkChoice gloo_network(const std::vector<Network>& all, const HostName& host,
                           const Lookup& lookup);

}  // namespace armillary::doctor
