// CPU memory for tensors: small and middling blocks are recycled in per-thread lists (libtorch asks the system each time,
// which is a good part of a small operator's cost), large ones come from the system. Counts bytes per thread for V8.
#include "core/core.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>

#include <malloc.h>

#include <algorithm>
#include <cstdlib>

namespace pw {
namespace {

constexpr size_t kAlignment = 64;
constexpr uint32_t kDoublings = 8;        // classes of small blocks: 64, 128, ... 8192 bytes
constexpr uint32_t kFirstQuartered = 13;  // from 2^13 bytes on, four classes per doubling: at most a fifth is wasted
constexpr uint32_t kClasses = kDoublings + 4 * 5;  // up to 256 KiB
constexpr size_t kKeepBytes = size_t{1} << 20;     // that a thread keeps of each class, but no more than so many blocks
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kKeepBlocks = 0;  // a late read of a recycled block would look like one of live memory
#else
constexpr size_t kKeepBlocks = 256;
#endif

struct Block {
  Block* next;
};

// Sits in the 64 bytes before the data.
struct Header {
  size_t bytes;         // of the data
  uint32_t size_class;  // kClasses for blocks of the system
};

struct ThreadLists {
  Block* heads[kClasses] = {};
  uint32_t counts[kClasses] = {};
  int64_t bytes = 0;
  bool dead = false;
  ~ThreadLists() {
    dead = true;
    for (Block*& head : heads) {
      while (head != nullptr) {
        Block* block = head;
        head = block->next;
        std::free(block);
      }
    }
  }
};
thread_local ThreadLists lists;

uint32_t class_of(size_t bytes) {
  if (bytes <= 64) return 0;
  const uint32_t power = 63 - __builtin_clzll(bytes - 1);  // 2^power < bytes <= 2^(power + 1)
  if (power < kFirstQuartered) return power - 5;
  const uint32_t quarter = static_cast<uint32_t>((bytes - 1) >> (power - 2)) & 3;
  return std::min(kDoublings + (power - kFirstQuartered) * 4 + quarter, kClasses);
}

size_t room_of(uint32_t cls) {
  if (cls < kDoublings) return size_t{64} << cls;
  const uint32_t power = kFirstQuartered + (cls - kDoublings) / 4, quarter = (cls - kDoublings) % 4;
  return (size_t{5} + quarter) << (power - 2);
}

void release(void* data) {
  if (data == nullptr) return;
  char* start = static_cast<char*>(data) - kAlignment;
  const Header header = *reinterpret_cast<Header*>(start);
  ThreadLists& mine = lists;
  mine.bytes -= static_cast<int64_t>(header.bytes);
  const uint32_t cls = header.size_class;
  if (cls < kClasses && !mine.dead && mine.counts[cls] < std::min(kKeepBlocks, kKeepBytes / room_of(cls))) {
    Block* block = reinterpret_cast<Block*>(start);
    block->next = mine.heads[cls];
    mine.heads[cls] = block;
    ++mine.counts[cls];
    return;
  }
  std::free(start);
}

struct Recycler final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    const uint32_t cls = class_of(bytes);
    ThreadLists& mine = lists;
    char* start = nullptr;
    if (cls < kClasses && mine.heads[cls] != nullptr) {
      Block* block = mine.heads[cls];
      mine.heads[cls] = block->next;
      --mine.counts[cls];
      start = reinterpret_cast<char*>(block);
    } else {
      const size_t room = cls < kClasses ? room_of(cls) : bytes;
      void* memory = nullptr;
      if (room > SIZE_MAX - kAlignment || posix_memalign(&memory, kAlignment, room + kAlignment) != 0) {
        throw CodedError("OUT_OF_MEMORY", "could not get " + std::to_string(bytes) + " bytes for a tensor");
      }
      start = static_cast<char*>(memory);
    }
    *reinterpret_cast<Header*>(start) = {bytes, cls};
    mine.bytes += static_cast<int64_t>(bytes);
    void* data = start + kAlignment;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

}  // namespace

void install_allocator() {
  static Recycler recycler;
  static const bool once = [] {
    c10::SetCPUAllocator(&recycler, 100);
    // Freed memory stays with the process from one step to the next: giving it back and taking it again would cost a page
    // fault for every 4 KB, a tenth of the time of a step of middle size.
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    return true;
  }();
  (void)once;
}

int64_t thread_bytes() { return lists.bytes; }

}  // namespace pw
