// The begin and the end of a group: options, and reasons against NCCL that any rank may have. Ranks
// gather both before NCCL is used, so that all throw if one does; a rank that fails later ends the
// host group with its reason, before it waits for NCCL.
#include "armillary/comm/nccl.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/nccl/communicator.h"
#include "armillary/comm/nccl/run.h"
#include "armillary/comm/reason.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// A rank's options, and its reason not to begin, which is padded with zeros.
struct Offer {
  std::int32_t lanes = 0;
  std::int32_t blocks = 0;
  std::array<char, 504> reason = {};
};

/// The reason why this rank cannot begin; empty if it can. Fills in the device.
std::string reason_against(NcclApi* api, const std::string& missing, const Communicator& host,
                           NcclOptions& options) {
  if (!api) return missing;
  if (options.lanes < 1) {
    return fmt::format("run_on_nccl: {} lanes; at least 1 is required", options.lanes);
  }
  if (options.blocks_per_lane < 1 || options.blocks_per_lane > 64) {
    return fmt::format("run_on_nccl: {} blocks per lane; 1 to 64 are required",
                       options.blocks_per_lane);
  }
  const int devices = api->devices();
  if (options.device < -1 || options.device >= devices) {
    return fmt::format("run_on_nccl: device {} of {}; one of them, or -1, is required",
                       options.device, devices);
  }
  if (options.device < 0) options.device = host.rank() % devices;
  return "";
}

/// The first reason among all ranks, or a difference of their options; empty if there is none.
std::string refusal(const std::vector<Offer>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Offer& offer = all[rank];
    if (offer.reason[0]) return fmt::format("{} (rank {})", offer.reason.data(), rank);
    if (offer.lanes != all[0].lanes || offer.blocks != all[0].blocks) {
      return fmt::format(
          "run_on_nccl: rank 0 has {} of {} blocks, rank {} has {} of {}; equal options are "
          "required",
          count_of(all[0].lanes, "lane"), all[0].blocks, rank, offer.lanes, offer.blocks);
    }
  }
  return "";
}

/// Throws on all ranks if one has a reason, or if options differ.
void agree(Communicator& host, const NcclOptions& options, const std::string& reason) {
  Offer mine{.lanes = options.lanes, .blocks = options.blocks_per_lane};
  std::memcpy(mine.reason.data(), reason.data(), std::min(reason.size(), mine.reason.size() - 1));
  std::vector<Offer> all(host.world());
  all_gather(host, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  const std::string text = refusal(all);
  if (text.empty()) return;
  // The first rank that throws ends the host group, so all ranks have to know before.
  try {
    barrier(host);
  } catch (const CommError&) {
    // A rank has thrown already, after all had come to the barrier.
  }
  throw InvalidArgument(text);
}

}  // namespace

void run_on_nccl(NcclApi* api, const std::string& missing, Communicator& host,
                 const std::function<void(Communicator&)>& body, NcclOptions options) {
  agree(host, options, reason_against(api, missing, host, options));
  NcclRank rank(*api, host, options);
  try {
    {
      NcclCommunicator communicator(rank, host);
      body(communicator);
    }
    rank.leave();
  } catch (...) {
    // Before this rank waits for NCCL to end, so that it is the reason that the others report.
    host.abort(reason_of(std::current_exception()));
    throw;
  }
}

void run_on_nccl(Communicator& host, const std::function<void(Communicator&)>& body,
                 const NcclOptions& options) {
  std::unique_ptr<NcclApi> api;
  const std::string missing = nccl_missing();
  if (missing.empty()) api = load_nccl();
  run_on_nccl(api.get(), missing, host, body, options);
}

}  // namespace armillary::comm
