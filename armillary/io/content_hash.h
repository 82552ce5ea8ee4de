// content_hash.h: 128 bits that tell the bytes of a file or a tensor from any others.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace armillary::io {

/// XXH3-128 of the bytes with seed 0, as 32 hexadecimal digits, high half first: the text that
/// `xxhash.xxh3_128_hexdigest` of Python gives. It finds damage, not an attacker.
/// Cost: one pass, about as fast as memory.
std::string content_hash(std::span<const std::byte> bytes);
/// The same, of the bytes of a text.
std::string content_hash(std::string_view text);

}  // namespace armillary::io
