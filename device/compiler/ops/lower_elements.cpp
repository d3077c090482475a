// Gathers, scatters and scatter-adds of single elements along one dimension, and one-hot rows.
#include <algorithm>
#include <optional>

#include "device/compiler/gemm/array_sizes.h"
#include "device/compiler/graph/recipe.h"
#include "device/compiler/ops/index_tiles.h"
#include "device/compiler/ops/lowering.h"

namespace trellis::device {
namespace {

using isa::AluOp;
using isa::DType;
using isa::Engine;
using isa::Opcode;

/// Rows as short as these are compared with their indices; of longer ones elements are transferred.
constexpr std::int64_t kWidestCompared = 512, kMostCompared = 16;

bool is_number(DType d) {
  return d == DType::kFp32 || d == DType::kBf16 || d == DType::kFp16 || d == DType::kInt32;
}

std::int32_t count(std::int64_t n) { return static_cast<std::int32_t>(n); }

/// Entry (r, j) of the indices belongs to element (r, index) of the table.
class Entries {
 public:
  /// nullopt: the views are no rows of elements.
  static std::optional<Entries> of(const HbmView& table, const HbmView& indices, std::int64_t dim) {
    const auto whole = grid_along(table, dim), places = grid_along(indices, dim);
    if (!whole || !places || indices.rank() != table.rank() || indices.dtype != DType::kInt32)
      return std::nullopt;
    Entries entries{*whole, *places};
    if (places->rows > whole->rows || (table.rank() > 2 && places->rows != whole->rows))
      return std::nullopt;
    if (places->rows == 1) {  // one list: its entries are rows of one row's elements
      entries.is_list_ = true;
      entries.index_ = entries.as_rows(*places);
      entries.table_.row_stride = 0;
    }
    if (entries.index_.columns > kMostPerPartition) return std::nullopt;
    return entries;
  }

  /// The grid of the same entries in another tensor.
  [[nodiscard]] std::optional<Grid> grid(const HbmView& v, std::int64_t dim) const {
    const auto found = grid_along(v, dim);
    if (!found || v.rank() != index_.view.rank()) return std::nullopt;
    if (v.rank() > 2 && !is_list_ && found->rows != index_.rows) return std::nullopt;
    return is_list_ ? as_rows(*found) : *found;
  }
  [[nodiscard]] const Grid& table() const { return table_; }
  [[nodiscard]] const Grid& index() const { return index_; }
  [[nodiscard]] std::int64_t columns() const { return index_.columns; }
  [[nodiscard]] bool is_list() const { return is_list_; }
  [[nodiscard]] std::vector<Span> all() const {
    if (columns() == 0) return {};
    return spans(index_.rows, kMostPerPartition / columns());
  }

  [[nodiscard]] Ref tile(Phase& phase, DType dtype, const Span& s) const {
    return phase.at(phase.sbuf(s.per * columns() * isa::size_bytes(dtype)), dtype, s.partitions,
                    row(s.per * columns()));
  }
  [[nodiscard]] Ref in_hbm(const Grid& grid, const Span& s, const Index& first) const {
    return Phase::hbm(grid.view.buffer, grid.view.dtype, s.partitions, s.per * grid.row_stride,
                      {{grid.row_stride, count(s.per)}, {grid.column_stride, count(columns())}},
                      Index(grid.view.offset) + first * grid.row_stride);
  }
  [[nodiscard]] Ref loaded(Phase& phase, const Grid& grid, const Span& s,
                           const Index& first) const {
    const Ref target = tile(phase, grid.view.dtype, s);
    phase.load(target, in_hbm(grid, s, first));
    return target;
  }
  [[nodiscard]] Ref loaded(Phase& phase, const Grid& grid, const Span& s) const {
    return loaded(phase, grid, s, Index(s.first));
  }

  /// int32: element of the table's buffer, after the view's offset.
  [[nodiscard]] Ref positions(Phase& phase, const Span& s) const {
    const Ref index = loaded(phase, index_, s), place = tile(phase, DType::kInt32, s);
    phase.tensor_scalar(place, index, AluOp::kMultiply, static_cast<double>(table_.column_stride));
    if (table_.row_stride == 0) return place;
    const TileId first = phase.sbuf(s.per * 4);
    auto& iota = phase.emit(Engine::kGpSimd, Opcode::kIota,
                            phase.at(first, DType::kInt32, s.partitions, row(s.per)));
    iota.imm0 = static_cast<double>(s.first * table_.row_stride);
    iota.imm1 = static_cast<double>(table_.row_stride);
    phase.tensor_tensor(
        AluOp::kAdd, place, place,
        phase.at(first, DType::kInt32, s.partitions, {{1, count(s.per)}, {0, count(columns())}}));
    return place;
  }

 private:
  Entries(const Grid& table, const Grid& index) : table_(table), index_(index) {}
  [[nodiscard]] Grid as_rows(Grid g) const {
    std::swap(g.rows, g.columns);
    g.row_stride = g.column_stride;
    return g;
  }

  Grid table_, index_;
  bool is_list_ = false;
};

void gather_elements(Phase& phase, const Ref& to, const HbmView& table, const Ref& positions) {
  phase.emit(Engine::kScalar, Opcode::kDmaGather, to, single_elements(table), positions).dma_queue =
      isa::DmaQueue::kLoad;
}

void add_elements(Phase& phase, const HbmView& table, const Ref& from, const Ref& positions) {
  phase.emit(Engine::kGpSimd, Opcode::kDmaScatterAdd, single_elements(table), from, positions)
      .dma_queue = isa::DmaQueue::kStore;
}

/// The source of a scatter: a tensor's entries, or one number.
struct Source {
  std::optional<Grid> grid;
  double number = 0;
};

/// out[r, index[r, j]] = source[r, j], one j after the other, by comparing the columns' numbers
/// with the indices: of equal indices the last one counts.
class ComparedRows {
 public:
  ComparedRows(Phase& phase, const Entries& entries, const Grid& from, const Source& source)
      : phase_(phase),
        entries_(entries),
        from_(from),
        source_(source),
        width_(entries.table().columns),
        number_(phase.sbuf(width_ * 4)) {}

  void run() {
    number_columns();
    const std::int64_t rows = entries_.index().rows,
                       per = std::max<std::int64_t>(kMostPerPartition / width_, 1);
    const auto block = [&](const Index& first, std::int64_t of_each, std::int64_t partitions) {
      replace(first, {0, of_each, static_cast<int>(partitions)});
    };
    phase_.loop(rows / (per * kP), [&](const Index& i) { block(i * (per * kP), per, kP); });
    const std::int64_t done = rows / (per * kP) * per * kP, rest = (rows - done) / kP;
    if (rest > 0) phase_.scope([&] { block(Index(done), rest, kP); });
    const std::int64_t last = done + rest * kP;
    if (last < rows) phase_.scope([&] { block(Index(last), 1, rows - last); });
  }

 private:
  /// 0, 1, … on each partition.
  void number_columns() {
    const Ref all = phase_.at(number_, DType::kFp32, kP, row(width_)),
              first = phase_.at(phase_.sbuf(4), DType::kFp32, kP, row(1));
    phase_.emit(Engine::kGpSimd, Opcode::kIota, all).imm1 = 1;
    phase_.emit(Engine::kGpSimd, Opcode::kIota, first).imm1 = static_cast<double>(width_);
    phase_.tensor_column(all, all, AluOp::kSubtract, first);
  }

  [[nodiscard]] Ref whole(TileId tile, DType dtype, const Span& s) const {
    return phase_.at(tile, dtype, s.partitions, row(s.per * width_));
  }
  [[nodiscard]] Ref table_rows(const Grid& grid, const Index& first, const Span& s) const {
    return Phase::hbm(grid.view.buffer, grid.view.dtype, s.partitions, s.per * grid.row_stride,
                      {{grid.row_stride, count(s.per)}, {grid.column_stride, count(width_)}},
                      Index(grid.view.offset) + first * grid.row_stride);
  }
  /// Entry j of each row next to all of its columns.
  [[nodiscard]] Ref entry(const Ref& tile, std::int64_t j, const Span& s) const {
    return phase_.at(tile.tile, tile.pattern.dtype, s.partitions,
                     {{entries_.columns(), count(s.per)}, {0, count(width_)}}, Index(j));
  }

  void replace(const Index& first, const Span& s) {
    const DType dtype = from_.view.dtype;
    const auto room = [&] { return phase_.sbuf(s.per * width_ * 4, 2); };
    const Ref data = whole(room(), dtype, s), placed = whole(room(), dtype, s),
              equal = whole(room(), DType::kFp32, s), other = whole(room(), DType::kFp32, s);
    const Ref numbers =
        phase_.at(number_, DType::kFp32, s.partitions, {{0, count(s.per)}, {1, count(width_)}});
    phase_.load(data, table_rows(from_, first, s));
    const Ref index = entries_.loaded(phase_, entries_.index(), s, first);
    const Ref source = source_.grid ? entries_.loaded(phase_, *source_.grid, s, first) : Ref{};
    for (std::int64_t j = 0; j < entries_.columns(); ++j) {
      phase_.tensor_tensor(AluOp::kEqual, equal, numbers, entry(index, j, s));
      phase_.tensor_tensor(AluOp::kNotEqual, other, numbers, entry(index, j, s));
      if (source_.grid) {
        phase_.emit(Engine::kVector, Opcode::kSelect, placed, entry(source, j, s), equal);
      } else {
        phase_.tensor_scalar(placed, equal, AluOp::kMultiply, source_.number);
      }
      phase_.emit(Engine::kVector, Opcode::kSelect, data, data, other);
      phase_.tensor_tensor(AluOp::kAdd, data, data, placed);
    }
    phase_.store(table_rows(entries_.table(), first, s), data);
  }

  Phase& phase_;
  const Entries& entries_;
  const Grid& from_;
  const Source& source_;
  std::int64_t width_;
  TileId number_;
};

/// By transfers, which only add: what is there is subtracted first. Places occur once and are
/// finite; the sum of what is sent to a place stays there otherwise.
void replace_elements(Lowering& lowering, std::uint32_t kernel, const Entries& entries,
                      const Source& source) {
  const HbmView& out = entries.table().view;
  Phase clear(kernel), add(kernel);
  for (const Span& s : entries.all()) {
    clear.scope([&] {
      const Ref place = entries.positions(clear, s), old = entries.tile(clear, out.dtype, s);
      gather_elements(clear, old, out, place);
      clear.tensor_scalar(old, old, AluOp::kMultiply, -1);
      add_elements(clear, out, old, place);
    });
    add.scope([&] {
      const Ref place = entries.positions(add, s);
      const Ref added =
          source.grid ? entries.loaded(add, *source.grid, s) : entries.tile(add, out.dtype, s);
      if (!source.grid) add.memset(added, source.number);
      add_elements(add, out, added, place);
    });
  }
  lowering.builder().append(std::move(clear));
  lowering.builder().append(std::move(add));
}

std::int64_t dim_of(const Node& node) { return Scalars(node.scalars).integer("dim", 0); }

void estimate_scan(Lowering& lowering, const Node& node, std::uint32_t index) {
  lower_estimate(lowering, node, index, lowering.builder().core().passes.scan);
}

}  // namespace

/// out[r, j] = table[r, index[r, j]]
void lower_gather(Lowering& lowering, const Node& node, std::uint32_t index) {
  if (node.inputs.size() != 2) return estimate_scan(lowering, node, index);
  const HbmView table = lowering.input(node, 0), out = lowering.output(node, 0);
  const auto entries = Entries::of(table, lowering.input(node, 1), dim_of(node));
  const auto to = entries ? entries->grid(out, dim_of(node)) : std::nullopt;
  if (!to || out.dtype != table.dtype) return estimate_scan(lowering, node, index);
  Phase phase(lowering.kernel("gather", index, 0));
  for (const Span& s : entries->all()) {
    phase.scope([&] {
      const Ref place = entries->positions(phase, s), picked = entries->tile(phase, out.dtype, s);
      gather_elements(phase, picked, table, place);
      phase.store(entries->in_hbm(*to, s, Index(s.first)), picked);
    });
  }
  lowering.builder().append(std::move(phase));
}

/// out = self; out[r, index[r, j]] += source[r, j]
void lower_scatter_add(Lowering& lowering, const Node& node, std::uint32_t index) {
  if (node.inputs.size() != 3) return estimate_scan(lowering, node, index);
  const HbmView self = lowering.input(node, 0), source = lowering.input(node, 2),
                out = lowering.output(node, 0);
  const auto entries = Entries::of(out, lowering.input(node, 1), dim_of(node));
  const auto from = entries ? entries->grid(source, dim_of(node)) : std::nullopt;
  if (!from || source.dtype != out.dtype) return estimate_scan(lowering, node, index);
  const auto kernel = lowering.kernel("scatter_add", index, source.elements());
  if (self.buffer != out.buffer) copy_view(lowering, kernel, out, self);
  Phase phase(kernel);
  for (const Span& s : entries->all()) {
    phase.scope([&] {
      const Ref place = entries->positions(phase, s), added = entries->loaded(phase, *from, s);
      add_elements(phase, out, added, place);
    });
  }
  lowering.builder().append(std::move(phase));
}

/// out = self; out[r, index[r, j]] = source[r, j], or one number
void lower_scatter(Lowering& lowering, const Node& node, std::uint32_t index) {
  const Scalars scalars(node.scalars);
  const HbmView self = lowering.input(node, 0), out = lowering.output(node, 0);
  const bool has_source = node.inputs.size() == 3;
  if (scalars.has("reduce") || node.inputs.size() < 2 || !is_number(out.dtype))
    return estimate_scan(lowering, node, index);
  const auto entries = Entries::of(out, lowering.input(node, 1), dim_of(node));
  Source source{std::nullopt, scalars.number("value", 0)};
  if (entries && has_source) source.grid = entries->grid(lowering.input(node, 2), dim_of(node));
  if (!entries || source.grid.has_value() != has_source ||
      (has_source && source.grid->view.dtype != out.dtype))
    return estimate_scan(lowering, node, index);
  const auto kernel = lowering.kernel("scatter", index, 0);
  const auto before = grid_along(self, dim_of(node));
  const Grid& table = entries->table();
  const bool compared = !entries->is_list() && table.columns <= kWidestCompared &&
                        entries->columns() <= kMostCompared && entries->index().view.elements() > 0;
  const bool all_rows = compared && before && entries->index().rows == table.rows;
  if (self.buffer != out.buffer && !all_rows) copy_view(lowering, kernel, out, self);
  if (!compared) return replace_elements(lowering, kernel, *entries, source);
  Phase phase(kernel);
  ComparedRows(phase, *entries, all_rows ? *before : table, source).run();
  lowering.builder().append(std::move(phase));
}

}  // namespace trellis::device
