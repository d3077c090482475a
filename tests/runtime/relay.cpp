#include "tests/runtime/relay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace trellis::runtime::testing {
namespace {

constexpr int kLookMs = 20;

int new_listener(const char* host) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, host, &address.sin_addr);
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address);
  ::listen(socket, 16);
  return socket;
}

int port_of(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

}  // namespace

int free_port() {
  const int probe = new_listener("127.0.0.1");
  const int port = port_of(probe);
  ::close(probe);
  return port;
}

Relay::~Relay() {
  ends_ = true;
  std::vector<std::thread> threads;
  for (bool some = true; some;) {
    {
      const std::lock_guard lock(mutex_);
      threads.swap(threads_);
    }
    some = !threads.empty();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
  for (const int socket : sockets_) ::close(socket);
}

int Relay::port_for(const sockaddr_in& place) {
  const std::lock_guard lock(mutex_);
  int& port = ports_[{place.sin_addr.s_addr, place.sin_port}];
  if (port != 0) return port;
  const int listener = new_listener(kOwn);
  sockets_.push_back(listener);
  threads_.emplace_back([this, listener, place] { accept_from(listener, place); });
  return port = port_of(listener);
}

void Relay::accept_from(int listener, sockaddr_in place) {
  pollfd ready{listener, POLLIN, 0};
  while (!ends_) {
    if (::poll(&ready, 1, kLookMs) <= 0) continue;
    const int near = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const int far = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ::connect(far, reinterpret_cast<sockaddr*>(&place), sizeof place);
    const std::lock_guard lock(mutex_);
    sockets_.insert(sockets_.end(), {near, far});
    threads_.emplace_back([this, near, far] { forward(near, far); });
    threads_.emplace_back([this, near, far] { forward(far, near); });
  }
}

void Relay::forward(int from, int to) {
  std::vector<char> bytes(std::size_t{1} << 16);
  pollfd ready{from, POLLIN, 0};
  while (!ends_) {
    if (cut_) {
      ::poll(nullptr, 0, kLookMs);
      continue;
    }
    if (::poll(&ready, 1, kLookMs) <= 0) continue;
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) break;
    for (ssize_t at = 0; at < got && !ends_;) {
      const ssize_t sent = ::send(to, bytes.data() + at, static_cast<std::size_t>(got - at),
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) at += sent;
      if (sent <= 0 && errno != EAGAIN) return;
      if (sent <= 0) ::poll(nullptr, 0, 1);
    }
  }
  if (!ends_ && !cut_) ::shutdown(to, SHUT_WR);
}

void RelayedStore::set(const std::string& key, const Bytes& value) {
  // "[[HOST, …": another host's name for each process.
  Bytes said = value;
  if (key.starts_with("host/")) said[3] = static_cast<std::uint8_t>('A' + process_);
  store_->set(key, said);
}

/// Gloo's addresses are sockaddr_in among other bytes.
RelayedStore::Bytes RelayedStore::relayed(Bytes value) {
  for (std::size_t at = 0; at + sizeof(sockaddr_in) <= value.size(); ++at) {
    sockaddr_in place{};
    std::memcpy(&place, value.data() + at, sizeof place);
    const auto is_at = [&place](const char* host) {
      return place.sin_addr.s_addr == ::inet_addr(host);
    };
    if (place.sin_family != AF_INET || !std::ranges::any_of(Relay::kHosts, is_at)) continue;
    place.sin_port = htons(static_cast<std::uint16_t>(relay_.port_for(place)));
    place.sin_addr.s_addr = ::inet_addr(Relay::kOwn);
    std::memcpy(value.data() + at, &place, sizeof place);
  }
  return value;
}

std::vector<RelayedStore::Bytes> RelayedStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<Bytes> values;
  for (const std::string& key : keys) values.push_back(get(key));
  return values;
}

void RelayedStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<Bytes>& values) {
  for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
}

}  // namespace trellis::runtime::testing
