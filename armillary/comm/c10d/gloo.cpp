// The only source that sees Gloo's types, by the declarations in gloo_headers/.
#include "armillary/comm/c10d/gloo.h"

#include <ATen/ops/from_blob.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace armillary::comm {
namespace {

/// Gloo takes tensors. These own nothing: the caller keeps the memory until the work is done.
std::vector<at::Tensor> tensors_of(std::byte* memory, std::int64_t bytes) {
  return {at::from_blob(memory, {bytes}, at::TensorOptions(at::kByte))};
}

auto device_of(const std::string& interface) {
  return interface.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                           : c10d::ProcessGroupGloo::createDeviceForInterface(interface);
}

}  // namespace

void try_interface(const std::string& interface) {
  device_of(interface);
}

GlooBackend make_gloo(const GlooStore& store, int rank, int world, const GlooOptions& options) {
  auto own = c10d::ProcessGroupGloo::Options::create(options.timeout);
  own->devices.push_back(device_of(options.interface));
  own->threads = 1;  // They run collectives, which this engine does not use.
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(options.prefix, store), rank, world, own);
}

GlooWork gloo_send(c10d::Backend& backend, std::byte* memory, std::int64_t bytes, int peer,
                   int tag) {
  std::vector<at::Tensor> tensors = tensors_of(memory, bytes);
  return backend.send(tensors, peer, tag);
}

GlooWork gloo_receive(c10d::Backend& backend, std::byte* memory, std::int64_t bytes, int peer,
                      int tag) {
  std::vector<at::Tensor> tensors = tensors_of(memory, bytes);
  return backend.recv(tensors, peer, tag);
}

/// Errors of this project are one line; the further ones of torch's tell of its own calls.
std::string first_line(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace armillary::comm
