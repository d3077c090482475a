#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/links/channel.h"

namespace trellis::runtime {

/// A channel to a process of the same host: a socket of the host, and shared memory for what is
/// large.
class LocalChannel final : public Channel {
 public:
  /// Takes a connected socket.
  explicit LocalChannel(int socket) : socket_(socket) {}
  ~LocalChannel() override;
  LocalChannel(const LocalChannel&) = delete;
  LocalChannel& operator=(const LocalChannel&) = delete;
  void send(const Outgoing& message) override;
  void try_send(const Outgoing& message) override;
  Incoming receive() override;
  void stop() override;

 private:
  int socket_;
};

/// Where the processes of a job that are on one host meet. Their sockets have no place in the file
/// system, so they are seen where the network is the same (network namespace of Linux).
class LocalMeeting {
 public:
  /// The host, its network and the user: processes of an equal one can meet. "": cannot be said.
  [[nodiscard]] static std::string host();

  /// Listens for up to `others`. Throws ConfigError.
  explicit LocalMeeting(int others);
  ~LocalMeeting();
  LocalMeeting(const LocalMeeting&) = delete;
  LocalMeeting& operator=(const LocalMeeting&) = delete;

  /// Others reach this process there.
  [[nodiscard]] const std::string& address() const { return address_; }
  /// Process `process` connects to those of lower numbers, and those of higher numbers to it;
  /// `addresses` by number, without its own. Throws Error(kHang): one did not come in `patience`.
  [[nodiscard]] std::map<int, std::unique_ptr<Channel>> meet(
      int process, const std::map<int, std::string>& addresses, std::chrono::milliseconds patience);

 private:
  int listener_ = -1;
  std::string address_;
};

}  // namespace trellis::runtime
