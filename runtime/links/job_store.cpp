#include "runtime/links/job_store.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "base/log.h"

namespace trellis::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

constexpr int kWaitingConnections = 1024;

Addresses addresses_of(const Launch& launch, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  error =
      ::getaddrinfo(launch.address.c_str(), std::to_string(launch.port).c_str(), &hints, &found);
  return {found, &::freeaddrinfo};
}

/// Names of a cluster may come a moment after its machines.
Addresses resolve(const Launch& launch, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kLongest{10000}, kPause{500};
  const auto until = Clock::now() + std::min(patience, kLongest);
  int error = 0;
  Addresses addresses = addresses_of(launch, error);
  while (error != 0 && Clock::now() + kPause < until) {
    std::this_thread::sleep_for(kPause);
    addresses = addresses_of(launch, error);
  }
  if (error == 0) return addresses;
  throw ConfigError("MASTER_ADDR: the host of process 0, " + launch.address +
                    ", does not resolve: " + ::gai_strerror(error) +
                    "\n  what to do: set MASTER_ADDR to a name or an address that this machine "
                    "finds, such as 127.0.0.1 for processes of one machine");
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  constexpr std::uint32_t kNetwork = 127;
  return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == kNetwork;
}

/// True if every machine of the job takes the name for a loopback address.
bool says_loopback(const std::string& name) {
  in6_addr place{};
  return name == "localhost" || ::inet_pton(AF_INET, name.c_str(), &place) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), &place) == 1;
}

[[noreturn]] void throw_cannot_listen(const Launch& launch, const std::string& why) {
  throw ConfigError("cannot listen at " + launch.address + ":" + std::to_string(launch.port) +
                    ": " + why +
                    "\n  what to do: another program may use the port: set MASTER_PORT to a free "
                    "one for all processes");
}

/// A socket that listens at the address, or −1 where it is none of this machine's.
int listen_at(const Launch& launch, const addrinfo& address) {
  const int socket = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket, address.ai_addr, address.ai_addrlen) == 0 &&
      ::listen(socket, kWaitingConnections) == 0)
    return socket;
  const int error = errno;
  ::close(socket);
  if (error != EADDRNOTAVAIL) throw_cannot_listen(launch, std::strerror(error));
  return -1;
}

/// Nullopt: all interfaces.
std::optional<int> own_listener(const Launch& launch, const addrinfo* addresses) {
  for (const addrinfo* each = addresses; each != nullptr; each = each->ai_next) {
    // /etc/hosts often has the machine's own name at 127.0.1.1, which other machines do not reach.
    if (is_loopback(*each->ai_addr) && !says_loopback(launch.address)) break;
    if (const int socket = listen_at(launch, *each); socket >= 0) return socket;
  }
  log_warning("MASTER_ADDR=" + launch.address +
              " is no network address of this machine: the store of the job listens at port " +
              std::to_string(launch.port) +
              " of all interfaces; name an address of this machine to bind that alone");
  return std::nullopt;
}

[[noreturn]] void throw_no_store(const Launch& launch, bool is_server, const std::string& why) {
  const std::string reason = why.substr(0, why.find('\n'));
  if (is_server) throw_cannot_listen(launch, reason);
  throw ConfigError("process " + std::to_string(launch.process) + " of " +
                    std::to_string(launch.processes) + " found no process 0 at " + launch.address +
                    ":" + std::to_string(launch.port) + ": " + reason +
                    "\n  what to do: check that it runs and that MASTER_ADDR and MASTER_PORT are "
                    "the same everywhere");
}

}  // namespace

void within(std::chrono::milliseconds patience, const std::string& what,
            const std::function<void()>& work) {
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> result = done->get_future();
  std::thread([done, work] {
    try {
      work();
      done->set_value();
    } catch (...) {
      done->set_exception(std::current_exception());
    }
  }).detach();
  if (result.wait_for(patience) != std::future_status::ready)
    throw Error(ExitCode::kHang, what + " for " + std::to_string(patience.count() / 1000) +
                                     " s\n  what to do: look at its process and at the network: it "
                                     "is stopped, paused or cut off");
  result.get();
}

std::string store_prefix(const Launch& launch) {
  const std::string secret = process_environment("TRELLIS_STORE_SECRET");
  return "trellis/" + (secret.empty() ? launch.job : secret) + "/" + std::to_string(launch.restart);
}

c10::intrusive_ptr<c10d::Store> open_job_store(const Launch& launch,
                                               std::chrono::milliseconds patience) {
  const Addresses addresses = resolve(launch, patience);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.port);
  options.isServer = launch.process == 0 && !launch.store_is_there;
  options.waitWorkers = false;
  options.timeout = patience;
  if (options.isServer) options.masterListenFd = own_listener(launch, addresses.get());
  auto store = std::make_shared<c10::intrusive_ptr<c10d::Store>>();
  constexpr std::chrono::milliseconds kMore{1000};
  try {
    within(patience + kMore, "process 0 accepts connections for the store and does not answer",
           [store, options, address = launch.address] {
             *store = c10::make_intrusive<c10d::TCPStore>(address, options);
           });
  } catch (const c10::Error& error) {
    throw_no_store(launch, options.isServer, error.what_without_backtrace());
  }
  return c10::make_intrusive<c10d::PrefixStore>(store_prefix(launch), *store);
}

}  // namespace trellis::runtime
