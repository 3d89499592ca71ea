// Sockets of the stores: where to listen, and how to reach whoever does.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace pw {

// A file descriptor that is closed with its owner.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  ~Socket();

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release();

 private:
  int fd_;
};

// Listens at `host` and nowhere else. A name of this machine that is not tied to one of its interfaces (it stands for a
// loopback address in many /etc/hosts, although others reach it elsewhere) means all addresses. Throws EADDRINUSE as IN_USE.
Socket listen_at(const std::string& host, uint16_t port);
uint16_t port_of(const Socket& socket);

// Connects, or gives a closed socket and says why not.
Socket connect_to(const std::string& host, uint16_t port, std::chrono::milliseconds limit, std::string& why);

}  // namespace pw
