// gloo.h: groups of Gloo, as PyTorch makes them, and the calls of theirs that this engine uses.
// Internal to c10d.h.
//
// A send of Gloo waits until its receiver has told that its memory is there, so nothing is buffered
// and no lane blocks another. A thread of Gloo moves the bytes. A work of Gloo tells nobody that it
// is over, except a thread that waits for it; another thread can interrupt that wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace armillary::comm {

using GlooBackend = c10::intrusive_ptr<c10d::Backend>;
using GlooWork = c10::intrusive_ptr<c10d::Work>;
using GlooStore = c10::intrusive_ptr<c10d::Store>;

/// Longer than any deadline. Gloo closes its connections if a wait times out.
inline constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365 * 100);

/// Returns if connections can be made over the interface; empty: that of the host's name.
/// @throws std::exception of PyTorch or Gloo.
void try_interface(const std::string& interface);

/// A new group of Gloo with connections and a thread of its own. Collective: ranks find each other
/// by keys of the store that begin with `prefix`. `interface` is the network interface, or empty
/// for that of the host's name. @throws std::exception of PyTorch or Gloo if that fails or takes
/// longer.
struct GlooOptions {
  std::string prefix;
  std::string interface;
  std::chrono::milliseconds timeout;
};
GlooBackend make_gloo(const GlooStore& store, int rank, int world, const GlooOptions& options);

/// Starts to send or receive `bytes` bytes at `memory`, which stay where they are.
GlooWork gloo_send(c10d::Backend& backend, std::byte* memory, std::int64_t bytes, int peer,
                   int tag);
GlooWork gloo_receive(c10d::Backend& backend, std::byte* memory, std::int64_t bytes, int peer,
                      int tag);

/// The first line of the text of an exception; PyTorch adds the calls that led to it.
std::string first_line(const std::exception& error);

}  // namespace armillary::comm
