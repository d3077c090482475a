#include "base/content_hash.h"

#include <array>
#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trellis {
namespace {

XXH3_state_t* as_state(void* state) { return static_cast<XXH3_state_t*>(state); }

void append_hex(std::string& out, std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[(value >> shift) & 0xf];
}

}  // namespace

std::string ContentHash::to_string() const {
  std::string out;
  out.reserve(32);
  append_hex(out, high);
  append_hex(out, low);
  return out;
}

ContentHasher::ContentHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(as_state(state_));
}

ContentHasher::~ContentHasher() { XXH3_freeState(as_state(state_)); }

void ContentHasher::bytes(const void* data, std::size_t size) {
  if (size != 0) XXH3_128bits_update(as_state(state_), data, size);
}

void ContentHasher::text(std::string_view text) {
  value(static_cast<std::uint64_t>(text.size()));
  bytes(text.data(), text.size());
}

ContentHash ContentHasher::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(as_state(state_));
  return {hash.high64, hash.low64};
}

}  // namespace trellis
