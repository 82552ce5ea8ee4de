#include "armillary/comm/started_collective.h"

#include <fmt/format.h>

#include <exception>

namespace armillary::comm {

StartedCollective::~StartedCollective() {
  if (!has_next()) return;
  std::erase(group_->root().early_, this);
  // A rank that unwinds has an error that says more.
  if (std::uncaught_exceptions() > 0) return;
  group_->abort(fmt::format("rank {} dropped {} before it was done",
                            group_->root_rank(group_->rank()), labels.front().text.data()));
}

void StartedCollective::set_next(Communicator& group, Phase next) {
  group_ = &group;
  next_ = std::move(next);
  group.root().early_.push_back(this);
}

// One that throws stays: a collective of a group that has failed is never done.
void StartedCollective::start_next() const {
  messages = next_();
  next_ = nullptr;
}

}  // namespace armillary::comm
