// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a random number is a
// function of a key and a counter, so that any element of any tensor has its own without computing those before it.
#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#define PW_PHILOX_AVX2 __attribute__((target("avx2")))
#endif

namespace pw {

// What a tensor is filled from: 64 bits of key, and two words of the counter. The other two count blocks of four words.
struct PhiloxStream {
  uint32_t key[2];
  uint32_t ordinal;
};

constexpr int kPhiloxBlocks = 8;  // computed side by side
constexpr int kPhiloxWords = 4 * kPhiloxBlocks;

// The words of kPhiloxBlocks blocks from `block` on.
static inline __attribute__((always_inline)) void philox_words(
    const PhiloxStream& stream, uint64_t block, uint32_t* words) {
  uint32_t a[kPhiloxBlocks], b[kPhiloxBlocks], c[kPhiloxBlocks], d[kPhiloxBlocks];
  for (int i = 0; i < kPhiloxBlocks; ++i) {
    a[i] = static_cast<uint32_t>(block + i);
    b[i] = static_cast<uint32_t>((block + i) >> 32);
    c[i] = stream.ordinal;
    d[i] = 0;
  }
  uint32_t k0 = stream.key[0], k1 = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kPhiloxBlocks; ++i) {
      const uint64_t p = static_cast<uint64_t>(a[i]) * 0xD2511F53u, q = static_cast<uint64_t>(c[i]) * 0xCD9E8D57u;
      a[i] = static_cast<uint32_t>(q >> 32) ^ b[i] ^ k0;
      b[i] = static_cast<uint32_t>(q);
      c[i] = static_cast<uint32_t>(p >> 32) ^ d[i] ^ k1;
      d[i] = static_cast<uint32_t>(p);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kPhiloxBlocks; ++i) {
    words[4 * i] = a[i];
    words[4 * i + 1] = b[i];
    words[4 * i + 2] = c[i];
    words[4 * i + 3] = d[i];
  }
}

// Calls use(k, words) for the elements k of [first, first + count) of a stream, where each takes `each` words (1, 2 or 4).
template <int each, typename Use>
static inline __attribute__((always_inline)) void philox_each(
    const PhiloxStream& stream, uint64_t first, int64_t count, Use&& use) {
  alignas(64) uint32_t words[kPhiloxWords];
  const uint64_t begin = first * each, end = begin + static_cast<uint64_t>(count) * each;
  for (uint64_t word = begin - begin % 4; word < end; word += kPhiloxWords) {
    philox_words(stream, word / 4, words);
    if (word >= begin && word + kPhiloxWords <= end) {
      const int64_t at = static_cast<int64_t>((word - begin) / each);
      for (int k = 0; k < kPhiloxWords / each; ++k) use(at + k, words + k * each);
      continue;
    }
    for (int k = 0; k < kPhiloxWords; k += each)
      if (word + k >= begin && word + k < end) use(static_cast<int64_t>((word + k - begin) / each), words + k);
  }
}

}  // namespace pw
