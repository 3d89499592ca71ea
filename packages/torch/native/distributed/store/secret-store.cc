// The client of a store with a secret: one connection, which the threads of the process share.
#include "distributed/store/secret-store.h"

#include "core/core.h"

#include <c10/util/Exception.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace pw {

using namespace secret_store;
using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

namespace {

constexpr milliseconds kAnswer{60000};  // for what waits for no other rank
constexpr milliseconds kHandshake{15000}, kRetry{50};
constexpr milliseconds kShortWait{10}, kLongWait{200};  // how long a wait for a key keeps the connection to itself

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

[[noreturn]] void lost(const std::string& why) {
  throw CodedError("PEER_LOST", "the connection to the store is lost: " + why);
}

// The ranks of this generation connect anew: nobody waits for this any more.
void stop_with(const Generation& generation) {
  if (generation.is_over()) throw CodedError("ABORTED", "a rank was lost while the ranks were connecting");
}

// Waits until the socket is ready, at most until `deadline`.
void await_socket(const Socket& socket, short events, Steady::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Steady::now()).count();
  pollfd wait{socket.fd(), events, 0};
  if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) == 0) lost("the store did not answer in time");
}

void send_all(const Socket& socket, const std::string& bytes, Steady::time_point deadline) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(socket.fd(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent > 0) at += static_cast<size_t>(sent);
    else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) await_socket(socket, POLLOUT, deadline);
    else lost(std::strerror(errno));
  }
}

std::string receive(const Socket& socket, size_t count, Steady::time_point deadline) {
  std::string bytes(count, '\0');
  for (size_t at = 0; at < count;) {
    const ssize_t got = recv(socket.fd(), bytes.data() + at, count - at, 0);
    if (got > 0) at += static_cast<size_t>(got);
    else if (got < 0 && (errno == EAGAIN || errno == EINTR)) await_socket(socket, POLLIN, deadline);
    else lost(got == 0 ? "it was closed" : std::strerror(errno));
  }
  return bytes;
}

std::string keys_text(const std::vector<std::string>& keys) {
  std::string text;
  put_number<uint32_t>(text, static_cast<uint32_t>(keys.size()));
  for (const std::string& key : keys) put_text(text, key);
  return text;
}

std::string request(Op op, const std::string& key = "") {
  std::string text;
  put_number<uint8_t>(text, static_cast<uint8_t>(op));
  if (op != Op::count) put_text(text, key);
  return text;
}

}  // namespace

struct SecretStore::Connection {
  Socket socket;
  Seal out, in;
  std::mutex mutex;
  bool broken = false;

  // Sends a request and returns the answer.
  std::string ask(const std::string& bytes, milliseconds limit = kAnswer) {
    if (bytes.size() > kLargest) throw CodedError("BAD_ARGUMENT", "a value of a store may have at most 16 MiB");
    std::lock_guard<std::mutex> lock(mutex);
    if (broken) lost("an earlier call failed");
    broken = true;  // until the whole answer is here
    const Steady::time_point deadline = Steady::now() + limit;
    std::string head;
    put_number<uint32_t>(head, static_cast<uint32_t>(bytes.size()));
    send_all(socket, head + bytes + out.sign(bytes), deadline);
    const std::string length = receive(socket, 4, deadline);
    const uint32_t size = Fields(length).get<uint32_t>();
    if (size > kLargest) lost("an answer is too long");
    const std::string answer = receive(socket, size, deadline);
    if (!equal_digests(receive(socket, kProof, deadline), in.sign(answer))) lost("an answer was changed on its way");
    broken = false;
    return answer;
  }

  // False: the connection ended before a verdict; try again.
  bool enter(const SecretStoreOptions& options) {
    const std::string where = options.host + ":" + std::to_string(options.port);
    const Steady::time_point deadline = Steady::now() + kHandshake;
    std::string first, verdict;
    const std::string own = random_bytes(kNonce);
    try {
      first = receive(socket, kGreetingBytes + kNonce, deadline);
      if (first.compare(0, kGreetingBytes, kGreeting) != 0)
        throw CodedError(
            "REFUSED", "what answers at " + where +
                           " is not a store with a secret; another program, or a run without one, uses the port");
      const std::string nonces = first.substr(kGreetingBytes) + own;
      std::string who;
      put_number<uint32_t>(who, options.rank);
      put_number<uint32_t>(who, options.size);
      send_all(socket, own + who + proof(options.secret, "client", nonces + who), deadline);
      verdict = receive(socket, kVerdict, deadline);
      const std::string head = verdict.substr(0, 5);
      Fields fields(head);
      const auto result = static_cast<Verdict>(fields.get<uint8_t>());
      const uint32_t value = fields.get<uint32_t>();
      if (result == Verdict::wrong_secret)
        throw CodedError("REFUSED", "the store at " + where + " belongs to another run: its secret is another one");
      if (!equal_digests(verdict.substr(5), proof(options.secret, "server", nonces + head)))
        throw CodedError("REFUSED", "what answers at " + where + " does not know the secret of this run");
      if (result == Verdict::other_size)
        throw CodedError("REFUSED",
            "this rank has a WORLD_SIZE of " + std::to_string(options.size) + ", rank 0 has " + std::to_string(value));
      if (result == Verdict::rank_taken)
        throw CodedError("REFUSED", "there is a rank " + std::to_string(value) + " in this run already");
      if (result == Verdict::no_such_rank)
        throw CodedError(
            "REFUSED", "there is no rank " + std::to_string(options.rank) + " among " + std::to_string(value));
      out = Seal(options.secret, "client", nonces);
      in = Seal(options.secret, "server", nonces);
      return true;
    } catch (const CodedError& error) {
      if (std::strcmp(error.code, "PEER_LOST") != 0) throw;
      return false;
    }
  }
};

SecretStore::SecretStore(const SecretStoreOptions& options)
    : c10d::Store(options.timeout), server_(options.server), port_(options.port) {
  const Steady::time_point deadline = Steady::now() + options.timeout;
  std::string why = "no answer";
  do {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Steady::now());
    auto attempt = std::make_shared<Connection>();
    attempt->socket = connect_to(options.host, options.port, std::max(left, kRetry), why);
    if (attempt->socket.is_open() && attempt->enter(options)) {
      connection_ = std::move(attempt);
      return;
    }
    std::this_thread::sleep_for(kRetry);
    stop_with(generation_);
  } while (Steady::now() < deadline);
  throw CodedError("TIMED_OUT", "no store answered: " + why);
}

c10::intrusive_ptr<c10d::Store> SecretStore::clone() { return c10::make_intrusive<SecretStore>(*this); }

void SecretStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  std::string text = request(Op::set, key);
  put_text(text, text_of(value));
  connection_->ask(text);
}

std::vector<uint8_t> SecretStore::compareSet(
    const std::string& key, const std::vector<uint8_t>& expected, const std::vector<uint8_t>& wanted) {
  std::string text = request(Op::compare_set, key);
  put_text(text, text_of(expected));
  put_text(text, text_of(wanted));
  return bytes_of(connection_->ask(text));
}

std::vector<uint8_t> SecretStore::get(const std::string& key) {
  wait({key});
  const std::string answer = connection_->ask(request(Op::get, key));
  if (answer.empty() || answer[0] == 0) C10_THROW_ERROR(DistStoreError, "the key " + key + " was deleted");
  return bytes_of(answer.substr(1));
}

int64_t SecretStore::add(const std::string& key, int64_t value) {
  std::string text = request(Op::add, key);
  put_number<int64_t>(text, value);
  const std::string answer = connection_->ask(text);
  if (answer.size() != sizeof(int64_t)) throw CodedError("BAD_ARGUMENT", "the value of " + key + " is not a number");
  return Fields(answer).get<int64_t>();
}

bool SecretStore::deleteKey(const std::string& key) {
  return connection_->ask(request(Op::remove, key)) == std::string(1, '\1');
}

bool SecretStore::check(const std::vector<std::string>& keys) {
  std::string text;
  put_number<uint8_t>(text, static_cast<uint8_t>(Op::check));
  return connection_->ask(text + keys_text(keys)) == std::string(1, '\1');
}

int64_t SecretStore::getNumKeys() {
  const std::string answer = connection_->ask(request(Op::count));
  return Fields(answer).get<int64_t>();
}

void SecretStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void SecretStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  const Steady::time_point deadline = Steady::now() + timeout;
  const std::string list = keys_text(keys);
  milliseconds slice = kShortWait;
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Steady::now());
    const milliseconds turn = std::clamp(left, milliseconds(0), slice);
    std::string text;
    put_number<uint8_t>(text, static_cast<uint8_t>(Op::wait));
    put_number<uint32_t>(text, static_cast<uint32_t>(turn.count()));
    if (connection_->ask(text + list, turn + kAnswer) == std::string(1, '\1')) return;
    stop_with(generation_);
    if (Steady::now() >= deadline)
      C10_THROW_ERROR(DistStoreError, "the wait for keys timed out after " + std::to_string(timeout.count()) + " ms");
    slice = std::min(slice * 2, kLongWait);
  }
}

}  // namespace pw
