// HMAC with SHA-256, and random bytes: how the ends of a store show each other that they know the run's secret.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace pw {

using Digest = std::array<uint8_t, 32>;

Digest hmac_sha256(const std::string& key, const std::string& text);
std::string random_bytes(size_t count);

inline std::string as_text(const Digest& digest) { return std::string(digest.begin(), digest.end()); }

// In the same time wherever they differ.
bool equal_digests(const std::string& one, const std::string& other);

}  // namespace pw
