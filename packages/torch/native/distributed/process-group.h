// How another addon adds a backend of process groups. ProcessGroupNCCL needs CUDA headers and lives in native/cuda; the
// rest of the machinery (work handles, waits, subgroups) is here and knows only c10d::Backend.
//
//   main addon     backendRegistry(): the address of the table below as a BigInt
//   CUDA addon     installNccl(address: bigint): checks `version` and stores its factory in `nccl`
//   TypeScript     initProcessGroup({ backend: 'nccl' }) connects the two, then asks the main addon for the group
#pragma once

#include "distributed/device-lane.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace pw {

struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;  // shared by all ranks of the group, prefixed with its name
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
  std::string name;
  int device = 0;  // CUDA device index of this rank
};

// Throws what c10d throws. Called on a helper thread, never on a JavaScript thread.
using BackendFactory = c10::intrusive_ptr<c10d::Backend> (*)(const BackendRequest&);

struct BackendRegistry {
  static constexpr uint32_t kVersion = 2;
  uint32_t version = kVersion;
  std::atomic<BackendFactory> nccl{nullptr};
  std::atomic<DeviceLaneFactory> lane{nullptr};
};

}  // namespace pw
