#include "device/compiler/op_record.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace trellis::device {
namespace {

constexpr std::size_t kMaxViews = std::size_t{1} << 24;  // Operand::view

/// Only spreads the views over the buckets; it is never stored or compared across runs.
std::uint64_t mix(std::uint64_t hash, std::int64_t value) {
  hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 32);
}

std::uint64_t bucket(const TensorView& view) {
  std::uint64_t hash = mix(static_cast<std::uint64_t>(view.dtype) | static_cast<std::uint64_t>(view.host) << 8, view.offset);
  for (std::int64_t size : view.sizes) hash = mix(hash, size);
  for (std::int64_t stride : view.strides) hash = mix(hash, stride);
  return hash;
}

}  // namespace

std::int64_t TensorView::elements() const {
  std::int64_t count = 1;
  for (std::int64_t size : sizes) count *= size;
  return count;
}

std::string_view name(BufferCategory category) {
  switch (category) {
    case BufferCategory::kParameter: return "parameter";
    case BufferCategory::kGradient: return "gradient";
    case BufferCategory::kOptimizerState: return "optimizer_state";
    case BufferCategory::kActivation: return "activation";
    case BufferCategory::kTemporary: return "temporary";
    case BufferCategory::kInput: return "input";
  }
  return "unknown";
}

namespace {

/// Of the size and both ends, which is where operators' names and arguments differ.
std::size_t cheap_hash(std::string_view text) {
  std::uint64_t first = 0, last = 0;
  const std::size_t part = std::min(text.size(), sizeof first);
  std::memcpy(&first, text.data(), part);
  std::memcpy(&last, text.data() + text.size() - part, part);
  return ((first ^ (last << 1) ^ text.size()) * 0x9e3779b97f4a7c15ull) >> 40;
}

}  // namespace

std::uint32_t InternTable::text(std::string_view text) {
  if (text.empty()) return 0;
  std::uint32_t& recent = recent_texts_[cheap_hash(text) % recent_texts_.size()];
  if (recent != 0 && texts_[recent] == text) return recent;
  const auto found = text_ids_.find(text);
  if (found != text_ids_.end()) return recent = found->second;
  const auto id = static_cast<std::uint32_t>(texts_.size());
  texts_.emplace_back(text);
  text_ids_.emplace(texts_.back(), id);  // a deque never moves its elements, so the key may point into it
  return recent = id;
}

std::uint32_t InternTable::view(const TensorView& view) {
  const std::uint64_t key = bucket(view);
  const auto [first, last] = view_ids_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    if (views_[it->second] == view) return it->second;
  }
  TRELLIS_CHECK(views_.size() < kMaxViews, "a rank has more distinct tensor views than an operand can number");
  const auto id = static_cast<std::uint32_t>(views_.size());
  views_.push_back(view);
  view_bytes_.push_back(view.elements() * sim::isa::size_bytes(view.dtype));
  view_ids_.emplace(key, id);
  return id;
}

std::uint32_t InternTable::scope(const Scope& scope) {
  // Asked once per entered scope, not per operation, and mostly for a recent one.
  for (std::size_t id = scopes_.size(); id-- > 0;) {
    if (scopes_[id] == scope) return static_cast<std::uint32_t>(id);
  }
  scopes_.push_back(scope);
  return static_cast<std::uint32_t>(scopes_.size() - 1);
}

}  // namespace trellis::device
