// Stores: the keys and values by which ranks find each other.
#include "distributed/group.h"
#include "distributed/store/secret-store.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <c10/util/Flags.h>

#include <cstdlib>
#include <cstring>

C10_DECLARE_int(caffe2_log_level);

namespace pw {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Bytes = std::vector<uint8_t>;

thread_local std::unordered_map<Env*, HandleTable<StorePtr>> stores;

// Hash stores by name, shared by the threads of the process; gone with their last user.
struct HashStores {
  std::mutex mutex;
  std::unordered_map<std::string, c10::weak_intrusive_ptr<c10d::HashStore>> by_name;
};
HashStores& hash_stores() {
  static HashStores* all = new HashStores();
  return *all;
}

napi_value add_store(Env& env, StorePtr store) { return from_int32(env.napi, stores[&env].add(std::move(store))); }

std::vector<std::string> strings(napi_env napi, napi_value array) {
  std::vector<std::string> result;
  for (napi_value item : elements(napi, array)) result.push_back(to_string(napi, item));
  return result;
}

// A string as UTF-8, or the bytes of a Uint8Array.
Bytes bytes_of(napi_env napi, napi_value value) {
  bool typed = false;
  napi_is_typedarray(napi, value, &typed);
  if (!typed) {
    const std::string text = to_string(napi, value);
    return Bytes(text.begin(), text.end());
  }
  napi_typedarray_type type;
  size_t length = 0, offset = 0;
  void* data = nullptr;
  napi_value buffer;
  check(napi, napi_get_typedarray_info(napi, value, &type, &length, &data, &buffer, &offset), "a Uint8Array");
  if (type != napi_uint8_array) throw CodedError("BAD_ARGUMENT", "expected a string or a Uint8Array");
  const uint8_t* first = static_cast<const uint8_t*>(data);
  return Bytes(first, first + length);
}

napi_value from_bytes(napi_env napi, const Bytes& bytes) {
  void* data = nullptr;
  napi_value buffer, array;
  check(napi, napi_create_arraybuffer(napi, bytes.size(), &data, &buffer), "memory for an ArrayBuffer");
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  check(napi, napi_create_typedarray(napi, napi_uint8_array, bytes.size(), buffer, 0, &array), "a Uint8Array");
  return array;
}

// Runs a call that may block on another machine, off this thread.
template <typename Body>
auto away(napi_env napi, int64_t timeout_ms, const std::string& what, Body body) -> decltype(body()) {
  // The store ends first where it has the same limit: its message says more.
  const Wait wait(napi, nullptr, timeout_ms + 2000);
  try {
    return interruptible(wait, what, std::move(body));
  } catch (const CodedError&) {
    throw;
  } catch (...) {
    rethrow_coded(std::current_exception());
  }
}

}  // namespace

StorePtr store_of(Env& env, int32_t handle) {
  StorePtr* found = stores[&env].find(handle);
  if (found == nullptr) throw CodedError("CLOSED", "the store is closed, or belongs to another thread");
  return *found;
}

namespace {

struct TcpRequest {
  std::string host, listen;  // where it is reached, and where it listens
  uint16_t port = 0;
  bool serve = false, wait = false;
  int32_t ranks = -1, rank = -1;
  std::chrono::milliseconds timeout{0};
};

// libtorch's own, which Python's ranks can use too.
StorePtr open_store(const TcpRequest& request) {
  c10d::TCPStoreOptions options;
  options.port = request.port;
  options.isServer = request.serve;
  if (request.ranks >= 0) options.numWorkers = static_cast<size_t>(request.ranks);
  options.timeout = request.timeout;
  options.waitWorkers = request.wait;
  options.multiTenant = true;
  options.useLibUV = false;  // Node exports functions of its own under libuv's names
  if (request.serve) {
    // By itself it would listen on all addresses.
    try {
      Socket listener = listen_at(request.listen, request.port);
      options.port = port_of(listener);
      options.masterListenFd = listener.release();
    } catch (const CodedError& error) {
      // Another store of this process may have the port, which they then share.
      if (std::strcmp(error.code, "IN_USE") != 0) throw;
    }
  }
  return c10::make_intrusive<c10d::TCPStore>(request.host, options);
}

StorePtr open_secret_store(const TcpRequest& request, const std::string& secret) {
  SecretStoreOptions options;
  options.host = request.host;
  options.port = request.port;
  options.secret = secret;
  options.timeout = request.timeout;
  if (request.rank >= 0) options.rank = static_cast<uint32_t>(request.rank);
  options.size = request.ranks < 0 ? 0 : static_cast<uint32_t>(request.ranks);
  if (request.serve) {
    options.server = std::make_shared<SecretStoreServer>(listen_at(request.listen, request.port), secret, options.size);
    options.port = options.server->port();
  }
  auto store = c10::make_intrusive<SecretStore>(options);
  if (request.wait && request.ranks > 0) {
    // Whoever serves stays until all have come.
    const bool all = store->add("init/", 1) == request.ranks;
    if (all) store->set("init/all", std::vector<uint8_t>{1});
    if (request.serve) store->wait({"init/all"}, request.timeout);
  }
  return store;
}

}  // namespace

// (host, port, isServer, ranks or -1, timeoutMs, wait for the others, listen | null, secret | null, rank or -1): also whoever
// serves is a client.
PW_ENTRY(tcp_store, 9) {
  TcpRequest request;
  request.host = args.string(0);
  request.port = static_cast<uint16_t>(args.int32(1));
  request.serve = args.boolean(2);
  request.ranks = args.int32(3);
  request.timeout = std::chrono::milliseconds(args.int64(4));
  request.wait = args.boolean(5);
  request.listen = args.missing(6) ? request.host : args.string(6);
  const std::string secret = args.missing(7) ? "" : args.string(7);
  request.rank = args.int32(8);
  StorePtr store = away(args.napi, request.timeout.count(), "no answer from the store's server",
      [request, secret] { return secret.empty() ? open_store(request) : open_secret_store(request, secret); });
  return add_store(*args.env, std::move(store));
}

PW_ENTRY(store_port, 1) {
  const StorePtr store = store_of(*args.env, args.int32(0));
  if (const auto* own = dynamic_cast<SecretStore*>(store.get())) return from_int32(args.napi, own->port());
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(store.get());
  return from_int32(args.napi, tcp != nullptr ? tcp->getPort() : 0);
}

PW_ENTRY(hash_store, 1) {
  HashStores& all = hash_stores();
  std::lock_guard<std::mutex> lock(all.mutex);
  const std::string name = args.string(0);
  const auto found = all.by_name.find(name);
  c10::intrusive_ptr<c10d::HashStore> store;
  if (found != all.by_name.end()) store = found->second.lock();
  if (!store) {
    for (auto it = all.by_name.begin(); it != all.by_name.end();)
      it = it->second.expired() ? all.by_name.erase(it) : std::next(it);
    store = c10::make_intrusive<c10d::HashStore>();
    all.by_name.insert_or_assign(name, c10::weak_intrusive_ptr<c10d::HashStore>(store));
  }
  return add_store(*args.env, std::move(store));
}

// (path, ranks)
PW_ENTRY(file_store, 2) {
  return add_store(*args.env, c10::make_intrusive<c10d::FileStore>(args.string(0), args.int32(1)));
}

// (prefix, store)
PW_ENTRY(prefix_store, 2) {
  return add_store(
      *args.env, c10::make_intrusive<c10d::PrefixStore>(args.string(0), store_of(*args.env, args.int32(1))));
}

constexpr int64_t kQuick = 60000;  // for calls that wait for no other rank

// (store, key, value)
PW_ENTRY(store_set, 3) {
  StorePtr store = store_of(*args.env, args.int32(0));
  const std::string key = args.string(1);
  const Bytes value = bytes_of(args.napi, args.values[2]);
  away(args.napi, kQuick, "no answer from the store", [=] {
    store->set(key, value);
    return true;
  });
  return nullptr;
}

// (store, key, timeoutMs): the value, once somebody has set it.
PW_ENTRY(store_get, 3) {
  StorePtr store = store_of(*args.env, args.int32(0));
  const std::string key = args.string(1);
  const int64_t timeout = args.int64(2);
  return from_bytes(args.napi, away(args.napi, timeout, "nobody has set the key", [=] {
    store->wait({key}, std::chrono::milliseconds(timeout));
    return store->get(key);
  }));
}

// (store, keys, timeoutMs)
PW_ENTRY(store_wait, 3) {
  StorePtr store = store_of(*args.env, args.int32(0));
  const std::vector<std::string> keys = strings(args.napi, args.values[1]);
  const int64_t timeout = args.int64(2);
  away(args.napi, timeout, "nobody has set all of the keys", [=] {
    store->wait(keys, std::chrono::milliseconds(timeout));
    return true;
  });
  return nullptr;
}

// (store, key, number): the sum so far.
PW_ENTRY(store_add, 3) {
  StorePtr store = store_of(*args.env, args.int32(0));
  const std::string key = args.string(1);
  const int64_t value = args.int64(2);
  return from_int64(
      args.napi, away(args.napi, kQuick, "no answer from the store", [=] { return store->add(key, value); }));
}

PW_ENTRY(store_check, 2) {
  StorePtr store = store_of(*args.env, args.int32(0));
  const std::vector<std::string> keys = strings(args.napi, args.values[1]);
  return from_bool(args.napi, away(args.napi, kQuick, "no answer from the store", [=] { return store->check(keys); }));
}

PW_ENTRY(store_delete, 2) {
  StorePtr store = store_of(*args.env, args.int32(0));
  const std::string key = args.string(1);
  return from_bool(
      args.napi, away(args.napi, kQuick, "no answer from the store", [=] { return store->deleteKey(key); }));
}

PW_ENTRY(store_count, 1) {
  StorePtr store = store_of(*args.env, args.int32(0));
  return from_int64(
      args.napi, away(args.napi, kQuick, "no answer from the store", [=] { return store->getNumKeys(); }));
}

// (store, key, expected, wanted): the value afterwards.
PW_ENTRY(store_compare_set, 4) {
  StorePtr store = store_of(*args.env, args.int32(0));
  const std::string key = args.string(1);
  const Bytes expected = bytes_of(args.napi, args.values[2]), wanted = bytes_of(args.napi, args.values[3]);
  return from_bytes(args.napi,
      away(args.napi, kQuick, "no answer from the store", [=] { return store->compareSet(key, expected, wanted); }));
}

// (file, word): where the number of the next generation of ranks is written.
PW_ENTRY(generations_watch, 2) {
  watch_generations(args.string(0), static_cast<size_t>(args.int64(1)));
  return nullptr;
}

// (number): waits that begin from now on belong to it.
PW_ENTRY(generation_set, 1) {
  set_generation(args.int32(0));
  return nullptr;
}

PW_ENTRY(store_close, 1) {
  HandleTable<StorePtr>& table = stores[args.env];
  StorePtr* found = table.find(args.int32(0));
  if (found == nullptr) return nullptr;
  if (auto* own = dynamic_cast<SecretStore*>(found->get())) own->stop_server();
  // A client of a dead server may take its time to say goodbye.
  run_on_pool([store = std::move(*found)]() mutable { store.reset(); });
  table.remove(args.int32(0));
  return nullptr;
}

void init_store(Env& env, napi_value exports) {
  // What c10d logs as an error is thrown as one; it would print a C++ stack besides.
  static const bool once = [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;
    return true;
  }();
  (void)once;
  at_env_end(env, [key = &env] { stores.erase(key); });
  add_exports(env, exports,
      {
          {"tcpStore", tcp_store},
          {"storePort", store_port},
          {"hashStore", hash_store},
          {"fileStore", file_store},
          {"prefixStore", prefix_store},
          {"storeSet", store_set},
          {"storeGet", store_get},
          {"storeWait", store_wait},
          {"storeAdd", store_add},
          {"storeCheck", store_check},
          {"storeDelete", store_delete},
          {"storeCount", store_count},
          {"storeCompareSet", store_compare_set},
          {"storeClose", store_close},
          {"watchGenerations", generations_watch},
          {"setGeneration", generation_set},
      });
}

}  // namespace pw
