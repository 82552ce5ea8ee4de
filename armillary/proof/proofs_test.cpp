// proofs_test.cpp: proofs made in the background, once for all who ask: waiting, dropping, and
// exceptions that reach everyone.
#include "armillary/proof/proofs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace armillary::proof {
namespace {

using plan::Pass;

PassProof proof_named(const std::string& name) {
  return {.programs = {}, .wrong = name};
}

std::shared_ptr<Proofs> proofs_by(Proofs::Make make) {
  return std::make_shared<Proofs>(std::move(make));
}

/// Something that happens once, and is waited for.
class Signal {
 public:
  void give() {
    given_ = true;
    given_.notify_all();
  }
  void wait() const { given_.wait(false); }

 private:
  std::atomic<bool> given_ = false;
};

TEST(Proofs, AreMadeOnceWhoeverAsks) {
  std::atomic<int> calls = 0;
  const std::int64_t before = Proofs::count();
  const auto proofs = proofs_by([&](Pass pass) {
    ++calls;
    return proof_named(std::string(to_string(pass)));
  });
  {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] { EXPECT_EQ(proofs->get(Pass::Forward)->wrong, "forward"); });
    }
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(proofs->get(Pass::Backward)->wrong, "backward");
  proofs->start(Pass::Backward);  // Known already.
  EXPECT_EQ(proofs->get(Pass::Replay)->wrong, "replay");
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(Proofs::count() - before, 3);
}

TEST(Proofs, ThatHaveBegunAreWaitedFor) {
  Signal began;
  Signal go;
  std::atomic<int> calls = 0;
  const auto proofs = proofs_by([&](Pass) {
    ++calls;
    began.give();
    go.wait();
    return proof_named("started");
  });
  proofs->start(Pass::Forward);
  proofs->start(Pass::Forward);
  began.wait();
  proofs->start(Pass::Forward);
  go.give();
  EXPECT_EQ(proofs->get(Pass::Forward)->wrong, "started");
  EXPECT_EQ(calls, 1);
}

// Proofs that are made ahead share one thread; a thread that needs one now makes it itself.
TEST(Proofs, WhoNeedsOneDoesNotWaitForThoseBefore) {
  Signal began;
  Signal go;
  const auto first = proofs_by([&](Pass) {
    began.give();
    go.wait();
    return proof_named("first");
  });
  std::thread::id of_second;
  std::atomic<int> calls = 0;
  const auto second = proofs_by([&](Pass) {
    ++calls;
    of_second = std::this_thread::get_id();
    return proof_named("now");
  });
  first->start(Pass::Forward);
  second->start(Pass::Forward);
  began.wait();
  EXPECT_EQ(second->get(Pass::Forward)->wrong, "now");
  EXPECT_EQ(of_second, std::this_thread::get_id());
  go.give();
  EXPECT_EQ(first->get(Pass::Forward)->wrong, "first");
  EXPECT_EQ(calls, 1);
}

// Nothing is kept but by those who need it: a problem that nobody holds is forgotten.
TEST(Proofs, NobodyWaitsForThoseOfAProblemThatIsGone) {
  Signal began;
  Signal go;
  const auto first = proofs_by([&](Pass) {
    began.give();
    go.wait();
    return proof_named("first");
  });
  std::atomic<int> calls = 0;
  const auto count = [&](Pass) {
    ++calls;
    return proof_named("a");
  };
  first->start(Pass::Forward);
  began.wait();
  auto gone = proofs_by(count);
  const std::weak_ptr<Proofs> left = gone;
  gone->start(Pass::Forward);
  gone.reset();
  EXPECT_TRUE(left.expired());
  const auto last = proofs_by(count);
  Signal is_last;
  const auto behind = proofs_by([&](Pass) {
    is_last.give();
    return proof_named("behind");
  });
  last->start(Pass::Forward);
  behind->start(Pass::Forward);
  go.give();
  is_last.wait();  // The worker takes them in order.
  behind->get(Pass::Forward);
  EXPECT_EQ(calls, 1) << "that of `last`";
}

// The worker holds the proofs that it is making.
TEST(Proofs, AreMadeToTheEndIfTheirProblemGoesMeanwhile) {
  Signal began;
  Signal go;
  auto state = std::make_shared<int>(7);
  const std::weak_ptr<int> left = state;
  auto proofs = proofs_by([&began, &go, state](Pass) {
    began.give();
    go.wait();
    return proof_named(std::to_string(*state));
  });
  state.reset();
  proofs->start(Pass::Forward);
  began.wait();
  proofs.reset();
  EXPECT_FALSE(left.expired());
  go.give();
  while (!left.expired()) std::this_thread::yield();
}

TEST(Proofs, WhatAProofThrowsIsThrownToAllWhoAsk) {
  Signal began;
  const auto proofs = proofs_by([&](Pass pass) -> PassProof {
    if (pass == Pass::Backward) began.give();
    throw std::runtime_error("no plan");
  });
  for (int time = 0; time < 2; ++time) {
    EXPECT_THROW(proofs->get(Pass::Forward), std::runtime_error);
  }
  proofs->start(Pass::Backward);
  began.wait();
  EXPECT_THROW(proofs->get(Pass::Backward), std::runtime_error);
}

}  // namespace
}  // namespace armillary::proof
