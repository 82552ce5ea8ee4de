// spiky_data.h: data with batches that make the loss jump, and data without some batches.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "armillary/train/data.h"
#include "armillary/train/testing/sequences.h"

namespace armillary::train {

/// Data in whose bad batches every label is a byte that text never has.
class SpikyData : public Data {
 public:
  SpikyData(const Data& data, std::int64_t batch_size, std::set<std::int64_t> bad)
      : data_(data), batch_size_(batch_size), bad_(std::move(bad)) {}
  std::int64_t vocab_size() const override { return data_.vocab_size(); }
  Sequence at(std::int64_t index) const override {
    const Sequence sequence = data_.at(index);
    if (!bad_.contains(index / batch_size_ + 1)) return sequence;
    Numbers labels;
    const Numbers tokens = tokens_of(sequence);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      labels.push_back(130 + static_cast<std::int64_t>(i) * 7 % 120);
    }
    return sequence_of(tokens, labels, sequence.documents);
  }

 private:
  const Data& data_;
  std::int64_t batch_size_;
  std::set<std::int64_t> bad_;
};

/// Data of which the batches from `first` to `last` are not there.
class GappedData : public Data {
 public:
  GappedData(const Data& data, std::int64_t batch_size, std::int64_t first, std::int64_t last)
      : data_(data), begin_((first - 1) * batch_size), count_((last - first + 1) * batch_size) {}
  std::int64_t vocab_size() const override { return data_.vocab_size(); }
  Sequence at(std::int64_t index) const override {
    return data_.at(index < begin_ ? index : index + count_);
  }

 private:
  const Data& data_;
  std::int64_t begin_, count_;
};

}  // namespace armillary::train
