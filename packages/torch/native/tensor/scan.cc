// Bytes at the speed of memory: a hash that every changed word changes, whether all floats are finite, copies by several
// threads.
#include "core/core.h"

#include <c10/core/GradMode.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <fcntl.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#define PW_AVX2
#ifdef __clang__
#define PW_VECTORIZED __attribute__((target("avx2")))
#else
#define PW_VECTORIZED __attribute__((target("avx2"), optimize("O3")))
#endif
#endif

namespace pw {
namespace {

constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ull,
                   kSecond = 0xd6e8feb86659fd93ull;  // odd, so that multiplying loses nothing
constexpr uint64_t kThird = 0x9e3779b1ull;           // odd, of 32 bits: two narrow multiplications make the wide one
constexpr size_t kLanes = 8, kStripe = 8 * kLanes;   // words that are looked at together
constexpr size_t kRound = 16;                        // stripes after which the lanes are mixed

inline uint64_t mix(uint64_t state, uint64_t word) {
  const uint64_t product = (state ^ word) * kFactor;
  return (product ^ (product >> 32)) * kSecond;
}

struct Lanes {
  uint64_t sum[kLanes], key[kLanes];
  size_t stripes = 0;
};

// A word is added to the lane beside its own, and the product of its halves, changed by a key that differs from stripe to
// stripe, to its own lane. Adding and mixing are bijections of a lane: a change of one word is never lost.
void add_stripes(Lanes& lanes, const char* data, size_t count) {
  for (size_t s = 0; s < count; s++, data += kStripe) {
    uint64_t words[kLanes];
    std::memcpy(words, data, kStripe);
    for (size_t i = 0; i < kLanes; i++) {
      const uint64_t changed = words[i] ^ lanes.key[i];
      lanes.sum[i] += (changed & 0xffffffffull) * (changed >> 32) + words[i ^ 1];
      lanes.key[i] += kFactor;
    }
    if (++lanes.stripes % kRound != 0) continue;
    for (size_t i = 0; i < kLanes; i++) lanes.sum[i] = ((lanes.sum[i] ^ (lanes.sum[i] >> 47)) ^ lanes.key[i]) * kThird;
  }
}

#ifdef PW_AVX2
// The same, four lanes at a time.
__attribute__((target("avx2"))) void add_stripes_avx2(Lanes& lanes, const char* data, size_t count) {
  const __m256i *sums = reinterpret_cast<const __m256i*>(lanes.sum),
                *keys = reinterpret_cast<const __m256i*>(lanes.key);
  __m256i sum[2] = {_mm256_loadu_si256(sums), _mm256_loadu_si256(sums + 1)},
          key[2] = {_mm256_loadu_si256(keys), _mm256_loadu_si256(keys + 1)};
  const __m256i factor = _mm256_set1_epi64x(static_cast<long long>(kFactor)),
                third = _mm256_set1_epi64x(static_cast<long long>(kThird));
  size_t stripes = lanes.stripes;
  for (size_t s = 0; s < count; s++, data += kStripe) {
    for (int half = 0; half < 2; half++) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data) + half);
      const __m256i changed = _mm256_xor_si256(words, key[half]);
      const __m256i product = _mm256_mul_epu32(changed, _mm256_srli_epi64(changed, 32));
      sum[half] = _mm256_add_epi64(sum[half], _mm256_add_epi64(product, _mm256_shuffle_epi32(words, 0x4e)));
      key[half] = _mm256_add_epi64(key[half], factor);
    }
    if (++stripes % kRound != 0) continue;
    for (int half = 0; half < 2; half++) {
      const __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(sum[half], _mm256_srli_epi64(sum[half], 47)), key[half]);
      const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), third);
      sum[half] = _mm256_add_epi64(_mm256_mul_epu32(mixed, third), _mm256_slli_epi64(high, 32));
    }
  }
  for (int half = 0; half < 2; half++) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.sum) + half, sum[half]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.key) + half, key[half]);
  }
  lanes.stripes = stripes;
}
#endif

using AddStripes = void (*)(Lanes&, const char*, size_t);

AddStripes fastest() {
#ifdef PW_AVX2
  if (__builtin_cpu_supports("avx2")) return add_stripes_avx2;
#endif
  return add_stripes;
}

// A hash that is fed part by part; all parts but the last are multiples of a stripe.
class Hash {
 public:
  explicit Hash(AddStripes add = nullptr) : add_(add == nullptr ? fastest() : add) {
    for (size_t i = 0; i < kLanes; i++) {
      lanes_.sum[i] = mix(kSecond, i);
      lanes_.key[i] = mix(kFactor, i);
    }
  }
  void feed(const char* data, size_t length) {
    const size_t whole = length / kStripe;
    add_(lanes_, data, whole);
    length_ += length;
    if (length % kStripe == 0) return;
    char last[kStripe] = {};
    std::memcpy(last, data + whole * kStripe, length % kStripe);
    add_(lanes_, last, 1);
  }
  // The length is part of it, because the end is filled up with zeros.
  uint64_t end() const {
    uint64_t state = mix(kFactor, static_cast<uint64_t>(length_));
    for (const uint64_t sum : lanes_.sum) state = mix(state, sum);
    return state ^ (state >> 29);
  }

 private:
  AddStripes add_;
  Lanes lanes_;
  size_t length_ = 0;
};

// Whether no element has an exponent of ones only: without its sign it is less than the smallest that has.
template <typename Word>
inline __attribute__((always_inline)) bool below(const char* data, size_t length, Word exponent) {
  Word most[64 / sizeof(Word)] = {};
  constexpr size_t count = sizeof most / sizeof(Word);
  const Word mask = static_cast<Word>(~Word{0}) >> 1;
  size_t at = 0;
  for (; at + sizeof most <= length; at += sizeof most) {
    Word words[count];
    std::memcpy(words, data + at, sizeof words);
    for (size_t i = 0; i < count; i++) {
      const Word word = words[i] & mask;
      most[i] = word > most[i] ? word : most[i];
    }
  }
  for (; at + sizeof(Word) <= length; at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, data + at, sizeof(Word));
    word &= mask;
    most[0] = word > most[0] ? word : most[0];
  }
  for (const Word word : most)
    if (word >= exponent) return false;
  return true;
}

#ifdef PW_AVX2
template <typename Word>
PW_VECTORIZED bool below_avx2(const char* data, size_t length, Word exponent) {
  return below(data, length, exponent);
}
#endif

template <typename Word>
bool all_finite(const char* data, size_t length, Word exponent) {
#ifdef PW_AVX2
  if (__builtin_cpu_supports("avx2")) return below_avx2(data, length, exponent);
#endif
  return below(data, length, exponent);
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
  Hash hash;
  for (size_t at = 0; at < size; at += kPart) {
    const size_t part = std::min(kPart, size - at);
    if (args.boolean(4) && finite) finite = is_finite(data + at, part, dtype);
    hash.feed(data + at, part);
  }
  char text[24];
  std::snprintf(text, sizeof text, "%016llx%s", static_cast<unsigned long long>(hash.end()), finite ? "" : "!");
  napi_value value;
  napi_create_string_utf8(args.napi, text, NAPI_AUTO_LENGTH, &value);
  return value;
}

// Does parts of a job, each once, on this thread and on others where there is enough to do.
void in_parallel(size_t parts, size_t bytes, const std::function<void(size_t)>& body) {
  constexpr size_t kEnough = size_t{8} << 20, kMost = 8;
  const size_t threads = std::min({kMost, bytes / kEnough, static_cast<size_t>(std::thread::hardware_concurrency())});
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t part; (part = next.fetch_add(1)) < parts;) body(part);
  };
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < threads; i++) others.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads to be had: those that are there do it.
  }
  work();
  for (std::thread& other : others) other.join();
}

// (bytes, offsets, lengths, portable): the hashes of parts of a uint8 tensor's memory, one after the other; `portable`, for
// tests, does it without instructions that only some processors have.
PW_ENTRY(hash_ranges, 4) {
  const at::Tensor& bytes = args.tensor(0);
  const std::vector<int64_t> offsets = args.ints(1), lengths = args.ints(2);
  if (bytes.scalar_type() != at::kByte || !bytes.is_cpu() || !bytes.is_contiguous())
    throw CodedError("DTYPE", "hashRanges takes a contiguous uint8 tensor on the CPU");
  size_t total = 0;
  for (size_t i = 0; i < offsets.size(); i++) {
    const int64_t offset = offsets[i], length = lengths.at(i);
    if (offset < 0 || length < 0 || offset > bytes.numel() || length > bytes.numel() - offset)
      throw CodedError("SHAPE", "a range lies outside of the bytes");
    total += static_cast<size_t>(length);
  }
  const char* data = static_cast<const char*>(bytes.const_data_ptr());
  const AddStripes add = args.boolean(3) ? add_stripes : fastest();
  std::vector<uint64_t> found(offsets.size());
  in_parallel(offsets.size(), total, [&](size_t i) {
    Hash hash(add);
    hash.feed(data + offsets[i], static_cast<size_t>(lengths[i]));
    found[i] = hash.end();
  });
  std::string text(16 * found.size() + 1, '\0');
  for (size_t i = 0; i < found.size(); i++)
    std::snprintf(&text[16 * i], 17, "%016llx", static_cast<unsigned long long>(found[i]));
  text.pop_back();
  return from_string(args.napi, text);
}

// (targets, sources): copies each source into its target, by several threads where both are plain memory of one type.
PW_ENTRY(copy_tensors, 2) {
  const std::vector<at::Tensor> targets = args.tensors(0), sources = args.tensors(1);
  constexpr size_t kPart = size_t{4} << 20;
  struct Part {
    char* to;
    const char* from;
    size_t bytes;
  };
  std::vector<Part> parts;
  size_t total = 0;
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < targets.size(); i++) {
    const at::Tensor &to = targets[i], &from = sources.at(i);
    const auto is_plain = [](const at::Tensor& tensor) {
      return tensor.is_cpu() && tensor.is_contiguous() && tensor.layout() == at::kStrided && !tensor.is_conj() &&
             !tensor.is_neg();
    };
    if (!is_plain(to) || !is_plain(from) || to.scalar_type() != from.scalar_type() || to.sizes() != from.sizes()) {
      at::Tensor(to.detach()).copy_(from);
      continue;
    }
    char* start = static_cast<char*>(to.data_ptr());
    const char* data = static_cast<const char*>(from.const_data_ptr());
    for (size_t at = 0; at < to.nbytes(); at += kPart)
      parts.push_back({start + at, data + at, std::min(kPart, to.nbytes() - at)});
    total += to.nbytes();
    to.unsafeGetTensorImpl()->bump_version();
  }
  in_parallel(parts.size(), total, [&](size_t i) { std::memcpy(parts[i].to, parts[i].from, parts[i].bytes); });
  return nullptr;
}

// (file descriptor, offset, length): asks the system to begin writing what is in its memory to the disk, and does not wait.
PW_ENTRY(start_writing, 3) {
#ifdef __linux__
  sync_file_range(
      args.int32(0), args.int64(1), args.int64(2), SYNC_FILE_RANGE_WRITE);  // a hint: errors come with fsync
#endif
  return nullptr;
}

}  // namespace

void init_scan(Env& env, napi_value exports) {
  add_exports(env, exports,
      {{"scanBytes", scan_bytes}, {"hashRanges", hash_ranges}, {"copyTensors", copy_tensors},
          {"startWriting", start_writing}});
}

}  // namespace pw
