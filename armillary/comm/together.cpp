// together.cpp: an error travels as its kind, a number, and its text. Every rank learns the kinds
// of all ranks, or that of the root, then the text of the first that failed.
#include "armillary/comm/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::comm {
namespace {

/// Class of an error, as ranks tell each other.
enum class ErrorKind : std::int64_t { None, InvalidArgument, IoError, PlanError, Error };

[[noreturn]] void throw_error(ErrorKind kind, const std::string& text) {
  if (kind == ErrorKind::InvalidArgument) throw InvalidArgument(text);
  if (kind == ErrorKind::IoError) throw IoError(text);
  if (kind == ErrorKind::PlanError) throw PlanError(text);
  throw Error(text);
}

/// Runs `action`. Returns the kind of its error, whose text is put into `text`, or None.
ErrorKind run(const std::function<void()>& action, std::string& text) {
  const auto told = [&](ErrorKind kind, const std::exception& error) {
    text = error_text(error);
    return kind;
  };
  try {
    action();
    return ErrorKind::None;
  } catch (const InvalidArgument& error) {
    return told(ErrorKind::InvalidArgument, error);
  } catch (const IoError& error) {
    return told(ErrorKind::IoError, error);
  } catch (const PlanError& error) {
    return told(ErrorKind::PlanError, error);
  } catch (const std::exception& error) {
    return told(ErrorKind::Error, error);
  }
}

}  // namespace

void meet(Communicator& comm) {
  try {
    barrier(comm);
  } catch (const Error&) {
    // A rank has thrown already, so it had passed the barrier, and all ranks had called. Or a rank
    // is in another collective; what this one throws says more than that.
  }
}

void run_together(Communicator& comm, const std::function<void()>& action) {
  // The hash tells whether two ranks have the same text.
  struct OutcomeRecord {
    ErrorKind kind = ErrorKind::None;
    std::uint64_t text_hash = 0;
    bool operator==(const OutcomeRecord&) const = default;
  };
  std::string text;
  OutcomeRecord mine{.kind = run(action, text)};
  mine.text_hash = std::hash<std::string>()(text);
  std::vector<OutcomeRecord> all(comm.world());
  all_gather(comm, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  const auto first = std::ranges::find_if(
      all, [](const OutcomeRecord& outcome) { return outcome.kind != ErrorKind::None; });
  if (first == all.end()) return;

  // The same text on all ranks is a matter of none in particular.
  const auto rank = static_cast<int>(first - all.begin());
  const bool same = std::ranges::count(all, *first) == comm.world();
  const std::string told = text_of_rank(comm, rank, text);
  meet(comm);
  throw_error(first->kind, same ? told : fmt::format("rank {}: {}", rank, told));
}

std::string text_of_rank(Communicator& comm, int root, const std::function<std::string()>& make) {
  std::string text;
  ErrorKind kind = ErrorKind::None;
  if (comm.rank() == root) kind = run([&] { text = make(); }, text);
  // The size of the text travels first.
  std::array<std::int64_t, 2> head{static_cast<std::int64_t>(kind),
                                   static_cast<std::int64_t>(text.size())};
  broadcast(comm, array(std::span<std::int64_t>(head)), root);
  kind = static_cast<ErrorKind>(head[0]);
  text.resize(static_cast<std::size_t>(head[1]));
  broadcast(comm, std::as_writable_bytes(std::span(text)), root);
  if (kind == ErrorKind::None) return text;
  meet(comm);
  throw_error(kind, text);
}

std::string text_of_rank(Communicator& comm, int root, const std::string& text) {
  return text_of_rank(comm, root, [&] { return text; });
}

}  // namespace armillary::comm
