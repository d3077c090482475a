#include "device/compiler/graph/op_record.h"

#include <charconv>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/content_hash.h"

namespace trellis::device {
namespace {

constexpr std::size_t kMaxViews = std::size_t{1} << 24;  // Operand::view

std::uint64_t key_of(std::string_view text) {
  ContentHasher h;
  h.bytes(text.data(), text.size());
  return h.finish().low;
}

std::uint64_t key_of(const TensorView& view) {
  ContentHasher h;
  h.value(static_cast<std::uint64_t>(view.dtype) | static_cast<std::uint64_t>(view.host) << 8);
  h.value(view.offset);
  h.bytes(view.sizes.data(), view.sizes.size() * sizeof(std::int64_t));
  h.bytes(view.strides.data(), view.strides.size() * sizeof(std::int64_t));
  return h.finish().low;
}

/// Ends of the number that begins at `at`; `at` itself when none does, or one of another kind
/// ("1+2j").
std::size_t end_of_number(std::string_view text, std::size_t at, double& number) {
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  const auto after = static_cast<std::size_t>(end - text.data());
  const bool ends =
      after == text.size() || text[after] == ' ' || text[after] == ',' || text[after] == ']';
  return error == std::errc() && ends ? after : at;
}

bool is_ordinary(double number) {
  return std::isfinite(number) && std::trunc(2 * number) != 2 * number;
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

/// Hashes the size and both ends, which is where operators' names and arguments differ.
std::size_t cheap_hash(std::string_view text) {
  std::uint64_t first = 0, last = 0;
  const std::size_t part = std::min(text.size(), sizeof first);
  std::memcpy(&first, text.data(), part);
  std::memcpy(&last, text.data() + text.size() - part, part);
  return ((first ^ (last << 1) ^ text.size()) * 0x9e3779b97f4a7c15ull) >> 40;
}

}  // namespace

std::string without_ordinary_numbers(std::string_view text) {
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    kept += text[at++];
    if (kept.back() != '=' && kept.back() != '[' && kept.back() != ',') continue;
    double number = 0;
    const std::size_t end = end_of_number(text, at, number);
    if (end == at || !is_ordinary(number)) continue;
    kept += number < 0 ? "-~" : "~";
    at = end;
  }
  return kept;
}

std::uint32_t InternTable::text(std::string_view text) {
  if (text.empty()) return 0;
  std::uint32_t& recent = recent_texts_[cheap_hash(text) % recent_texts_.size()];
  if (recent != 0 && texts_[recent].text == text) return recent;
  const auto found = text_ids_.find(text);
  if (found != text_ids_.end()) return recent = found->second;
  const auto id = static_cast<std::uint32_t>(texts_.size());
  texts_.push_back({std::string(text), key_of(without_ordinary_numbers(text))});
  text_ids_.emplace(texts_.back().text,
                    id);  // a deque never moves its elements, so the key may point into it
  return recent = id;
}

std::uint32_t InternTable::view(const TensorView& view) {
  const std::uint64_t key = key_of(view);
  const auto [first, last] = view_ids_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    if (views_[it->second].view == view) return it->second;
  }
  TRELLIS_CHECK(views_.size() < kMaxViews,
                "a graph has more distinct tensor views than an operand can number");
  const auto id = static_cast<std::uint32_t>(views_.size());
  views_.push_back({view, view.elements() * sim::isa::size_bytes(view.dtype), key});
  view_ids_.emplace(key, id);
  return id;
}

void InternTable::forget() {
  text_ids_.clear();
  texts_ = {Text{}};
  recent_texts_ = {};
  views_.clear();
  view_ids_.clear();
  ++generation_;
}

std::uint32_t InternTable::scope(const Scope& scope) {
  const bool full = scopes_.size() >= kMostScopes && !scope_ids_.contains(scope);
  const Scope& kept = full ? Scope{"other", -1, std::string(kFurtherScopes)} : scope;
  const auto [it, fresh] = scope_ids_.try_emplace(kept, static_cast<std::uint32_t>(scopes_.size()));
  if (fresh) scopes_.push_back(it->first);
  return it->second;
}

}  // namespace trellis::device
