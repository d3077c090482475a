#include <algorithm>

#include "base/byte_codec.h"
#include "device/driver/timing/timing_cache.h"

namespace trellis::device {

namespace {

template <typename Visitor, typename Segment>
void visit_segment(Visitor& v, Segment& s) {
  v(s.duration.value);
  for (auto& busy : s.busy) v(busy.value);
  for (auto* time : {&s.tensor_active, &s.compute_only, &s.dma_only}) v(time->value);
  for (auto* size : {&s.hbm_read, &s.hbm_written}) v(size->value);
  v.list(s.slices, [&](auto& slice) {
    v(slice.kernel), v(slice.track), v(slice.start.value), v(slice.end.value), v(slice.busy.value),
        v(slice.bytes.value);
  });
}

/// One description of the format for both directions.
template <typename Visitor, typename Piece, typename Timing>
void visit(Visitor& v, Piece& p, Timing& t) {
  const auto text = [&](auto& name) { v(name); };
  v.list(p.kernels, [&](auto& kernel) {
    v(kernel.name), v(kernel.node), v(kernel.flops), v(kernel.estimated);
  });
  v(p.instructions);
  v.list(p.estimated, text);
  v.list(p.unknown, text);
  v(p.coverage.lowered_ops), v(p.coverage.estimated_ops), v(p.coverage.lowered_flops),
      v(p.coverage.estimated_flops);
  v.list(p.host_copies, [&](auto& copy) { v(copy.bytes), v(copy.to_device), v(copy.node); });
  v.list(t.segments, [&](auto& segment) { visit_segment(v, segment); });
}

/// True if every index is within the piece's ranges and no time is negative.
bool is_consistent(const TimedPiece& piece, const sim::CoreTiming& timing) {
  if (timing.segments.size() != 1) return false;
  return std::ranges::all_of(timing.segments.front().slices, [&](const sim::KernelSlice& slice) {
    return slice.kernel < piece.kernels.size() && slice.track < sim::kNumTracks &&
           slice.start.value >= 0 && slice.start <= slice.end;
  });
}

}  // namespace

std::string encode(const TimedPiece& piece) {
  ByteWriter bytes;
  visit(bytes, piece, *piece.timing);
  return bytes.bytes();
}

std::optional<TimedPiece> decode(std::string_view bytes) {
  ByteReader reader(bytes);
  TimedPiece piece;
  sim::CoreTiming timing;
  visit(reader, piece, timing);
  if (!reader.ok() || !reader.at_end() || !is_consistent(piece, timing)) return std::nullopt;
  piece.timing = std::make_shared<const sim::CoreTiming>(std::move(timing));
  return piece;
}

}  // namespace trellis::device
