#pragma once

#include <cstdint>
#include <vector>

#include "sim/functional/numbers.h"
#include "sim/isa/program.h"

namespace trellis::sim::functional {

/// Values of an HBM buffer as a dtype reads them.
using Values = std::vector<double>;

/// The bytes of a core: HBM buffers of a program, SBUF and PSUM. What was never written is all
/// ones, which floating-point types read as NaN.
class Memory {
 public:
  Memory(const isa::Program& program, const isa::Limits& limits);

  void write(std::uint32_t buffer, DType dtype, const Values& values);
  [[nodiscard]] Values read(std::uint32_t buffer, DType dtype, std::int64_t count) const;

  /// The places of an access pattern's elements, found once for all partitions.
  class View {
   public:
    View(DType dtype, std::uint8_t* first, std::int64_t row_bytes, std::vector<std::int64_t> bytes);
    [[nodiscard]] double get(std::int64_t partition, std::int64_t element) const {
      return decode(dtype_, place(partition, element));
    }
    void set(std::int64_t partition, std::int64_t element, double value) const {
      encode(dtype_, value, place(partition, element));
    }
    /// Elements of one partition as fp32, and back. `dense`: they lie next to each other.
    void gather(std::int64_t partition, float* to) const;
    void scatter(std::int64_t partition, const float* from) const;
    /// The bits of one partition's elements, and back.
    void copy_out(std::int64_t partition, std::uint8_t* to) const;
    void copy_in(std::int64_t partition, const std::uint8_t* from) const;
    [[nodiscard]] std::int64_t elements() const { return static_cast<std::int64_t>(bytes_.size()); }
    [[nodiscard]] DType dtype() const { return dtype_; }

   private:
    [[nodiscard]] std::uint8_t* place(std::int64_t partition, std::int64_t element) const {
      return first_ + partition * row_ + bytes_[static_cast<std::size_t>(element)];
    }
    DType dtype_;
    std::uint8_t* first_;  ///< of partition 0
    std::int64_t row_;
    std::vector<std::int64_t> bytes_;  ///< from there, by element
    std::int64_t size_;                ///< bytes of an element
    bool dense_;
  };
  /// Loops and rotation of the pattern are resolved. Throws std::runtime_error when it leaves its
  /// HBM buffer; `isa::validate` holds the bounds of SBUF and PSUM.
  [[nodiscard]] View view(const isa::AccessPattern& a);

  [[nodiscard]] double get(const isa::AccessPattern& a, std::int64_t partition,
                           std::int64_t element) const;
  void set(const isa::AccessPattern& a, std::int64_t partition, std::int64_t element, double value);
  [[nodiscard]] const isa::Program& program() const { return program_; }

 private:
  [[nodiscard]] std::uint8_t* address(const isa::AccessPattern& a, std::int64_t partition,
                                      std::int64_t element);

  const isa::Program& program_;
  std::vector<std::vector<std::uint8_t>> hbm_;
  std::vector<std::uint8_t> sbuf_, psum_;
  std::int64_t sbuf_row_, psum_row_;
};

}  // namespace trellis::sim::functional
