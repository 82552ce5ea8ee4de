// messages.h: measures the engine that moves messages. For the sources of this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/lab/bench/ranks.h"
#include "armillary/lab/calibrate/block_call.h"
#include "armillary/predict/sim/curves.h"

namespace armillary::calibrate {

/// Ranks that exchange messages: each sends to the rank `distance` after it, and receives from the
/// one as far before it, all at the same time.
struct ExchangeCase {
  int world = 2;
  int distance = 1;
  std::int64_t least_bytes = 1 << 12;
  std::int64_t most_bytes = 1 << 24;
};

struct MessageRates {
  double latency_s = 0;                ///< A message of 8 bytes, from its start to its end.
  std::vector<sim::RatePoint> points;  ///< bytes / (seconds - latency_s), by bytes.
};

/// Requires at least two ranks. Collective over them.
MessageRates measure_messages(const ExchangeCase& spec, bench::Ranks& ranks);

/// Bytes that links pass at once after a pause (sim::LinkRule::burst_bytes): what an exchange after
/// a pause gains over those of `rates`, which follow each other. 0 if that is less than a twentieth
/// of the exchange. Requires and collective as above.
double measure_burst(const ExchangeCase& spec, const MessageRates& rates, bench::Ranks& ranks);

/// Whether messages from one rank to another follow each other: of two that start together, each of
/// half of the most bytes, the first ends when half of the time has passed. Requires and collective
/// as above.
bool measure_in_order(const ExchangeCase& spec, bench::Ranks& ranks);

/// Factor on the time of kernel calls that all ranks make while an exchange of the most bytes is
/// under way, at least 1. Between two calls a rank looks at its messages, as the executor does.
/// Requires and collective as above.
double measure_slowdown(const ExchangeCase& spec, const BlockShape& shape, bench::Ranks& ranks);

}  // namespace armillary::calibrate
