#include "armillary/train/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// How an action ended on a rank. Ranks exchange it as bytes.
struct Outcome {
  enum class Kind : std::int64_t { Fine, InvalidArgument, IoError, Error };
  Kind kind = Kind::Fine;
  std::uint64_t text_hash = 0;  ///< Tells whether two ranks have the same text.
  bool operator==(const Outcome&) const = default;
};

[[noreturn]] void throw_outcome(Outcome::Kind kind, const std::string& text) {
  if (kind == Outcome::Kind::InvalidArgument) throw InvalidArgument(text);
  if (kind == Outcome::Kind::IoError) throw IoError(text);
  throw Error(text);
}

}  // namespace

std::string text_of_rank(comm::Communicator& comm, std::string text, int root) {
  // Its size travels first.
  auto size = static_cast<std::int64_t>(text.size());
  comm::broadcast(comm, comm::array(std::span(&size, 1)), root);
  text.resize(static_cast<std::size_t>(size));
  comm::broadcast(comm, std::as_writable_bytes(std::span(text)), root);
  return text;
}

void meet_before_throwing(comm::Communicator& comm) {
  try {
    comm::barrier(comm);
  } catch (const CommError&) {
    // A rank has thrown already, so it had passed the barrier, and all ranks had called.
  }
}

void run_together(comm::Communicator& comm, const std::function<void()>& action) {
  Outcome mine;
  std::string text;
  const auto failed = [&](Outcome::Kind kind, const std::exception& error) {
    text = error.what();
    mine = {.kind = kind, .text_hash = std::hash<std::string>()(text)};
  };
  try {
    action();
  } catch (const InvalidArgument& error) {
    failed(Outcome::Kind::InvalidArgument, error);
  } catch (const IoError& error) {
    failed(Outcome::Kind::IoError, error);
  } catch (const std::exception& error) {
    failed(Outcome::Kind::Error, error);
  }
  std::vector<Outcome> all(comm.world());
  comm::all_gather(comm, std::as_bytes(std::span(&mine, 1)),
                   std::as_writable_bytes(std::span(all)));
  const auto first = std::ranges::find_if(
      all, [](const Outcome& outcome) { return outcome.kind != Outcome::Kind::Fine; });
  if (first == all.end()) return;

  // The same text on all ranks is a matter of none in particular.
  const auto rank = static_cast<int>(first - all.begin());
  const bool same = std::ranges::count(all, *first) == comm.world();
  const std::string told = text_of_rank(comm, text, rank);
  meet_before_throwing(comm);
  throw_outcome(first->kind, same ? told : fmt::format("rank {}: {}", rank, told));
}

}  // namespace armillary::train
