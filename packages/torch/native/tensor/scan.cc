// Bytes looked through at the speed of memory: a hash that every changed word changes, and whether all floats are finite.
#include "core/core.h"

#include <cstdio>
#include <cstring>

namespace pw {
namespace {

constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ull,
                   kSecond = 0xd6e8feb86659fd93ull;  // odd, so that multiplying loses nothing
constexpr int kLanes = 8;  // independent, so that one multiplication need not wait for another

inline uint64_t mix(uint64_t state, uint64_t word) {
  const uint64_t product = (state ^ word) * kFactor;
  return (product ^ (product >> 32)) * kSecond;
}

// Each step is a bijection of the state for a given word and of the word for a given state: a difference in one word is
// never lost, and a few changed bits of the next word cannot undo it. The length enters at the end.
uint64_t hash_bytes(const char* data, size_t length) {
  uint64_t lanes[kLanes];
  for (int i = 0; i < kLanes; i++) lanes[i] = mix(kFactor, static_cast<uint64_t>(i));
  uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3], e = lanes[4], f = lanes[5], g = lanes[6],
           h = lanes[7];
  const size_t whole = length / 64 * 64;
  for (size_t at = 0; at < whole; at += 64) {
    uint64_t words[kLanes];
    std::memcpy(words, data + at, 64);
    a = mix(a, words[0]);
    b = mix(b, words[1]);
    c = mix(c, words[2]);
    d = mix(d, words[3]);
    e = mix(e, words[4]);
    f = mix(f, words[5]);
    g = mix(g, words[6]);
    h = mix(h, words[7]);
  }
  uint64_t state = mix(kFactor, static_cast<uint64_t>(length));
  for (const uint64_t lane : {a, b, c, d, e, f, g, h}) state = mix(state, lane);
  for (size_t at = whole; at < length; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<size_t>(8, length - at));
    state = mix(state, word);
  }
  return state ^ (state >> 29);
}

// Whether no element has an exponent of ones only.
template <typename Word>
bool all_finite(const char* data, size_t length, Word exponent) {
  Word found = 0;
  for (size_t at = 0; at + sizeof(Word) <= length; at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, data + at, sizeof(Word));
    found |= static_cast<Word>((word & exponent) == exponent ? 1 : 0);
  }
  return found == 0;
}

bool is_finite(const char* data, size_t length, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kComplexFloat:
      return all_finite<uint32_t>(data, length, 0x7f800000u);
    case at::kDouble:
      return all_finite<uint64_t>(data, length, 0x7ff0000000000000ull);
    case at::kHalf:
      return all_finite<uint16_t>(data, length, 0x7c00u);
    case at::kBFloat16:
      return all_finite<uint16_t>(data, length, 0x7f80u);
    default:
      return true;
  }
}

// (bytes, offset, length, dtype, checks): the hash of part of a uint8 tensor's memory as 16 hexadecimal digits, with a '!'
// behind it where `checks` and an element of that type is not finite.
PW_ENTRY(scan_bytes, 5) {
  const at::Tensor& bytes = args.tensor(0);
  const int64_t offset = args.int64(1), length = args.int64(2);
  const at::ScalarType dtype = static_cast<at::ScalarType>(args.int32(3));
  if (bytes.scalar_type() != at::kByte || !bytes.is_cpu() || !bytes.is_contiguous())
    throw CodedError("DTYPE", "scanBytes takes a contiguous uint8 tensor on the CPU");
  if (offset < 0 || length < 0 || offset > bytes.numel() || length > bytes.numel() - offset)
    throw CodedError("SHAPE", "the range lies outside of the bytes");
  const char* data = static_cast<const char*>(bytes.const_data_ptr()) + offset;
  const size_t size = static_cast<size_t>(length);
  constexpr size_t kPart = 32 * 1024;  // what the second look finds in the cache
  bool finite = true;
  if (args.boolean(4)) {
    for (size_t at = 0; at < size && finite; at += kPart)
      finite = is_finite(data + at, std::min(kPart, size - at), dtype);
  }
  char text[24];
  std::snprintf(
      text, sizeof text, "%016llx%s", static_cast<unsigned long long>(hash_bytes(data, size)), finite ? "" : "!");
  napi_value value;
  napi_create_string_utf8(args.napi, text, NAPI_AUTO_LENGTH, &value);
  return value;
}

}  // namespace

void init_scan(Env& env, napi_value exports) { add_exports(env, exports, {{"scanBytes", scan_bytes}}); }

}  // namespace pw
