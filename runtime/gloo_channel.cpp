#include "runtime/gloo_channel.h"

#include <algorithm>
#include <chrono>
#include <cstring>

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

}  // namespace

void GlooChannel::send(const Outgoing& message) {
  const BlockHead head{message.what().size(), message.data_size()};
  const at::Tensor bytes = bytes_tensor(std::max(kBlock, head.total()));
  std::byte* place = begin_of(bytes);
  std::memcpy(place, &head, sizeof head);
  std::memcpy(place + sizeof head, message.what().data(), message.what().size());
  place += head.data_begin();
  for (const auto& [begin, size] : message.data()) {
    if (size > 0) std::memcpy(place, begin, size);  // a piece of no bytes may be nowhere
    place += size;
  }
  const auto size = static_cast<std::int64_t>(kBlock);
  std::vector<at::Tensor> first{bytes.narrow(0, 0, size)};
  gloo_->send(first, process_, 0)->wait(kNever);
  if (bytes.numel() == size) return;
  std::vector<at::Tensor> rest{bytes.narrow(0, size, bytes.numel() - size)};
  gloo_->send(rest, process_, 0)->wait(kNever);
}

Incoming GlooChannel::receive() {
  const auto size = static_cast<std::int64_t>(kBlock);
  at::Tensor message = bytes_tensor(kBlock);
  std::vector<at::Tensor> first{message};
  gloo_->recv(first, process_, 0)->wait(kNever);
  BlockHead head;
  std::memcpy(&head, begin_of(message), sizeof head);
  if (head.total() > kBlock) {
    const at::Tensor whole = bytes_tensor(head.total());
    whole.narrow(0, 0, size).copy_(message);
    std::vector<at::Tensor> rest{whole.narrow(0, size, whole.numel() - size)};
    gloo_->recv(rest, process_, 0)->wait(kNever);
    message = whole;
  }
  const auto* text = reinterpret_cast<const std::uint8_t*>(begin_of(message)) + sizeof head;
  return {nlohmann::json::from_cbor(text, text + head.what),
          message.narrow(0, static_cast<std::int64_t>(head.data_begin()),
                         static_cast<std::int64_t>(head.data))};
}

}  // namespace trellis::runtime
