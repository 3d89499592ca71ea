// The server of a store with a secret: one thread, sockets that never block it, limits for whoever has not shown the secret.
#include "distributed/store/secret-store.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <unordered_map>

namespace pw {

using namespace secret_store;
using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

namespace {

constexpr milliseconds kHelloLimit{10000};  // to show the secret
constexpr size_t kStrangers = 256;          // connections that have yet to show it; the oldest goes first

struct Client {
  Socket socket;
  std::string in, out, nonce;
  bool known = false, gone = false;
  uint32_t rank = kNobody;
  Steady::time_point since = Steady::now();
  Seal sign, verify;
  // A wait under way.
  std::vector<std::string> keys;
  Steady::time_point until;
};

}  // namespace

class SecretStoreServer::Loop {
 public:
  Loop(Socket listener, Socket wake, std::string secret, uint32_t size)
      : listener_(std::move(listener)), wake_(std::move(wake)), secret_(std::move(secret)), size_(size) {
    fcntl(listener_.fd(), F_SETFL, O_NONBLOCK);
  }

  void run() {
    while (turn()) {
    }
  }

 private:
  bool turn() {
    std::vector<pollfd> all{{wake_.fd(), POLLIN, 0}, {listener_.fd(), static_cast<short>(full_ ? 0 : POLLIN), 0}};
    for (const Client& client : clients_)
      all.push_back({client.socket.fd(), static_cast<short>(POLLIN | (client.out.empty() ? 0 : POLLOUT)), 0});
    poll(all.data(), all.size(), static_cast<int>(next_deadline().count()));
    if (all[0].revents != 0) return false;
    size_t i = 2;
    for (Client& client : clients_) {
      const short events = all[i++].revents;
      if ((events & POLLOUT) != 0) flush(client);
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read(client);
    }
    full_ = false;
    if ((all[1].revents & POLLIN) != 0) accept_all();
    look_at_clock();
    clients_.remove_if([](const Client& client) { return client.gone; });
    return true;
  }

  milliseconds next_deadline() const {
    Steady::time_point next = Steady::now() + (full_ ? milliseconds(100) : milliseconds(60000));
    for (const Client& client : clients_) {
      if (!client.known) next = std::min(next, client.since + kHelloLimit);
      if (!client.keys.empty()) next = std::min(next, client.until);
    }
    return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(next - Steady::now()));
  }

  void accept_all() {
    for (;;) {
      Socket socket(accept(listener_.fd(), nullptr, nullptr));
      if (!socket.is_open()) {
        full_ = errno != EAGAIN && errno != EWOULDBLOCK;  // too many open files: again a little later
        return;
      }
      fcntl(socket.fd(), F_SETFD, FD_CLOEXEC);
      fcntl(socket.fd(), F_SETFL, O_NONBLOCK);
      const int on = 1;
      setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
      clients_.emplace_back();
      Client& client = clients_.back();
      client.socket = std::move(socket);
      client.nonce = random_bytes(kNonce);
      client.out = kGreeting + client.nonce;
      flush(client);
      drop_oldest_stranger();
    }
  }

  void drop_oldest_stranger() {
    size_t strangers = 0;
    Client* oldest = nullptr;
    for (Client& client : clients_) {
      if (client.known || client.gone) continue;
      if (oldest == nullptr) oldest = &client;
      ++strangers;
    }
    if (strangers > kStrangers) oldest->gone = true;
  }

  void look_at_clock() {
    const Steady::time_point now = Steady::now();
    for (Client& client : clients_) {
      if (!client.known && now >= client.since + kHelloLimit) client.gone = true;
      if (!client.keys.empty() && now >= client.until) finish_wait(client, false);
    }
  }

  void flush(Client& client) {
    while (!client.out.empty()) {
      const ssize_t sent = send(client.socket.fd(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
      if (sent > 0) client.out.erase(0, static_cast<size_t>(sent));
      else if (sent < 0 && errno == EINTR) continue;
      else {
        client.gone = client.gone || !(sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
        return;
      }
    }
  }

  void read(Client& client) {
    char room[64 << 10];
    for (;;) {
      const ssize_t got = recv(client.socket.fd(), room, sizeof(room), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) {
        client.gone = true;
        return;
      }
      client.in.append(room, static_cast<size_t>(got));
      try {
        while (!client.gone && take(client)) {
        }
      } catch (const std::exception&) {
        client.gone = true;  // it does not speak this protocol
      }
      if (client.gone) return;
    }
  }

  // Takes one message from what has come; false where there is not yet a whole one.
  bool take(Client& client) {
    if (!client.known) return greet(client);
    if (client.in.size() < 4) return false;
    const size_t size = Fields(client.in).get<uint32_t>();
    if (size > kLargest) {
      client.gone = true;
      return false;
    }
    if (client.in.size() < 4 + size + kProof) return false;
    const std::string bytes = client.in.substr(4, size), signature = client.in.substr(4 + size, kProof);
    client.in.erase(0, 4 + size + kProof);
    if (!equal_digests(signature, client.verify.sign(bytes))) {
      client.gone = true;
      return false;
    }
    serve(client, bytes);
    return true;
  }

  bool greet(Client& client) {
    if (client.in.size() < kHello) return false;
    const std::string hello = client.in.substr(0, kHello);
    client.in.erase(0, kHello);
    const std::string nonces = client.nonce + hello.substr(0, kNonce), who = hello.substr(kNonce, 8);
    Fields fields(who);
    const uint32_t rank = fields.get<uint32_t>(), size = fields.get<uint32_t>();
    if (!equal_digests(hello.substr(kNonce + 8), proof(secret_, "client", nonces + who))) {
      client.out += std::string(1, static_cast<char>(Verdict::wrong_secret)) + std::string(kVerdict - 1, '\0');
      flush(client);
      client.gone = true;
      return false;
    }
    Verdict verdict = Verdict::welcome;
    uint32_t value = 0;
    if (rank != kNobody) {
      const bool taken = std::any_of(clients_.begin(), clients_.end(),
          [&](const Client& one) { return one.known && !one.gone && one.rank == rank; });
      if (size != size_) verdict = Verdict::other_size, value = size_;
      else if (rank >= size_) verdict = Verdict::no_such_rank, value = size_;
      else if (taken) verdict = Verdict::rank_taken, value = rank;
    }
    std::string head;
    put_number<uint8_t>(head, static_cast<uint8_t>(verdict));
    put_number<uint32_t>(head, value);
    client.out += head + proof(secret_, "server", nonces + head);
    flush(client);
    client.gone = client.gone || verdict != Verdict::welcome;
    client.known = true;
    client.rank = rank;
    client.sign = Seal(secret_, "server", nonces);
    client.verify = Seal(secret_, "client", nonces);
    return true;
  }

  void answer(Client& client, const std::string& bytes) {
    put_number<uint32_t>(client.out, static_cast<uint32_t>(bytes.size()));
    client.out += bytes;
    client.out += client.sign.sign(bytes);
    flush(client);
  }
  void answer(Client& client, bool yes) { answer(client, std::string(1, yes ? '\1' : '\0')); }

  bool has_all(const std::vector<std::string>& keys) const {
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return values_.count(key) != 0; });
  }

  void finish_wait(Client& client, bool found) {
    client.keys.clear();
    answer(client, found);
  }

  // A key has a value: those who wait for it may go on.
  void changed() {
    for (Client& client : clients_) {
      if (!client.gone && !client.keys.empty() && has_all(client.keys)) finish_wait(client, true);
    }
  }

  void serve(Client& client, const std::string& bytes) {
    Fields fields(bytes);
    const auto list = [&] {
      std::vector<std::string> keys(std::min<size_t>(fields.get<uint32_t>(), bytes.size()));
      for (std::string& key : keys) key = fields.text();
      return keys;
    };
    switch (static_cast<Op>(fields.get<uint8_t>())) {
      case Op::set: {
        const std::string key = fields.text();
        values_[key] = fields.text();
        answer(client, true);
        return changed();
      }
      case Op::compare_set: {
        const std::string key = fields.text(), expected = fields.text(), wanted = fields.text();
        const auto found = values_.find(key);
        if (found == values_.end() && !expected.empty()) return answer(client, expected);
        if (found != values_.end() && found->second != expected) return answer(client, found->second);
        values_[key] = wanted;
        answer(client, wanted);
        return changed();
      }
      case Op::get: {
        const auto found = values_.find(fields.text());
        return answer(client, found == values_.end() ? std::string(1, '\0') : '\1' + found->second);
      }
      case Op::add: {
        // Counters are kept as text, as libtorch's stores do.
        std::string& value = values_[fields.text()];
        char* end = nullptr;
        const int64_t before = std::strtoll(value.c_str(), &end, 10);
        if (end != value.c_str() + value.size()) return answer(client, std::string());
        const int64_t sum =
            static_cast<int64_t>(static_cast<uint64_t>(before) + static_cast<uint64_t>(fields.get<int64_t>()));
        value = std::to_string(sum);
        std::string text;
        put_number<int64_t>(text, sum);
        answer(client, text);
        return changed();
      }
      case Op::remove:
        return answer(client, values_.erase(fields.text()) != 0);
      case Op::check:
        return answer(client, has_all(list()));
      case Op::count: {
        std::string text;
        put_number<int64_t>(text, static_cast<int64_t>(values_.size()));
        return answer(client, text);
      }
      case Op::wait: {
        const milliseconds limit(fields.get<uint32_t>());
        std::vector<std::string> keys = list();
        if (has_all(keys) || limit.count() == 0) return answer(client, has_all(keys));
        client.keys = std::move(keys);
        client.until = Steady::now() + limit;
        return;
      }
    }
    client.gone = true;
  }

  Socket listener_, wake_;
  const std::string secret_;
  const uint32_t size_;
  bool full_ = false;
  std::list<Client> clients_;
  std::unordered_map<std::string, std::string> values_;
};

SecretStoreServer::SecretStoreServer(Socket listener, std::string secret, uint32_t size) : port_(port_of(listener)) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe could be made for the store");
  for (int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  wake_ = Socket(ends[1]);
  auto loop = std::make_shared<Loop>(std::move(listener), Socket(ends[0]), std::move(secret), size);
  thread_ = std::thread([loop = std::move(loop)]() mutable {
    loop->run();
    loop.reset();
  });
}

SecretStoreServer::~SecretStoreServer() { stop(); }

void SecretStoreServer::stop() {
  std::lock_guard<std::mutex> lock(stopping_);
  wake_ = Socket();  // the other end of the pipe says so
  if (thread_.joinable()) thread_.join();
}

}  // namespace pw
