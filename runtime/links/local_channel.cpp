#include "runtime/links/local_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "runtime/links/shared_bytes.h"

namespace trellis::runtime {
namespace {

/// More goes through shared memory: less is copied twice in less time than a mapping takes.
constexpr std::size_t kMostInSocket = std::size_t{64} << 10;

/// In front of a message; with a descriptor where the data is in shared memory.
struct SocketHead {
  std::uint64_t what = 0;  ///< bytes of the description
  std::uint64_t data = 0;  ///< bytes of data
  bool is_shared = false;
};

[[noreturn]] void throw_gone(const char* did) {
  throw std::runtime_error(std::string(did) + ": " +
                           (errno == 0 ? "connection closed by peer" : std::strerror(errno)));
}

/// Sends all of `parts`, with the descriptor unless it is −1. False, and nothing was sent: too many
/// descriptors are under way, or `first_flags` say not to wait and it would have to.
bool send_all(int socket, std::vector<iovec> parts, int descriptor, int first_flags = 0) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  std::size_t first = 0;
  while (first < parts.size()) {
    msghdr message{};
    message.msg_iov = &parts[first];
    message.msg_iovlen = parts.size() - first;
    if (descriptor >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | first_flags);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == ETOOMANYREFS || errno == EAGAIN)) return false;
    if (sent < 0) throw_gone("send");
    descriptor = -1;
    first_flags = 0;
    auto left = static_cast<std::size_t>(sent);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (first == parts.size()) return true;
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
    parts[first].iov_len -= left;
  }
  return true;
}

iovec part(const void* begin, std::size_t size) { return {const_cast<void*>(begin), size}; }

/// The descriptor that came with a message, or −1.
int descriptor_in(msghdr& message) {
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}

/// Receives `size` bytes. Returns the descriptor that came with them, or −1.
int receive_all(int socket, void* place, std::size_t size) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  int descriptor = -1;
  while (size > 0) {
    iovec into{place, size};
    msghdr message{};
    message.msg_iov = &into;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    errno = 0;
    const ssize_t received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) throw_gone("receive");
    if (const int came = descriptor_in(message); came >= 0) descriptor = came;
    place = static_cast<char*>(place) + received;
    size -= static_cast<std::size_t>(received);
  }
  return descriptor;
}

/// An address without a place in the file system; the length that bind and connect need.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

int new_socket() {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0)
    throw ConfigError(std::string("cannot make a socket for the processes of this host: ") +
                      std::strerror(errno));
  return socket;
}

bool is_same_user(int socket) {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
         other.uid == ::getuid();
}

[[noreturn]] void throw_missing(int process, const std::string& why) {
  throw Error(ExitCode::kHang, "process " + std::to_string(process) +
                                   " of this host did not connect: " + why +
                                   ": look at its output");
}

}  // namespace

LocalChannel::~LocalChannel() { ::close(socket_); }

void LocalChannel::send(const Outgoing& message) {
  SocketHead head{message.what().size(), message.data_size(), false};
  std::vector<iovec> parts = {part(&head, sizeof head),
                              part(message.what().data(), message.what().size())};
  if (message.data_size() > kMostInSocket && message.shared() != nullptr) {
    head.is_shared = true;
    if (send_all(socket_, parts, message.shared()->descriptor())) return;
    head.is_shared = false;
  }
  std::vector<std::byte> data;  // one part: a call takes a limited number
  data.reserve(message.data_size());
  for (const auto& [begin, size] : message.data()) data.insert(data.end(), begin, begin + size);
  parts.push_back(part(data.data(), data.size()));
  (void)send_all(socket_, std::move(parts), -1);
}

void LocalChannel::try_send(const Outgoing& message) {
  SocketHead head{message.what().size(), 0, false};
  (void)send_all(socket_,
                 {part(&head, sizeof head), part(message.what().data(), message.what().size())}, -1,
                 MSG_DONTWAIT);
}

void LocalChannel::stop() { ::shutdown(socket_, SHUT_RDWR); }

Incoming LocalChannel::receive() {
  SocketHead head;
  const int descriptor = receive_all(socket_, &head, sizeof head);
  std::vector<std::uint8_t> what(head.what);
  receive_all(socket_, what.data(), what.size());
  if (head.is_shared && descriptor < 0)
    throw std::runtime_error(
        "this process has no file descriptor left for bytes of another: raise `ulimit -n`");
  if (head.is_shared)
    return {nlohmann::json::from_cbor(what), SharedBytes::map(descriptor, head.data)};
  at::Tensor data = at::empty({static_cast<std::int64_t>(head.data)}, at::kByte);
  receive_all(socket_, data.data_ptr(), head.data);
  return {nlohmann::json::from_cbor(what), std::move(data)};
}

std::string LocalMeeting::host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", error);
  if (boot.empty() || error) return "";
  return boot + " " + network.string() + " " + std::to_string(::getuid());
}

LocalMeeting::LocalMeeting(int others) {
  std::string number;
  std::ifstream("/proc/sys/kernel/random/uuid") >> number;  // new at each reading
  address_ = "trellis/" + number;
  listener_ = new_socket();
  const auto [address, length] = abstract_address(address_);
  if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener_, others) != 0) {
    const std::string why = std::strerror(errno);
    ::close(listener_);
    throw ConfigError("cannot listen for the processes of this host: " + why);
  }
}

LocalMeeting::~LocalMeeting() { ::close(listener_); }

namespace {

std::unique_ptr<Channel> connect_to(int process, int other, const std::string& name) {
  const int socket = new_socket();
  auto channel = std::make_unique<LocalChannel>(socket);
  const auto [address, length] = abstract_address(name);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      !is_same_user(socket))
    throw_missing(other, std::strerror(errno));
  (void)send_all(socket, {part(&process, sizeof process)}, -1);
  return channel;
}

using Clock = std::chrono::steady_clock;

/// True if there is something to read, or a connection to accept, before `until`.
bool is_ready(int socket, Clock::time_point until) {
  pollfd ready{socket, POLLIN, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    constexpr std::int64_t kLongestMs = 1 << 30;
    const auto wait = std::clamp<std::int64_t>(left, 0, kLongestMs);
    const int count = ::poll(&ready, 1, static_cast<int>(wait));
    if (count < 0 && errno == EINTR) continue;
    return count > 0;
  }
}

/// The number of the process that connected; −1: a stranger, or one that says nothing.
int number_of(int socket) try {
  constexpr std::chrono::seconds kPatience(2);
  int number = -1;
  if (!is_same_user(socket) || !is_ready(socket, Clock::now() + kPatience)) return -1;
  if (::recv(socket, &number, sizeof number, MSG_DONTWAIT) != sizeof number) return -1;
  return number;
} catch (const std::runtime_error&) {
  return -1;
}

}  // namespace

std::map<int, std::unique_ptr<Channel>> LocalMeeting::meet(
    int process, const std::map<int, std::string>& addresses, std::chrono::milliseconds patience) {
  std::map<int, std::unique_ptr<Channel>> channels;
  for (const auto& [other, address] : addresses) {
    if (other < process) channels[other] = connect_to(process, other, address);
  }
  const auto until = Clock::now() + patience;
  while (channels.size() < addresses.size()) {
    if (!is_ready(listener_, until)) {
      for (const auto& [other, address] : addresses) {
        if (!channels.contains(other))
          throw_missing(other, "waited " + std::to_string(patience.count() / 1000) + " s");
      }
    }
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    auto channel = std::make_unique<LocalChannel>(socket);
    const int other = number_of(socket);
    if (addresses.contains(other) && !channels.contains(other))
      channels[other] = std::move(channel);
  }
  return channels;
}

}  // namespace trellis::runtime
