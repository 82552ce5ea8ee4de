// host_facts_test.cpp: facts about the machine that runs the test, as far as they hold on any.
#include "armillary/host/doctor/host_facts.h"

#include <gtest/gtest.h>

namespace armillary::doctor {
namespace {

TEST(HostFacts, TellThisMachine) {
  const HostFacts facts = host_facts();
  EXPECT_NE(facts.host, "");
  EXPECT_TRUE(facts.system.starts_with("Linux ")) << facts.system;
  EXPECT_GE(facts.cores, 1);
  EXPECT_GT(facts.memory, 1 << 26);
  EXPECT_GT(facts.memory_available, 0);
  EXPECT_LE(facts.memory_available, facts.memory);
  EXPECT_LE(facts.shared_memory_free, facts.shared_memory);
  EXPECT_GT(facts.clock_look_ns, 0);
  EXPECT_GT(facts.clock_tick_ns, 0);
}

TEST(HostFacts, SizesAreTexts) {
  EXPECT_EQ(size_text(-1), "none");
  EXPECT_EQ(size_text(512), "0.5 KiB");
  EXPECT_EQ(size_text(8 << 20), "8.0 MiB");
  EXPECT_EQ(size_text(std::int64_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace armillary::doctor
