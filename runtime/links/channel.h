#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

namespace trellis::runtime {

class SharedBytes;

/// A message to other processes: a description, and bytes that stay where they are until it is
/// sent.
class Outgoing {
 public:
  using Bytes = std::pair<const std::byte*, std::size_t>;
  Outgoing(const nlohmann::json& what, std::vector<Bytes> data);
  ~Outgoing();
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  [[nodiscard]] const std::vector<std::uint8_t>& what() const { return what_; }  ///< CBOR
  [[nodiscard]] const std::vector<Bytes>& data() const { return data_; }
  [[nodiscard]] std::size_t data_size() const { return data_size_; }
  /// A copy of the data that processes of this host can map, made once for all of them; nullptr
  /// where the system gives no memory for it.
  [[nodiscard]] const SharedBytes* shared() const;

 private:
  std::vector<std::uint8_t> what_;
  std::vector<Bytes> data_;
  std::size_t data_size_ = 0;
  mutable bool has_tried_ = false;
  mutable std::unique_ptr<SharedBytes> shared_;
};

struct Incoming {
  nlohmann::json what;
  at::Tensor data;  ///< uint8 [bytes], aligned for any type
};

/// Messages from this process to one other and back. They arrive in their order. One thread sends
/// at a time, and one receives.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Does not wait for the other to work on it. Throws when the other process is gone.
  virtual void send(const Outgoing& message) = 0;
  /// The same for a small message without data, which is left out where sending would wait.
  virtual void try_send(const Outgoing& message) = 0;
  /// Waits for one. Throws when the other process is gone.
  virtual Incoming receive() = 0;
  /// Waits until what was sent has left this process; not longer than `patience`.
  virtual void flush(std::chrono::milliseconds /*patience*/) {}
  /// May be called from any thread: send and receive throw from then on, also those in progress.
  virtual void stop() = 0;
};

}  // namespace trellis::runtime
