// contender.h: processes that take turns with the sides of this one, such as the attention of
// another library, or this program as another compiler built it.
//
// A contender is any command that speaks lines of JSON:
//
//   its first line, when ready   {"sides": ["ring", "ulysses"], "torch": "2.11"}
//   a line it reads              ring
//   its answer                   {"side": "ring", "value": 0.25}
//                             or {"side": "ring", "error": "not installed: yunchang"}
//
// It is ready when its sides are warm and their results are checked. All other keys of its first
// line are facts, such as the errors it found. An answer may have "facts": {..}, which are merged
// into them. `armillary bench kernel --on-request` is a contender; those in lab/bench/peers/ are
// others. While a contender waits for its turn it should only read: it takes no time from the
// others then.
#pragma once

#include <list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/bench/line_process.h"

namespace armillary::bench {

/// One contender. Whatever its process does, it is a reason and no failure of this program: it
/// ends, it hangs, it answers something else. Its process is ended at once then, and no side of it
/// is measured any more. A side that answers with an error leaves the other sides as they are.
class Contender {
 public:
  /// Starts `command` with /bin/sh -c and these variables (those of this process if there are
  /// none), and waits until it is ready. Every answer, the first line too, must come within
  /// `deadline_s`. @throws Error if the system gives no process.
  Contender(std::string command, double deadline_s,
            const std::vector<std::string>& environment = {});

  const std::string& command() const { return command_; }
  const std::vector<std::string>& sides() const { return sides_; }
  const nlohmann::ordered_json& facts() const { return facts_; }
  /// The reason why it takes no turns (any more), for example "no answer within 600 s"; empty while
  /// it does.
  const std::string& reason() const { return reason_; }

  /// The value of one run of a side. @throws SideRefused with the reason.
  double run(const std::string& side);

 private:
  nlohmann::ordered_json next_answer();
  void get_ready();
  [[noreturn]] void give_up(const std::string& reason);

  std::string command_;
  double deadline_s_;
  LineProcess process_;
  std::vector<std::string> sides_;
  nlohmann::ordered_json facts_ = nlohmann::ordered_json::object();
  std::string reason_;
};

/// The contenders of one measurement, in the order of their commands.
class Contenders {
 public:
  /// Starts one after the other, each when the one before is ready. @throws Error as above.
  Contenders(std::span<const std::string> commands, double deadline_s,
             const std::vector<std::string>& environment = {});

  /// Appends the sides of all contenders. A name that a side before has is numbered: `kernel` of
  /// the second contender becomes `kernel #2`. Only `cores` stays as it is, because all sides of
  /// that name are one (interleaved_timing.h). Sides must not outlive this object.
  void add_sides(std::vector<Side>& sides);

  /// [{"command": "..", "facts": {..}}, ..], with a "reason" for those that take no turns any more.
  nlohmann::ordered_json json() const;

 private:
  std::list<Contender> contenders_;  ///< A list, because sides point to its elements.
};

}  // namespace armillary::bench
