#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "device/compiler/fusion/chain_space.h"

namespace trellis::device {

/// The part of the space that one pass over the steps works on.
struct Window {
  std::vector<Index> loops;  ///< per ChainSpace::loops
  Index row;                 ///< first row
  std::int64_t rows = 0;
  std::vector<Index> columns;  ///< first index per column dimension
  std::vector<std::int64_t> column_sizes;
  [[nodiscard]] std::int64_t width() const;
};

/// How often a window's tiles exist: intermediate values, what comes from HBM, what goes there.
struct Slots {
  int values = 2, loads = 2, stores = 2;
};

/// SBUF bytes per free element that a pass over all steps needs.
[[nodiscard]] std::int64_t bytes_per_column(const Chain& chain, const Slots& slots);

/// The value that a reduction starts from.
[[nodiscard]] double reduction_identity(isa::AluOp alu);

/// Emits a chain's steps for windows of its space.
class ChainEmitter {
 public:
  /// `core`: whose engines share the steps.
  ChainEmitter(Phase& phase, const Chain& chain, const ChainSpace& space,
               const sim::CoreConfig& core, const Slots& slots = {});

  /// Loops over the space; windows take whole rows of `width` or, when the columns are longer,
  /// tiles of them.
  void for_each_window(std::int64_t width, const std::function<void(const Window&)>& body);
  /// The whole chain, two windows alternately: while one engine has a step of the first, another
  /// one has a step of the second. Engines execute in order: with one window, each waits for the
  /// one before it.
  void in_pairs(std::int64_t width);
  /// All steps on one window, then the stores.
  void whole_body(const Window& window);
  /// For rows that do not fit into SBUF: every stage between two reductions walks the row again, in
  /// tiles of `width`.
  void in_stages(std::int64_t width);
  /// Steps [from, to) on one window, without stores.
  void run_steps(const Window& window, std::size_t from, std::size_t to);

  /// HBM operand `i` (inputs in order of values, then outputs) of a window.
  [[nodiscard]] Ref operand(std::size_t i, const Window& window) const;
  /// The SBUF operand that holds a value in this window.
  [[nodiscard]] Ref ref(int value, const Window& window) const;
  /// As ref, but always as wide as the window.
  [[nodiscard]] Ref wide(int value, const Window& window) {
    ensure(value, window);
    return broadcast(value, window);
  }
  /// One element per row; of a group of rows, several.
  [[nodiscard]] bool is_row(int value) const { return row_[static_cast<std::size_t>(value)]; }
  [[nodiscard]] bool stores_full(std::size_t output) const;
  void store_output(std::size_t output, const Window& window);
  void start_window();
  /// Gives a value a tile that outlives the windows.
  void keep(int value, TileId tile) { now_.tiles[value] = tile; }

 private:
  /// Where the values of a window are.
  struct Places {
    std::map<int, TileId> tiles;                       ///< value → where it is
    std::map<std::int64_t, std::vector<TileId>> free;  ///< bytes → tiles whose value is dead
    std::map<int, std::int64_t> released_bytes;        ///< value → bytes of its tile
    std::map<int, TileId> pairs;  ///< first of two numbers per row → where both are
    TileId unread = isa::kNone;   ///< where what is only summed is written
  };

  /// Steps [first, end) as one instruction: what `first` and `last` compute, and with `summed` the
  /// sums of its rows.
  struct Unit {
    std::size_t first = 0, last = 0, end = 0;
    bool summed = false;
  };

  void remainder(const std::function<void(const Window&)>& body);
  /// `stride`: of the innermost loop.
  void for_each_loop(std::size_t depth, std::int64_t stride, Window& window,
                     const std::function<void(Window&)>& body);
  void for_each_columns(std::int64_t width, Window& window,
                        const std::function<void(Window&)>& body);
  void for_each_row(Window& window, const std::function<void(Window&)>& body);
  void pairs_of_rows(Window& window);
  void pairs_of_loops(Window& window);
  void whole_bodies(const std::vector<Window>& windows, std::vector<Places> lanes);
  /// The work of a unit on its engine; `passes`: over the elements.
  struct Work {
    isa::Engine engine = isa::Engine::kVector;
    double passes = 0;
  };
  [[nodiscard]] Work work_of(const Unit& unit) const;
  [[nodiscard]] std::vector<Unit> all_units() const;
  void store_outputs(const Window& window);
  [[nodiscard]] double turn_cycles(std::size_t lag, const Window& window) const;
  [[nodiscard]] std::size_t best_lag(const Window& window) const;
  [[nodiscard]] Unit unit_at(std::size_t s, std::size_t to) const;
  void run_unit(const Window& window, std::size_t s, std::size_t to);
  void classify();
  void find_pairs();
  void choose_engines();
  void follow_producers();
  [[nodiscard]] bool can_move(const Chain::Step& step) const;
  [[nodiscard]] isa::Engine engine_of(const Chain::Step& step) const;
  void find_last_uses(std::size_t from, std::size_t to);
  void load(int value, const Window& window, int depth);
  void load_invariant(const Window& window);
  void ensure(int value, const Window& window);
  TileId take_tile(int value, std::int64_t width);
  void ensure_row(int value, const Window& window);
  void release(int value, std::size_t step);
  void place(int value, const Window& window);
  TileId pair_tile(int value);
  void find_unread();
  [[nodiscard]] bool is_unread(const Unit& unit) const;
  [[nodiscard]] bool in_pair(int value) const {
    return first_of_.contains(value) || second_of_.contains(value);
  }
  /// Where the value starts in its tile, in elements.
  [[nodiscard]] std::int64_t column_offset(int value) const {
    return second_of_.contains(value) ? space_.group.size : 0;
  }
  [[nodiscard]] bool is_shift(std::size_t s, std::size_t to) const;
  [[nodiscard]] bool is_pair(std::size_t s, std::size_t to) const;
  [[nodiscard]] bool is_affine(const Chain::Step& step) const;
  [[nodiscard]] bool is_sum_of(std::size_t s, std::size_t to) const;
  void emit_activation(const Unit& unit, const Window& window);
  void emit_affine(const Unit& unit, const Window& window);
  void emit_column(const Chain::Step& step, isa::AluOp second, const Ref& to, const Window& window,
                   std::int64_t g);
  void emit_sum(const Unit& unit, const Window& window);
  [[nodiscard]] Ref unread(int like, const Window& window) const;
  void emit_step(const Chain::Step& step, const Window& window);
  void emit_binary(const Chain::Step& step, const Window& window);
  void emit_reduce(const Chain::Step& step, const Window& window);
  Ref broadcast(int value, const Window& window) const;
  /// Row `g` of the group of rows on each partition.
  [[nodiscard]] Ref member(int value, const Window& window, std::int64_t g) const;
  /// Instructions that take one number per partition work on one row of a group at a time: worth it
  /// unless rows are shorter than they cost.
  [[nodiscard]] bool by_columns() const {
    return space_.group.size == 1 || space_.width() >= kShortestColumn;
  }
  static constexpr std::int64_t kShortestColumn = 64;  ///< cycles of the shortest instruction
  /// Free elements of a value on a partition.
  [[nodiscard]] std::int64_t elements(int value, const Window& window) const {
    return space_.group.size * (is_row(value) ? 1 : window.width());
  }
  [[nodiscard]] bool invariant(int value) const;
  void compute_ahead(const Window& window);
  [[nodiscard]] std::vector<bool> needed_for(const std::vector<int>& targets,
                                             const std::vector<bool>& available) const;
  void stage_rows(int stage, const Window& window);
  void stage_columns(int stage, bool last, std::int64_t width, Window& window);

  Phase& phase_;
  const Chain& chain_;
  const ChainSpace& space_;
  Slots slots_;
  static constexpr int kRowDepth =
      4;  ///< numbers per row take no room: who makes them may be far ahead of who stores them
  sim::PlanningConfig planning_;
  double fast_mode_ = 1;  ///< of Vector with 16-bit operands
  bool gpsimd_stops_vector_ = false;
  std::vector<int> operand_of_;  ///< value → operand number, −1: computed
  std::vector<bool>
      constant_;         ///< value is made of inputs that are the same for all rows, and of numbers
  std::set<int> ahead_;  ///< values that were computed before the rows
  std::vector<bool> row_;                    ///< value has one element per row
  bool paired_ = false;                      ///< two windows alternately
  std::int64_t unread_bytes_ = 0;            ///< per element of what is only summed
  std::vector<isa::Engine> engines_;         ///< step → which one executes it when several can
  std::vector<int> stage_;                   ///< value: number of reductions on the way to it
  std::vector<std::size_t> last_use_;        ///< value → step
  std::map<int, int> first_of_, second_of_;  ///< two numbers per row that one instruction takes:
                                             ///< first → second, second → first
  Places now_;                               ///< of the current window
};

/// Sums over leading dimensions by the Tensor engine, and reductions to one element.
void lower_terminal(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain);

}  // namespace trellis::device
