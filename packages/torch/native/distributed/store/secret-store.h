// A store whose users must know the run's secret. libtorch's TCPStore takes whoever comes, reads without a limit, and one half
// of a message stops it for all; it remains for runs without a secret, also with ranks in Python.
//
// After connecting, each end shows that it knows the secret K by answering the other's random number:
//   server  "PWSTORE1"  32 random bytes s
//   client  32 random bytes c  u32 rank  u32 size  HMAC(K, "client" s c rank size)
//   server  u8 verdict  u32 value  HMAC(K, "server" s c verdict value)
// Every message then is  u32 bytes  bytes  HMAC(key, u64 number  bytes)  with a key of this connection and direction, so that
// nothing can be changed, repeated, left out or brought in from elsewhere. Nothing is encrypted. Numbers are little endian.
#pragma once

#include "distributed/store/hmac.h"
#include "distributed/store/socket.h"
#include "distributed/wait.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

namespace pw {

namespace secret_store {

constexpr char kGreeting[] = "PWSTORE1";
constexpr size_t kGreetingBytes = 8, kNonce = 32, kProof = 32;
constexpr size_t kHello = kNonce + 8 + kProof, kVerdict = 5 + kProof;
constexpr size_t kLargest = 16 << 20;  // bytes of one message
constexpr uint32_t kNobody = 0xffffffff;

enum class Verdict : uint8_t { welcome, wrong_secret, other_size, rank_taken, no_such_rank };
enum class Op : uint8_t { set = 1, compare_set, get, add, remove, check, count, wait };

template <typename T>
void put_number(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
inline void put_text(std::string& out, const std::string& text) {
  put_number<uint32_t>(out, static_cast<uint32_t>(text.size()));
  out += text;
}

// Reads fields; anything that does not fit is an exception.
class Fields {
 public:
  explicit Fields(const std::string& bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    const std::string part = take(sizeof(T));
    part.copy(reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }
  std::string text() { return take(get<uint32_t>()); }
  std::string take(size_t count) {
    if (bytes_.size() - at_ < count) throw std::runtime_error("a message is shorter than it says");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

// One direction of a connection: numbers and signs messages.
class Seal {
 public:
  Seal() = default;
  Seal(const std::string& secret, const char* direction, const std::string& nonces)
      : key_(as_text(hmac_sha256(secret, std::string("messages of the ") + direction + nonces))) {}
  std::string sign(const std::string& bytes) {
    std::string text;
    put_number<uint64_t>(text, number_++);
    return as_text(hmac_sha256(key_, text + bytes));
  }

 private:
  std::string key_;
  uint64_t number_ = 0;
};

inline std::string proof(const std::string& secret, const char* who, const std::string& text) {
  return as_text(hmac_sha256(secret, who + text));
}

}  // namespace secret_store

// Serves until it is stopped or destroyed, in a thread of its own that no client can hold up.
class SecretStoreServer {
 public:
  SecretStoreServer(Socket listener, std::string secret, uint32_t size);
  ~SecretStoreServer();
  void stop();  // its port is free afterwards
  uint16_t port() const { return port_; }

 private:
  class Loop;
  std::mutex stopping_;
  uint16_t port_;
  Socket wake_;
  std::thread thread_;
};

struct SecretStoreOptions {
  std::string host;
  uint16_t port = 0;
  std::string secret;
  uint32_t rank = secret_store::kNobody, size = 0;  // 0: any number of users
  std::chrono::milliseconds timeout{0};
  std::shared_ptr<SecretStoreServer> server;  // where this rank serves the store
};

class SecretStore final : public c10d::Store {
 public:
  explicit SecretStore(const SecretStoreOptions& options);  // returns when the server has let us in
  SecretStore(const SecretStore&) = default;                // shares the connection
  using c10d::Store::compareSet;
  using c10d::Store::set;

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(
      const std::string& key, const std::vector<uint8_t>& expected, const std::vector<uint8_t>& wanted) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

  uint16_t port() const { return port_; }
  void stop_server() {
    if (server_) server_->stop();
  }

 private:
  struct Connection;
  Generation generation_;
  std::shared_ptr<SecretStoreServer> server_;  // before the connection: it goes last
  std::shared_ptr<Connection> connection_;
  uint16_t port_;
};

}  // namespace pw
