// proofs_test.cpp: proofs made in the background, once for all who ask: waiting, dropping,
// forgetting, and exceptions that reach everyone.
#include "armillary/proof/proofs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace armillary::proof {
namespace {

PassProof proof_named(const std::string& name) {
  return {.programs = {}, .wrong = name};
}

TEST(Proofs, AreMadeOnceWhoeverAsks) {
  Proofs proofs;
  std::atomic<int> calls = 0;
  const auto make = [&] {
    ++calls;
    return proof_named("a");
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        EXPECT_EQ(proofs.get({1, 2}, plan::Pass::Forward, make)->wrong, "a");
      });
    }
  }
  EXPECT_EQ(calls, 1);
  proofs.get({1, 2}, plan::Pass::Backward, make);
  proofs.get({1, 3}, plan::Pass::Forward, make);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(proofs.made(), 3);
}

TEST(Proofs, ThatHaveBegunAreWaitedFor) {
  std::atomic<bool> began = false;
  std::atomic<bool> go = false;
  Proofs proofs;
  proofs.start({1, 2}, plan::Pass::Forward, [&] {
    began = true;
    began.notify_all();
    go.wait(false);
    return proof_named("started");
  });
  proofs.start({1, 2}, plan::Pass::Forward, [] { return proof_named("again"); });
  began.wait(false);
  go = true;
  go.notify_all();
  EXPECT_EQ(proofs.get({1, 2}, plan::Pass::Forward, [] { return proof_named("asked"); })->wrong,
            "started");
  EXPECT_EQ(proofs.made(), 1);
}

// Proofs that are made ahead share one thread; a thread that needs one now makes it itself.
TEST(Proofs, WhoNeedsOneDoesNotWaitForThoseBefore) {
  std::atomic<bool> go = false;
  std::atomic<bool> began = false;
  std::thread::id of_second;
  Proofs proofs;
  proofs.start({1, 0}, plan::Pass::Forward, [&] {
    began = true;
    began.notify_all();
    go.wait(false);
    return proof_named("first");
  });
  proofs.start({2, 0}, plan::Pass::Forward, [] { return proof_named("ahead"); });
  began.wait(false);
  const auto second = proofs.get({2, 0}, plan::Pass::Forward, [&] {
    of_second = std::this_thread::get_id();
    return proof_named("now");
  });
  EXPECT_EQ(second->wrong, "now");
  EXPECT_EQ(of_second, std::this_thread::get_id());
  EXPECT_EQ(proofs.made(), 2);
  go = true;
  go.notify_all();
}

TEST(Proofs, WhatHasNotBegunIsDroppedAtTheEnd) {
  std::atomic<bool> go = false;
  std::atomic<bool> began = false;
  std::atomic<int> made = 0;
  std::jthread let_go;
  {
    Proofs proofs;
    for (std::uint64_t i = 0; i < 3; ++i) {
      proofs.start({i, 0}, plan::Pass::Forward, [&] {
        began = true;
        began.notify_all();
        go.wait(false);
        ++made;
        return proof_named("a");
      });
    }
    began.wait(false);
    let_go = std::jthread([&go] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      go = true;
      go.notify_all();
    });
  }
  EXPECT_EQ(made, 1);
}

TEST(Proofs, WhatAProofThrowsIsThrownToAllWhoAsk) {
  Proofs proofs;
  const auto make = []() -> PassProof { throw std::runtime_error("no plan"); };
  const auto other = [] { return proof_named("a"); };
  EXPECT_THROW(proofs.get({1, 2}, plan::Pass::Forward, make), std::runtime_error);
  EXPECT_THROW(proofs.get({1, 2}, plan::Pass::Forward, other), std::runtime_error);
  std::atomic<bool> began = false;
  proofs.start({1, 2}, plan::Pass::Backward, [&]() -> PassProof {
    began = true;
    began.notify_all();
    throw std::runtime_error("no plan");
  });
  began.wait(false);
  EXPECT_THROW(proofs.get({1, 2}, plan::Pass::Backward, other), std::runtime_error);
}

TEST(Proofs, TheOldestAreForgotten) {
  Proofs proofs;
  const auto make = [] { return proof_named("a"); };
  for (std::uint64_t i = 0; i <= 3072; ++i) proofs.get({i, 0}, plan::Pass::Forward, make);
  EXPECT_EQ(proofs.made(), 3073);
  proofs.get({1, 0}, plan::Pass::Forward, make);
  EXPECT_EQ(proofs.made(), 3073) << "the second is still there";
  proofs.get({0, 0}, plan::Pass::Forward, make);
  EXPECT_EQ(proofs.made(), 3074) << "the first is not";
}

}  // namespace
}  // namespace armillary::proof
