// descriptor.h: a file descriptor that is closed at the end.
#pragma once

#include <unistd.h>

#include <utility>

namespace armillary {

/// Owns an open file descriptor, or none.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes over `number`, as open() returns it: below 0 it is none.
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~Descriptor() { close(); }

  /// The number; below 0 if there is none.
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  /// Closes it now; nothing if there is none. Errors of close() are not looked at.
  void close() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

}  // namespace armillary
