#include "runtime/links/gloo_channel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <ATen/ops/empty.h>

namespace trellis::runtime {
namespace {

constexpr std::chrono::hours kNever(24 * 365);
/// A message is one block of this many bytes, which most fit in, and the rest.
constexpr std::size_t kBlock = 2048;
constexpr std::size_t kAlignment = 64;

/// In front of a message.
struct BlockHead {
  std::uint64_t what = 0;  ///< bytes of the description
  std::uint64_t data = 0;  ///< bytes of data
  [[nodiscard]] std::size_t data_begin() const {
    return (sizeof(BlockHead) + what + kAlignment - 1) / kAlignment * kAlignment;
  }
  [[nodiscard]] std::size_t total() const { return data_begin() + data; }
};

at::Tensor bytes_tensor(std::size_t size) {
  return at::empty({static_cast<std::int64_t>(size)}, at::kByte);
}

std::byte* begin_of(const at::Tensor& tensor) {
  return reinterpret_cast<std::byte*>(tensor.data_ptr<std::uint8_t>());
}

/// A block, and what does not fit into it after it.
at::Tensor packed(const Outgoing& message) {
  const BlockHead head{message.what().size(), message.data_size()};
  at::Tensor bytes = bytes_tensor(std::max(kBlock, head.total()));
  std::byte* place = begin_of(bytes);
  std::memcpy(place, &head, sizeof head);
  std::memcpy(place + sizeof head, message.what().data(), message.what().size());
  place += head.data_begin();
  for (const auto& [begin, size] : message.data()) {
    if (size > 0) std::memcpy(place, begin, size);  // a piece of no bytes may be nowhere
    place += size;
  }
  return bytes;
}

}  // namespace

GlooChannel::GlooChannel(c10::intrusive_ptr<c10d::Backend> gloo, int process)
    : gloo_(std::move(gloo)), process_(process), sender_([this] { send_queued(); }) {}

GlooChannel::~GlooChannel() {
  stop();
  sender_.join();
}

void GlooChannel::flush(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return queue_.empty() || stopped_ || failed_; });
}

void GlooChannel::send(const Outgoing& message) {
  at::Tensor bytes = packed(message);
  const std::lock_guard lock(mutex_);
  if (stopped_ || failed_) throw std::runtime_error("the connection has ended");
  queue_.push_back(std::move(bytes));
  changed_.notify_all();
}

void GlooChannel::try_send(const Outgoing& message) {
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty()) return;
  }
  send(message);
}

void GlooChannel::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (sending_) sending_->abort();
  if (receiving_) receiving_->abort();
  changed_.notify_all();
}

void GlooChannel::send_queued() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
    if (stopped_) return;
    const at::Tensor bytes = queue_.front();
    lock.unlock();
    bool sent = true;
    try {
      const auto size = static_cast<std::int64_t>(kBlock);
      send_block(bytes.narrow(0, 0, size));
      if (bytes.numel() > size) send_block(bytes.narrow(0, size, bytes.numel() - size));
    } catch (const std::exception&) {
      sent = false;  // who receives from the same process says why
    }
    lock.lock();
    queue_.pop_front();
    failed_ = failed_ || !sent;
    changed_.notify_all();
    if (failed_) return;
  }
}

void GlooChannel::finish(WorkPtr& place, WorkPtr work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) work->abort();
    place = work;
  }
  std::exception_ptr failure;
  bool done = false;
  try {
    done = work->wait(kNever);
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  place = nullptr;
  if (failure) std::rethrow_exception(failure);
  if (!done || stopped_) throw std::runtime_error("the connection has ended");
}

void GlooChannel::send_block(at::Tensor bytes) {
  std::vector<at::Tensor> one{std::move(bytes)};
  finish(sending_, gloo_->send(one, process_, 0));
}

void GlooChannel::receive_block(const at::Tensor& bytes) {
  std::vector<at::Tensor> one{bytes};
  finish(receiving_, gloo_->recv(one, process_, 0));
}

Incoming GlooChannel::receive() {
  const auto size = static_cast<std::int64_t>(kBlock);
  at::Tensor message = bytes_tensor(kBlock);
  receive_block(message);
  BlockHead head;
  std::memcpy(&head, begin_of(message), sizeof head);
  if (head.total() > kBlock) {
    const at::Tensor whole = bytes_tensor(head.total());
    whole.narrow(0, 0, size).copy_(message);
    receive_block(whole.narrow(0, size, whole.numel() - size));
    message = whole;
  }
  const auto* text = reinterpret_cast<const std::uint8_t*>(begin_of(message)) + sizeof head;
  return {nlohmann::json::from_cbor(text, text + head.what),
          message.narrow(0, static_cast<std::int64_t>(head.data_begin()),
                         static_cast<std::int64_t>(head.data))};
}

}  // namespace trellis::runtime
