// shared_choice.cpp: a choice travels as text. Its sizes go first, with the kind of error if rank 0
// could not choose; then all ranks throw that error, none before all have it.
#include "armillary/attention/shared_choice.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"

namespace armillary::attention {
namespace {

enum class Outcome : std::int64_t { Chosen, InvalidArgument, IoError, Error };

/// A choice, or the text of the error, as it travels.
struct Told {
  Outcome outcome = Outcome::Chosen;
  bool is_new = false;
  std::string strategy;
  std::string line;  ///< Or why there is no choice.
};

Told ask(const Choose& choose) {
  const auto failed = [](Outcome outcome, const std::exception& error) {
    return Told{.outcome = outcome, .strategy = {}, .line = error.what()};
  };
  try {
    const tune::AutomaticChoice choice = choose();
    return {.outcome = Outcome::Chosen,
            .is_new = choice.is_new,
            .strategy = to_string(choice.strategy),
            .line = choice.line};
  } catch (const InvalidArgument& error) {
    return failed(Outcome::InvalidArgument, error);
  } catch (const IoError& error) {
    return failed(Outcome::IoError, error);
  } catch (const std::exception& error) {
    return failed(Outcome::Error, error);
  }
}

/// The choice of rank 0, on every rank.
Told broadcast_from_rank_0(comm::Communicator& comm, const Told& mine) {
  std::array<std::int64_t, 4> head{static_cast<std::int64_t>(mine.outcome), mine.is_new ? 1 : 0,
                                   static_cast<std::int64_t>(mine.strategy.size()),
                                   static_cast<std::int64_t>(mine.line.size())};
  comm::broadcast(comm, comm::array(std::span<std::int64_t>(head)), 0);
  const auto [outcome, is_new, strategy_size, line_size] = head;
  std::string text = mine.strategy + mine.line;
  text.resize(static_cast<std::size_t>(strategy_size + line_size));
  comm::broadcast(comm, std::as_writable_bytes(std::span(text)), 0);
  const auto split = static_cast<std::size_t>(strategy_size);
  return {.outcome = static_cast<Outcome>(outcome),
          .is_new = is_new != 0,
          .strategy = text.substr(0, split),
          .line = text.substr(split)};
}

/// Throws when all ranks know what to throw: the first that throws ends the group.
[[noreturn]] void throw_on_all(comm::Communicator& comm, const Told& told) {
  try {
    comm::barrier(comm);
  } catch (const CommError&) {
    // A rank has thrown already, so it had passed the barrier, and all ranks had called.
  }
  if (told.outcome == Outcome::InvalidArgument) throw InvalidArgument(told.line);
  if (told.outcome == Outcome::IoError) throw IoError(told.line);
  throw Error(told.line);
}

}  // namespace

tune::AutomaticChoice choose_together(comm::Communicator& comm, const Choose& choose) {
  Told told = broadcast_from_rank_0(comm, comm.rank() == 0 ? ask(choose) : Told{});
  if (told.outcome != Outcome::Chosen) throw_on_all(comm, told);
  return {.strategy = plan::parse_strategy(told.strategy),
          .line = std::move(told.line),
          .is_new = told.is_new};
}

tune::AutomaticChoice choose_together(comm::Communicator& comm, const std::string& text,
                                      const plan::Problem& problem) {
  tune::AutomaticChoice choice = choose_together(comm, [&] { return tune::choose(text, problem); });
  if (comm.rank() != 0) tune::remember(text, problem, choice);
  return choice;
}

const plan::Strategy* SharedChoices::find(const std::string& text,
                                          const plan::Problem& problem) const {
  for (const Entry& entry : entries_) {
    if (entry.text == text && entry.problem == problem) return &entry.strategy;
  }
  return nullptr;
}

const plan::Strategy& SharedChoices::add(const std::string& text, const plan::Problem& problem,
                                         plan::Strategy strategy) {
  constexpr std::size_t kMost = 64;
  entries_.push_front({text, problem, std::move(strategy)});
  if (entries_.size() > kMost) entries_.pop_back();
  return entries_.front().strategy;
}

}  // namespace armillary::attention
