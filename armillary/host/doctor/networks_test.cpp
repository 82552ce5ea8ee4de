// networks_test.cpp: the interfaces that engines would take, on machines that are written down
// here.
#include "armillary/host/doctor/networks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace armillary::doctor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<Network> kAll{
    {.name = "lo", .addresses = {"127.0.0.1", "::1"}, .is_up = true, .is_loopback = true},
    {.name = "eth0", .addresses = {"10.0.0.5"}, .is_up = true},
    {.name = "ib0", .addresses = {"10.1.0.5"}, .is_up = true},
    {.name = "eth1", .addresses = {}, .is_up = false}};

/// An environment of one variable.
Lookup with(const std::string& name, const std::string& value) {
  return [=](const char* variable) { return name == variable ? value.c_str() : nullptr; };
}
const Lookup kNothing = [](const char*) -> const char* { return nullptr; };

TEST(Networks, ThisMachineHasLoopback) {
  const std::vector<Network> all = networks();
  const auto loopback = std::ranges::find(all, true, &Network::is_loopback);
  ASSERT_NE(loopback, all.end());
  EXPECT_NE(loopback->name, "");
}

TEST(Networks, MpiTakesAllThatAreUp) {
  EXPECT_THAT(mpi_networks(kAll, kNothing).names, ElementsAre("eth0", "ib0"));
  EXPECT_EQ(mpi_networks(kAll, kNothing).problem, "");
  EXPECT_THAT(mpi_networks({kAll[0]}, kNothing).problem, HasSubstr("no interface leads"));
}

TEST(Networks, MpiTakesThoseThatAreNamed) {
  const auto included = [](const std::string& names) {
    return mpi_networks(kAll, with("OMPI_MCA_btl_tcp_if_include", names));
  };
  EXPECT_THAT(included("ib0,10.0.0.0/8").names, ElementsAre("ib0", "10.0.0.0/8"));
  EXPECT_EQ(included("ib0,10.0.0.0/8").problem, "");
  EXPECT_EQ(included("eth7").problem, "there is no interface eth7; lo, eth0, ib0, eth1 are there");
  EXPECT_THAT(included("eth1").problem, HasSubstr("is down"));
  const NetworkChoice excluded = mpi_networks(kAll, with("OMPI_MCA_btl_tcp_if_exclude", "lo,ib0"));
  EXPECT_THAT(excluded.names, ElementsAre("eth0"));
}

TEST(Networks, GlooTakesTheOneOfTheHostsName) {
  const NetworkChoice taken = gloo_network(kAll, {"node7", {"10.1.0.5"}}, kNothing);
  EXPECT_THAT(taken.names, ElementsAre("ib0"));
  EXPECT_EQ(taken.why, "it has 10.1.0.5, the address of node7");
  EXPECT_EQ(taken.problem, "");
  EXPECT_THAT(gloo_network(kAll, {"node7", {"127.0.0.1"}}, kNothing).problem,
              HasSubstr("lo is loopback"));
  const NetworkChoice lost = gloo_network(kAll, {"node7", {}}, kNothing);
  EXPECT_THAT(lost.names, ElementsAre("lo"));
  EXPECT_THAT(lost.problem, HasSubstr("node7 stands for no address"));
}

TEST(Networks, GlooTakesTheOneThatIsNamed) {
  const auto choice_of = [](const std::string& name) {
    return gloo_network(kAll, {"node7", {"10.0.0.5"}}, with("GLOO_SOCKET_IFNAME", name));
  };
  EXPECT_THAT(choice_of("ib0").names, ElementsAre("ib0"));
  EXPECT_EQ(choice_of("ib0").problem, "");
  EXPECT_THAT(choice_of("eth7").problem, HasSubstr("no interface eth7"));
}

}  // namespace
}  // namespace armillary::doctor
