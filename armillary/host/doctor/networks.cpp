// The rules are those of Open MPI's btl/tcp and of PyTorch's ProcessGroupGloo, written down a
// second time: neither library tells what it would take before ranks meet.
#include "armillary/host/doctor/networks.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "armillary/core/error.h"

namespace armillary::doctor {
namespace {

/// The text of an IPv4 or IPv6 address; empty for others.
std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
    inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

/// The parts of a list of Open MPI; empty ones are left out, as it does.
std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  std::erase(parts, "");
  return parts;
}

/// The variable; empty if it is not set.
std::string value_of(const Lookup& lookup, const char* name) {
  const char* const value = lookup(name);
  return value == nullptr ? "" : value;
}

const Network* find(const std::vector<Network>& all, const std::string& name) {
  const auto entry = std::ranges::find(all, name, &Network::name);
  return entry == all.end() ? nullptr : &*entry;
}

/// The reason why an interface that was named cannot be used; empty if it can.
std::string problem_of(const std::vector<Network>& all, const std::string& name) {
  const Network* const network = find(all, name);
  if (network == nullptr) {
    std::vector<std::string> names;
    names.reserve(all.size());
    for (const Network& one : all) names.push_back(one.name);
    return fmt::format("there is no interface {}; {} are there", name, fmt::join(names, ", "));
  }
  return network->is_up && !network->addresses.empty()
             ? ""
             : fmt::format("interface {} is down or has no address", name);
}

/// Whether the text is an address with a mask, "10.0.0.0/8", by which Open MPI finds interfaces.
bool is_subnet(const std::string& text) {
  return text.find('/') != std::string::npos;
}

}  // namespace

std::vector<Network> networks() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) fail<Error>("doctor: interfaces: {}", std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, &freeifaddrs);
  std::vector<Network> all;
  for (const int family : {AF_UNSPEC, AF_INET, AF_INET6}) {
    // First every name, then the addresses in the order of networks.h.
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      auto network = std::ranges::find(all, entry->ifa_name, &Network::name);
      if (network == all.end()) {
        all.push_back({.name = entry->ifa_name,
                       .addresses = {},
                       .is_up = (entry->ifa_flags & IFF_UP) != 0,
                       .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
        network = all.end() - 1;
      }
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      const std::string text = text_of(entry->ifa_addr);
      if (!text.empty()) network->addresses.push_back(text);
    }
  }
  return all;
}

std::vector<std::string> addresses_of(const std::string& host) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &first) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(first, &freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    const std::string text = text_of(entry->ai_addr);
    if (std::ranges::find(addresses, text) == addresses.end()) addresses.push_back(text);
  }
  return addresses;
}

NetworkChoice mpi_networks(const std::vector<Network>& all, const Lookup& lookup) {
  NetworkChoice choice;
  const std::string included = value_of(lookup, "OMPI_MCA_btl_tcp_if_include");
  if (!included.empty()) {
    choice.names = split_at_commas(included);
    choice.why = "OMPI_MCA_btl_tcp_if_include names them";
    for (const std::string& name : choice.names) {
      if (!is_subnet(name) && choice.problem.empty()) choice.problem = problem_of(all, name);
    }
    return choice;
  }
  // Open MPI leaves loopback out by default; with an exclude list, only the names on it.
  const std::string excluded = value_of(lookup, "OMPI_MCA_btl_tcp_if_exclude");
  const std::vector<std::string> left_out = split_at_commas(excluded);
  for (const Network& network : all) {
    const bool is_named = std::ranges::find(left_out, network.name) != left_out.end();
    const bool is_out = excluded.empty() ? network.is_loopback : is_named;
    if (network.is_up && !network.addresses.empty() && !is_out)
      choice.names.push_back(network.name);
  }
  choice.why = excluded.empty() ? "all that are up, but loopback"
                                : "all that are up, but those of OMPI_MCA_btl_tcp_if_exclude";
  if (choice.names.empty()) {
    choice.problem = "no interface leads to another machine; ranks of this machine share memory";
  }
  return choice;
}

NetworkChoice gloo_network(const std::vector<Network>& all, const HostName& host,
                           const Lookup& lookup) {
  const std::string interface = value_of(lookup, "GLOO_SOCKET_IFNAME");
  if (!interface.empty()) {
    return {{interface}, "GLOO_SOCKET_IFNAME names it", problem_of(all, interface)};
  }
  // The first address of the host's name that one of the interfaces has.
  for (const std::string& address : host.addresses) {
    for (const Network& network : all) {
      if (std::ranges::find(network.addresses, address) == network.addresses.end()) continue;
      NetworkChoice choice{
          {network.name}, fmt::format("it has {}, the address of {}", address, host.name), ""};
      if (network.is_loopback) {
        choice.problem = fmt::format(
            "{} is loopback, which no other machine reaches; GLOO_SOCKET_IFNAME names "
            "another",
            network.name);
      }
      return choice;
    }
  }
  // PyTorch falls back to 127.0.0.1.
  NetworkChoice choice{{}, "the host's name has no address here, so 127.0.0.1", ""};
  for (const Network& network : all) {
    if (network.is_loopback && choice.names.empty()) choice.names.push_back(network.name);
  }
  choice.problem = fmt::format(
      "{} stands for no address of this machine; GLOO_SOCKET_IFNAME names an interface", host.name);
  return choice;
}

}  // namespace armillary::doctor
