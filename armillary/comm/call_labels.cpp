#include "armillary/comm/call_labels.h"

#include <fmt/format.h>

namespace armillary::comm {

Label call_label(std::string_view operation, const Array& values, std::string_view more) {
  return label_of(fmt::format("{} of {} {}{}{}", operation, values.count, to_string(values.dtype),
                              more, values.device == kHost ? "" : " on a device"));
}

Label all_reduce_label(const Array& values, Reduction reduction) {
  return call_label(reduction == Reduction::Sum ? "all_reduce_sum" : "all_reduce_max", values);
}

Label reduce_scatter_label(const Array& all, Reduction reduction, std::string_view more) {
  return call_label(reduction == Reduction::Sum ? "scatter_sum" : "scatter_max", all, more);
}

Label broadcast_label(const Array& values, int root) {
  return call_label("broadcast", values, fmt::format(" from rank {}", root));
}

}  // namespace armillary::comm
