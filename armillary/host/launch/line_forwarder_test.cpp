// line_forwarder_test.cpp: what reaches the other end of a pipe.
#include "armillary/host/launch/line_forwarder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::launch {
namespace {

/// The forwarded output of pieces that come one after the other.
std::string forwarded(const std::vector<std::string>& pieces) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  LineForwarder lines("[rank 1] ", ends[1]);
  for (const std::string& piece : pieces) lines.take(piece);
  lines.finish();
  close(ends[1]);
  std::string all;
  std::array<char, 4096> buffer;
  for (ssize_t size = 0; (size = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    all.append(buffer.data(), static_cast<std::size_t>(size));
  }
  close(ends[0]);
  return all;
}

TEST(LineForwarder, PutsThePrefixBeforeEachLine) {
  EXPECT_EQ(forwarded({"a\nb", "c\n\n", "d"}), "[rank 1] a\n[rank 1] bc\n[rank 1] \n[rank 1] d\n");
  EXPECT_EQ(forwarded({}), "");
  EXPECT_EQ(forwarded({"", "\n"}), "[rank 1] \n");
}

TEST(LineForwarder, CutsALineThatIsTooLong) {
  const std::string all = forwarded({std::string(30000, 'x') + "\n", std::string(100, 'y')});
  EXPECT_EQ(all,
            "[rank 1] " + std::string(30000, 'x') + "\n[rank 1] " + std::string(100, 'y') + "\n");
}

TEST(LineForwarder, ThrowsIfNobodyReads) {
  LineForwarder lines("", -1);
  EXPECT_THAT(
      [&] { lines.take("x\n"); },
      testing::ThrowsMessage<Error>("launch: output cannot be written: Bad file descriptor"));
}

}  // namespace
}  // namespace armillary::launch
