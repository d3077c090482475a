#include "trainer/files/checkpoint/formats/megatron/as_llama.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::megatron {
namespace {

/// Also of an expert alone.
std::pair<std::string, std::int64_t> identity(const MegatronWeight& weight) {
  return {key_with_layer(weight), weight.expert};
}

class LlamaView final : public TensorSource {
 public:
  LlamaView(std::unique_ptr<TensorSource> source, const AttentionSizes& attention)
      : source_(std::move(source)) {
    std::map<std::string, std::map<std::string, const TensorEntry*>> states;
    for (const TensorEntry& entry : source_->tensors()) {
      const StateKey key = parse_state_key(entry.key);
      states[key.state][key.weight] = &entry;
    }
    for (const auto& [state, entries] : states) add(state, entries, attention);
    std::ranges::sort(tensors_, {}, &TensorEntry::key);
  }

  [[nodiscard]] const std::string& address() const override { return source_->address(); }
  [[nodiscard]] const char* format() const override { return source_->format(); }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }

  [[nodiscard]] SavedPoint point() const override { return source_->point(); }

  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override {
    if (box.elements() == 0) return;
    const std::size_t row_bytes = into.size() / static_cast<std::size_t>(box.shape[0]);
    for (const Piece& piece : pieces_.at(tensor.key)) {
      const std::int64_t first = std::max(box.offset[0], piece.to),
                         end = std::min(box.offset[0] + box.shape[0], piece.to + piece.rows);
      if (end <= first) continue;
      Box rows = box;
      rows.offset[0] = first - piece.to + piece.from;
      rows.shape[0] = end - first;
      source_->read(*piece.entry, rows,
                    into.subspan(static_cast<std::size_t>(first - box.offset[0]) * row_bytes,
                                 static_cast<std::size_t>(end - first) * row_bytes));
    }
  }

 private:
  /// Rows of a tensor of the source that are rows of one here.
  struct Piece {
    const TensorEntry* entry = nullptr;
    std::int64_t from = 0, to = 0, rows = 0;
  };

  void add(const std::string& state, const std::map<std::string, const TensorEntry*>& entries,
           const AttentionSizes& attention) {
    ShapeOf shapes, between;
    for (const auto& [weight, entry] : entries) shapes[weight] = entry->shape;
    std::map<std::pair<std::string, std::int64_t>, MegatronWeight> of_source;
    for (MegatronWeight& weight : to_megatron(shapes, attention, address())) {
      Shape& shape = between[key_with_layer(weight)] = weight.shape;
      if (weight.expert >= 0) shape.insert(shape.begin(), weight.experts);
      of_source.emplace(identity(weight), std::move(weight));
    }
    std::map<std::string, TensorEntry> made;
    for (const MegatronWeight& weight : from_megatron(between, attention, address())) {
      const MegatronWeight& there = of_source.at(identity(weight));
      for (const RowBlock& block : weight.blocks) {
        const std::string key = StateKey{state, block.key}.text();
        TensorEntry& entry = made[key];
        const std::int64_t rows = entry.key.empty() ? 0 : entry.shape[0];
        entry = {key, entries.at(there.blocks.front().key)->dtype, weight.shape};
        entry.shape[0] = rows + block.rows;
        add_pieces(key, block, there, entries);
      }
    }
    for (auto& [key, entry] : made) tensors_.push_back(std::move(entry));
  }

  void add_pieces(const std::string& key, const RowBlock& block, const MegatronWeight& there,
                  const std::map<std::string, const TensorEntry*>& entries) {
    for (const RowBlock& source : there.blocks) {
      const std::int64_t first = std::max(block.first, source.first),
                         end = std::min(block.first + block.rows, source.first + source.rows);
      if (end <= first) continue;
      pieces_[key].push_back({entries.at(source.key), first - source.first + source.native_first,
                              first - block.first + block.native_first, end - first});
    }
  }

  std::unique_ptr<TensorSource> source_;
  std::vector<TensorEntry> tensors_;  ///< by key
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace

std::unique_ptr<TensorSource> as_llama(std::unique_ptr<TensorSource> source,
                                       const AttentionSizes& attention) {
  return std::make_unique<LlamaView>(std::move(source), attention);
}

}  // namespace trellis::checkpoint::megatron
