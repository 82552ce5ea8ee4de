// packer.cpp: best fit goes through the documents of a window from the longest to the shortest, and
// puts each into the open sequence with the least room that is enough.
#include "armillary/text/corpus/packer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "armillary/text/corpus/keyed_permutation.h"

namespace armillary::corpus {

std::string_view to_string(PackingKind kind) {
  return kind == PackingKind::Cut ? "cut" : "best_fit";
}

Packer::Packer(PackerOptions options, std::function<void(const PackedSequence&)> emit)
    : options_(options), emit_(std::move(emit)) {}

void Packer::add(Tokens document) {
  if (document.empty()) {
    ++counts_.empty;
    return;
  }
  document.push_back(options_.separator);
  ++counts_.documents;
  const auto length = static_cast<std::int64_t>(document.size());
  counts_.tokens += length;
  window_tokens_ += length;
  window_.push_back(std::move(document));
  if (window_tokens_ >= options_.window_tokens) pack_window();
}

void Packer::finish() {
  pack_window();
  counts_.dropped = static_cast<std::int64_t>(stream_.size());
  stream_.clear();
}

void Packer::pack_window() {
  std::vector<Tokens> documents(window_.size());
  if (!window_.empty()) {
    const KeyedPermutation order(window_.size(), mixed_key({options_.seed, windows_++}));
    for (std::size_t i = 0; i < window_.size(); ++i) {
      documents[i] = std::move(window_[order.at(i)]);
    }
  }
  window_.clear();
  window_tokens_ = 0;
  if (options_.kind == PackingKind::Cut) {
    cut(std::move(documents));
  } else {
    fit(std::move(documents));
  }
}

void Packer::cut(std::vector<Tokens> documents) {
  for (Tokens& document : documents) {
    stream_.insert(stream_.end(), document.begin(), document.end());
    ends_.push_back(stream_.size());
    document = {};
  }
  // A sequence is made when the token behind it is known.
  const auto length = static_cast<std::size_t>(options_.seq_len);
  std::size_t begin = 0;
  std::size_t document = 0;
  for (; begin + length < stream_.size(); begin += length) {
    const std::size_t end = begin + length;
    const auto first = stream_.begin() + static_cast<std::ptrdiff_t>(begin);
    PackedSequence sequence{.tokens = {first, first + static_cast<std::ptrdiff_t>(length)}};
    for (std::size_t at = begin; at < end; ++document) {
      const std::size_t piece_end = std::min(ends_[document], end);
      sequence.pieces.push_back(static_cast<std::int64_t>(piece_end - at));
      at = piece_end;
      if (ends_[document] <= end) continue;
      sequence.next = stream_[end];
      ++counts_.cuts;
      break;
    }
    give(sequence);
  }
  stream_.erase(stream_.begin(), stream_.begin() + static_cast<std::ptrdiff_t>(begin));
  ends_.erase(ends_.begin(), ends_.begin() + static_cast<std::ptrdiff_t>(document));
  for (std::size_t& end : ends_) end -= begin;
}

void Packer::fit(std::vector<Tokens> documents) {
  const auto length = static_cast<std::size_t>(options_.seq_len);
  // Documents that are too long: whole sequences of them, and the rest, or nothing.
  for (Tokens& document : documents) {
    std::size_t begin = 0;
    for (; document.size() - begin > length || (begin > 0 && document.size() - begin == length);
         begin += length) {
      const auto first = document.begin() + static_cast<std::ptrdiff_t>(begin);
      PackedSequence sequence{.tokens = {first, first + static_cast<std::ptrdiff_t>(length)},
                              .pieces = {options_.seq_len}};
      if (begin + length < document.size()) {
        sequence.next = document[begin + length];
        ++counts_.cuts;
      }
      give(sequence);
    }
    document.erase(document.begin(), document.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  std::erase_if(documents, [](const Tokens& document) { return document.empty(); });
  std::ranges::stable_sort(documents,
                           [](const Tokens& a, const Tokens& b) { return a.size() > b.size(); });
  std::vector<PackedSequence> sequences;
  std::map<std::size_t, std::vector<std::size_t>> by_room;  // Room that is left to sequences.
  for (Tokens& document : documents) {
    std::size_t at = sequences.size();
    std::size_t room = length;
    if (const auto place = by_room.lower_bound(document.size()); place != by_room.end()) {
      room = place->first;
      at = place->second.back();
      place->second.pop_back();
      if (place->second.empty()) by_room.erase(place);
    } else {
      sequences.emplace_back();
    }
    PackedSequence& sequence = sequences[at];
    sequence.tokens.insert(sequence.tokens.end(), document.begin(), document.end());
    sequence.pieces.push_back(static_cast<std::int64_t>(document.size()));
    room -= document.size();
    if (room > 0) by_room[room].push_back(at);
    document = {};
  }
  for (PackedSequence& sequence : sequences) {
    const std::int64_t room = options_.seq_len - static_cast<std::int64_t>(sequence.tokens.size());
    if (room > 0) {
      sequence.tokens.resize(length, options_.separator);
      sequence.pieces.push_back(room);
      sequence.has_padding = true;
      counts_.padding += room;
    }
    give(sequence);
  }
}

void Packer::give(const PackedSequence& sequence) {
  ++counts_.sequences;
  emit_(sequence);
}

}  // namespace armillary::corpus
