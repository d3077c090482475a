#include "trainer/files/checkpoint/formats/nxd/stacked_experts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace trellis::checkpoint::nxd {
namespace {

constexpr std::string_view kGateUp = ".expert_mlps.mlp_op.gate_up_proj.weight",
                           kDown = ".expert_mlps.mlp_op.down_proj.weight";
/// A read of some rows or columns passes over the whole matrix in its file: so it takes many.
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kTile = 32;

/// [rows, columns] of `Width` bytes each → [columns, rows].
template <std::size_t Width>
void transpose(const std::byte* from, std::int64_t rows, std::int64_t columns, std::byte* into) {
  const auto place = [&](std::int64_t row, std::int64_t column, std::int64_t stride) {
    return static_cast<std::size_t>(row * stride + column) * Width;
  };
  for (std::int64_t i = 0; i < rows; i += kTile) {
    for (std::int64_t j = 0; j < columns; j += kTile) {
      for (std::int64_t row = i; row < std::min(i + kTile, rows); ++row) {
        for (std::int64_t column = j; column < std::min(j + kTile, columns); ++column)
          std::memcpy(into + place(column, row, rows), from + place(row, column, columns), Width);
      }
    }
  }
}

void transpose(const std::byte* from, std::int64_t rows, std::int64_t columns, std::size_t width,
               std::byte* into) {
  switch (width) {
    case 1: return transpose<1>(from, rows, columns, into);
    case 2: return transpose<2>(from, rows, columns, into);
    case 4: return transpose<4>(from, rows, columns, into);
    case 8: return transpose<8>(from, rows, columns, into);
    default: TRELLIS_CHECK(width == 16, "elements have up to 16 bytes");
  }
  transpose<16>(from, rows, columns, into);
}

class ExpertView final : public TensorSource {
 public:
  /// `experts`: 0: the source has them stacked.
  ExpertView(TensorSource& source, std::int64_t experts) : source_(source) {
    for (const TensorEntry& entry : source_.tensors()) {
      TensorEntry& shown = tensors_.emplace_back(entry);
      Origin& origin = origins_[entry.key] = {&entry};
      if (!is_expert_weight(entry.key)) continue;
      const Shape& shape = entry.shape;
      if (experts == 0 && shape.size() == 3) {
        origin.rows = shape[2];
        shown.shape = {shape[0] * shape[2], shape[1]};
      } else if (experts > 0 && shape.size() == 2 && shape[0] % experts == 0) {
        origin.rows = shape[0] / experts;
        shown.shape = {experts, shape[1], origin.rows};
      }
    }
  }
  explicit ExpertView(std::unique_ptr<TensorSource> source) : ExpertView(*source, 0) {
    owned_ = std::move(source);
  }

  [[nodiscard]] const std::string& address() const override { return source_.address(); }
  [[nodiscard]] const char* format() const override { return source_.format(); }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }
  [[nodiscard]] SavedPoint point() const override { return source_.point(); }
  [[nodiscard]] std::int64_t piece_bytes(const TensorEntry& tensor) const override {
    const Origin& origin = origins_.at(tensor.key);
    return origin.rows > 0 ? kPieceBytes : source_.piece_bytes(*origin.entry);
  }
  void check_in_background() override { source_.check_in_background(); }
  void finish_checks() override { source_.finish_checks(); }

  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override {
    const Origin& origin = origins_.at(tensor.key);
    if (box.elements() == 0) return;
    if (origin.rows == 0) return source_.read(*origin.entry, box, into);
    box.shape.size() == 2 ? read_rows(origin, box, into) : read_stacked(origin, box, into);
  }

 private:
  struct Origin {
    const TensorEntry* entry = nullptr;
    std::int64_t rows = 0;  ///< of one expert; 0: a tensor that is the same in both forms
  };

  /// A box of one expert's matrix, transposed.
  void read_expert(const Origin& origin, const Box& there, std::int64_t rows, std::int64_t columns,
                   std::byte* into) const {
    const auto width = static_cast<std::size_t>(element_bytes(origin.entry->dtype));
    std::vector<std::byte> content(static_cast<std::size_t>(rows * columns) * width);
    source_.read(*origin.entry, there, content);
    transpose(content.data(), rows, columns, width, into);
  }
  void read_rows(const Origin& origin, const Box& box, std::span<std::byte> into) const {
    const std::int64_t end = box.offset[0] + box.shape[0], columns = box.shape[1],
                       row_bytes = columns * element_bytes(origin.entry->dtype);
    for (std::int64_t row = box.offset[0]; row < end;) {
      const std::int64_t expert = row / origin.rows, first = row % origin.rows,
                         count = std::min(origin.rows - first, end - row);
      read_expert(origin, {{expert, box.offset[1], first}, {1, columns, count}}, columns, count,
                  into.data() + (row - box.offset[0]) * row_bytes);
      row += count;
    }
  }
  void read_stacked(const Origin& origin, const Box& box, std::span<std::byte> into) const {
    const std::int64_t columns = box.shape[1], rows = box.shape[2],
                       matrix_bytes = columns * rows * element_bytes(origin.entry->dtype);
    for (std::int64_t i = 0; i < box.shape[0]; ++i) {
      const std::int64_t first = (box.offset[0] + i) * origin.rows + box.offset[2];
      read_expert(origin, {{first, box.offset[1]}, {rows, columns}}, rows, columns,
                  into.data() + i * matrix_bytes);
    }
  }

  std::unique_ptr<TensorSource> owned_;
  TensorSource& source_;
  std::vector<TensorEntry> tensors_;  ///< by key
  std::map<std::string, Origin> origins_;
};

}  // namespace

bool is_expert_weight(const std::string& name) {
  return name.ends_with(kGateUp) || name.ends_with(kDown);
}

std::string nxd_name(const std::string& name) {
  if (!name.starts_with("language_model.")) return name;
  for (const char* module : {".mlp.router.", ".mlp.expert_mlps.", ".mlp.shared_experts."}) {
    const std::size_t at = name.find(module);
    if (at == std::string::npos) continue;
    return std::string(name).insert(at + std::string_view(".mlp").size(), ".moe");
  }
  return name;
}

std::unique_ptr<TensorSource> experts_in_rows(std::unique_ptr<TensorSource> source) {
  return std::make_unique<ExpertView>(std::move(source));
}

std::unique_ptr<TensorSource> experts_stacked(TensorSource& source, std::int64_t experts) {
  return std::make_unique<ExpertView>(source, experts);
}

}  // namespace trellis::checkpoint::nxd
