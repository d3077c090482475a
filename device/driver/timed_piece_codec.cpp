#include <cstring>

#include "device/driver/timing_cache.h"

namespace trellis::device {

namespace {

constexpr std::string_view kMagic = "trellis timed piece 1\n";

/// Values one after the other; strings and lists with their length first.
class Writer {
 public:
  template <typename T>
    requires(std::is_arithmetic_v<T>)
  void operator()(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void operator()(Picoseconds time) { (*this)(time.value); }
  void operator()(Bytes size) { (*this)(size.value); }
  void operator()(const std::string& text) {
    (*this)(std::uint64_t{text.size()});
    bytes_ += text;
  }
  template <typename T, typename Each>
  void list(const std::vector<T>& items, Each each) {
    (*this)(std::uint64_t{items.size()});
    for (const T& item : items) each(item);
  }
  std::string bytes_;
};

/// Reads what Writer wrote; after the first value that is not there, ok() is false and all values are 0.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

  template <typename T>
    requires(std::is_arithmetic_v<T>)
  void operator()(T& value) {
    if (!take(sizeof value)) return;
    std::memcpy(&value, taken_.data(), sizeof value);
  }
  void operator()(Picoseconds& time) { (*this)(time.value); }
  void operator()(Bytes& size) { (*this)(size.value); }
  void operator()(std::string& text) {
    std::uint64_t size = 0;
    (*this)(size);
    if (take(size)) text = taken_;
  }
  template <typename T, typename Each>
  void list(std::vector<T>& items, Each each) {
    std::uint64_t size = 0;
    (*this)(size);
    for (std::uint64_t i = 0; i < size && ok_; ++i) each(items.emplace_back());
  }

 private:
  bool take(std::uint64_t size) {
    ok_ = ok_ && size <= rest_.size();
    if (!ok_) return false;
    taken_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_, taken_;
  bool ok_ = true;
};

template <typename Visitor, typename Segment>
void visit_segment(Visitor& v, Segment& s) {
  v(s.duration);
  for (auto& busy : s.busy) v(busy);
  v(s.tensor_active), v(s.compute_only), v(s.dma_only), v(s.hbm_read), v(s.hbm_written);
  v.list(s.slices, [&](auto& slice) { v(slice.kernel), v(slice.track), v(slice.start), v(slice.end), v(slice.busy), v(slice.bytes); });
}

/// One description of the format for both directions.
template <typename Visitor, typename Piece, typename Timing>
void visit(Visitor& v, Piece& p, Timing& t) {
  const auto text = [&](auto& name) { v(name); };
  v.list(p.kernels, [&](auto& kernel) { v(kernel.name), v(kernel.node), v(kernel.flops), v(kernel.estimated); });
  v(p.instructions);
  v.list(p.estimated, text);
  v.list(p.unknown, text);
  v(p.coverage.lowered_ops), v(p.coverage.estimated_ops), v(p.coverage.lowered_flops), v(p.coverage.estimated_flops);
  v.list(p.host_copies, [&](auto& copy) { v(copy.bytes), v(copy.to_device), v(copy.node); });
  v.list(t.segments, [&](auto& segment) { visit_segment(v, segment); });
}

void put_hash(Writer& w, std::string_view content) {
  ContentHasher h;
  h.bytes(content.data(), content.size());
  const ContentHash hash = h.finish();
  w(hash.high);
  w(hash.low);
}

}  // namespace

std::string encode(const TimedPiece& piece) {
  Writer content;
  visit(content, piece, *piece.timing);
  Writer file;
  file.bytes_ = kMagic;
  put_hash(file, content.bytes_);
  return file.bytes_ + content.bytes_;
}

std::optional<TimedPiece> decode(std::string_view bytes) {
  constexpr std::size_t kHead = kMagic.size() + 2 * sizeof(std::uint64_t);
  if (bytes.size() < kHead) return std::nullopt;
  const std::string_view content = bytes.substr(kHead);
  Writer head;
  head.bytes_ = kMagic;
  put_hash(head, content);
  if (head.bytes_ != bytes.substr(0, kHead)) return std::nullopt;
  Reader reader(content);
  TimedPiece piece;
  sim::CoreTiming timing;
  visit(reader, piece, timing);
  if (!reader.ok() || !reader.at_end() || timing.segments.size() != 1) return std::nullopt;
  piece.timing = std::make_shared<const sim::CoreTiming>(std::move(timing));
  return piece;
}

}  // namespace trellis::device
