// call_labels.h: the labels of collectives: the call in words, with all that ranks must agree on.
// Internal to comm.
#pragma once

#include <string_view>

#include "armillary/comm/array.h"
#include "armillary/comm/label.h"
#include "armillary/comm/reduce.h"

namespace armillary::comm {

/// "all_gather of 12 fp32", then `more`, then " on a device" for such memory.
Label call_label(std::string_view operation, const Array& values, std::string_view more = "");

Label all_reduce_label(const Array& values, Reduction reduction);
/// `all` are the parts of all ranks.
Label reduce_scatter_label(const Array& all, Reduction reduction, std::string_view more = "");
/// "broadcast of 12 byte from rank 1"
Label broadcast_label(const Array& values, int root);

}  // namespace armillary::comm
