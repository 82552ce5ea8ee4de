// gloo/context.h: stands in for the header of Gloo. PyTorch's package has the code of Gloo and the
// header ProcessGroupGloo.hpp, which includes five headers of Gloo that the package lacks. That
// header holds objects of Gloo by pointers only, so these declarations are enough to read it. They
// are seen by one source, gloo.cpp, and no object of these types is made by it.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};

}  // namespace transport
}  // namespace gloo
