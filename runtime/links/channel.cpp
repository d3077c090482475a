#include "runtime/links/channel.h"

#include "runtime/links/shared_bytes.h"

namespace trellis::runtime {

Outgoing::Outgoing(const nlohmann::json& what, std::vector<Bytes> data)
    : what_(nlohmann::json::to_cbor(what)), data_(std::move(data)) {
  for (const auto& [begin, size] : data_) data_size_ += size;
}

Outgoing::~Outgoing() = default;

const SharedBytes* Outgoing::shared() const {
  if (!std::exchange(has_tried_, true)) shared_ = SharedBytes::copy_of(data_);
  return shared_.get();
}

}  // namespace trellis::runtime
