#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "device/kernels/nki/lowering.h"
#include "device/kernels/nki/source_check.h"
#include "sim/job/job.h"

/// The answer of `trellis kernel run`: numbers, mistakes, time, capacity.
namespace trellis::device::nki {

/// kAuto: as long as the interpreter needs about half a minute at most.
enum class Numbers : std::uint8_t { kAuto, kAlways, kNone };

struct RunOptions {
  Numbers numbers = Numbers::kAuto;
  int interleavings = 2;            ///< shuffled ones, after the one that gives the numbers
  std::optional<double> tolerance;  ///< relative; else by the output's dtype
  bool write_results = false;       ///< resultN.bin next to the document
};

/// An output compared with its reference.
struct OutputError {
  std::string name;
  isa::DType dtype = isa::DType::kFp32;
  double relative = 0;  ///< length of the difference over the reference's
  double largest = 0;   ///< largest difference over the reference's largest value
  double ulp = 0;       ///< the same difference in units of the last place of its dtype
  std::vector<std::int64_t> element;  ///< where it is largest
  double got = 0, want = 0;
  double tolerance = 0;
  bool right = false;
};

struct LineCost {
  std::string line;
  std::array<Picoseconds, sim::kNumTracks> busy{};
  Picoseconds sum;
  std::int64_t bytes = 0;  ///< moved by DMA
};

/// Transfers whose neighbouring bytes are that many.
struct DescriptorSize {
  std::int64_t bytes = 0, count = 0;
  std::string line;  ///< of the most of them
};

struct RunReport {
  std::string kernel, instance;
  std::vector<std::string> unrolled;
  std::vector<Refusal> refusals;
  bool has_numbers = false, has_interleavings = false, source_checked = false;
  std::string no_numbers;  ///< why not
  std::vector<OutputError> outputs;
  std::vector<Mistake> mistakes;
  // time
  Picoseconds device_time;
  std::array<Picoseconds, sim::kNumTracks> busy{};
  std::string bound;  ///< the unit that is busy longest
  Bytes hbm_read, hbm_written;
  std::int64_t instructions = 0;  ///< executed
  std::int64_t products = 0;      ///< multiplications of the array
  std::vector<LineCost> lines;    ///< most expensive first
  std::vector<DescriptorSize> descriptors;
  Occupation sbuf, psum;
  std::int64_t sbuf_capacity = 0, psum_capacity = 0;
  std::vector<std::string> advice;

  [[nodiscard]] bool right() const;
};

}  // namespace trellis::device::nki
