// Checks of the options, and the two ways to make a group.
#include "armillary/comm/c10d.h"

#include <utility>

#include "armillary/comm/c10d/connect.h"
#include "armillary/comm/c10d/group.h"
#include "armillary/comm/group_communicator.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// @throws InvalidArgument if an option is out of range.
void expect_legal(const C10dOptions& options, const char* caller) {
  if (options.lanes < 1 || options.lanes > kMostC10dLanes) {
    fail<InvalidArgument>("{}: {} lanes; 1 to {} are required", caller, options.lanes,
                          kMostC10dLanes);
  }
  if (!(options.timeout_s > 0 && options.timeout_s <= 1e9)) {
    fail<InvalidArgument>("{}: timeout {} s; more than 0 and at most 1e9 s is required", caller,
                          options.timeout_s);
  }
}

void expect_legal(const C10dRendezvous& rendezvous) {
  if (rendezvous.world < 1 || rendezvous.rank < 0 || rendezvous.rank >= rendezvous.world) {
    fail<InvalidArgument>("run_c10d_rank: rank {} of world {}; a rank in [0, world) is required",
                          rendezvous.rank, rendezvous.world);
  }
  if (rendezvous.port < 1 || rendezvous.port > 65535) {
    fail<InvalidArgument>("run_c10d_rank: port {}; 1 to 65535 is required", rendezvous.port);
  }
}

void run_in(C10dConnections connections, const std::function<void(Communicator&)>& body,
            const C10dOptions& options) {
  C10dGroup group(std::move(connections), options.timeout_s);
  run_in(group, options.timeout_s, options.lanes, body);
}

/// A group that lives as long as its communicator, which is destroyed first.
class OwnedGroup {
 protected:
  OwnedGroup(C10dConnections connections, double timeout_s)
      : owned_(std::move(connections), timeout_s) {}
  C10dGroup owned_;
};

/// The group is the first base, so it is made before the communicator that refers to it.
class JoinedGroup : private OwnedGroup, public GroupCommunicator<C10dGroup, JoinedCommunicator> {
 public:
  JoinedGroup(C10dConnections connections, const C10dOptions& options)
      : OwnedGroup(std::move(connections), options.timeout_s),
        GroupCommunicator(owned_, options.timeout_s, options.lanes) {}
  JoinedGroup(const JoinedGroup&) = delete;
  JoinedGroup& operator=(const JoinedGroup&) = delete;
  ~JoinedGroup() override { owned_.tell_left(); }

  bool is_left() override { return owned_.is_left(); }
  bool is_told() override { return owned_.is_told(); }
  void wait_told(double most_s) override { owned_.wait_told(most_s); }
};

}  // namespace

void run_c10d_rank(const std::function<void(Communicator&)>& body, const C10dRendezvous& rendezvous,
                   const C10dOptions& options) {
  expect_legal(options, "run_c10d_rank");
  expect_legal(rendezvous);
  run_in(connect(rendezvous, options), body, options);
}

void run_on_process_group(const std::string& group_name,
                          const std::function<void(Communicator&)>& body,
                          const C10dOptions& options) {
  expect_legal(options, "run_on_process_group");
  run_in(connect(group_name, options), body, options);
}

std::unique_ptr<JoinedCommunicator> join_process_group(const std::string& group_name,
                                                       const C10dOptions& options) {
  expect_legal(options, "join_process_group");
  return std::make_unique<JoinedGroup>(connect_apart(group_name, options), options);
}

}  // namespace armillary::comm
