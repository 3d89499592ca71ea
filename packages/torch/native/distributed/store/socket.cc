// Sockets of the stores.
#include "distributed/store/socket.h"

#include "core/core.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace pw {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, uint16_t port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int problem = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (problem != 0) why = "the name " + host + " cannot be resolved: " + gai_strerror(problem);
  return Addresses(problem == 0 ? found : nullptr, freeaddrinfo);
}

bool is_literal(const std::string& host) {
  in6_addr room;
  return inet_pton(AF_INET, host.c_str(), &room) == 1 || inet_pton(AF_INET6, host.c_str(), &room) == 1;
}

bool is_loopback(const addrinfo& one) {
  if (one.ai_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(one.ai_addr)->sin_addr.s_addr) >> 24) == 127;
  return one.ai_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(one.ai_addr)->sin6_addr);
}

Socket open_socket(const addrinfo& one) {
  Socket socket(::socket(one.ai_family, one.ai_socktype, one.ai_protocol));
  if (socket.is_open()) fcntl(socket.fd(), F_SETFD, FD_CLOEXEC);
  return socket;
}

// A closed socket: errno says why.
Socket try_listen(const addrinfo& one) {
  Socket socket = open_socket(one);
  if (!socket.is_open()) return socket;
  const int on = 1, off = 0;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (one.ai_family == AF_INET6) setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(socket.fd(), one.ai_addr, one.ai_addrlen) == 0 && listen(socket.fd(), SOMAXCONN) == 0) return socket;
  const int problem = errno;
  socket = Socket();
  errno = problem;
  return socket;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

int Socket::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

Socket listen_at(const std::string& host, uint16_t port) {
  std::string why;
  const bool exact = is_literal(host) || host == "localhost";
  int problem = EADDRNOTAVAIL;
  const auto attempt = [&](const Addresses& addresses, bool loopback) {
    for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
      if (!loopback && is_loopback(*one)) continue;
      Socket socket = try_listen(*one);
      if (socket.is_open()) return socket;
      problem = errno;
      if (problem == EADDRINUSE) break;
    }
    return Socket();
  };
  Socket socket = attempt(resolve(host, port, 0, why), exact);
  if (!socket.is_open() && !exact && problem == EADDRNOTAVAIL)
    socket = attempt(resolve("", port, AI_PASSIVE, why), true);
  if (socket.is_open()) return socket;
  if (problem == EADDRINUSE) throw CodedError("IN_USE", "another program listens on port " + std::to_string(port));
  if (problem == EADDRNOTAVAIL) throw CodedError("BAD_ARGUMENT", host + " is not an address of this machine");
  throw CodedError(
      "LIBTORCH", "cannot listen at " + host + ", port " + std::to_string(port) + ": " + std::strerror(problem));
}

uint16_t port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Socket connect_to(const std::string& host, uint16_t port, std::chrono::milliseconds limit, std::string& why) {
  const Addresses addresses = resolve(host, port, 0, why);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Socket socket = open_socket(*one);
    if (!socket.is_open()) continue;
    fcntl(socket.fd(), F_SETFL, O_NONBLOCK);
    int problem = connect(socket.fd(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (problem == EINPROGRESS) {
      pollfd wait{socket.fd(), POLLOUT, 0};
      socklen_t length = sizeof(problem);
      if (poll(&wait, 1, static_cast<int>(limit.count())) <= 0) problem = ETIMEDOUT;
      else getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &problem, &length);
    }
    if (problem == 0) {
      const int on = 1;
      setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
      return socket;
    }
    why = std::strerror(problem);
  }
  return Socket();
}

}  // namespace pw
