#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

namespace trellis::device {

/// The numbers of a CPU generator, with places in them: a seed and an offset say which number comes
/// next, as PyTorch's distributed tensors and checkpoints expect of a device's generator. They add
/// numbers of elements to the offset, so its unit is four 32-bit words, more than an element needs:
///
///   bits 0–41   offset / 4 words      what others add to
///   bits 42–43  words after that
///   bits 44–62  0, or 1 + how many words ago the second half of a pair of normal numbers was kept
///
/// Kernels draw from the CPU generator and do not say how much; look() finds out by going from
/// the last known place until the generator's words are met. The generator goes to a place only
/// when it is asked for a number, so that a place costs nothing where nothing is drawn (shape-only
/// mode).
class NumberStream {
 public:
  explicit NumberStream(at::Generator cpu);
  NumberStream(const NumberStream& other);
  NumberStream& operator=(const NumberStream&) = delete;

  /// The CPU generator, at its place; for one kernel.
  at::Generator& to_draw_from();

  [[nodiscard]] std::uint64_t seed() const;
  [[nodiscard]] std::uint64_t offset();
  void begin(std::uint64_t seed);
  void go_to(std::uint64_t seed, std::uint64_t offset);
  /// The state of a CPU generator, which earlier versions kept. Throws when its seed does not lead
  /// to it.
  void take(const c10::TensorImpl& cpu_state);

 private:
  using Words = std::array<std::uint32_t, at::MERSENNE_STATE_N>;
  /// The generator's words after they were made again so many times.
  struct Block {
    std::uint64_t number = 0;
    Words words;
  };
  /// The second half of a pair of normal numbers, which the CPU keeps for the next odd one.
  struct Kept {
    double value;
    std::uint64_t after;  ///< words from the begin to the end of what it was made of
  };

  at::CPUGeneratorImpl& cpu() const;
  static void advance(Block& block);
  void restart(std::uint64_t seed);
  [[nodiscard]] at::mt19937 engine_at(std::uint64_t word);
  [[nodiscard]] std::optional<double> kept_after(std::uint64_t word);
  void remember(const Block& block);
  void reach(const Words& words);
  void look();
  void look_at_kept();
  void arrive();

  mutable std::mutex mutex_;
  at::Generator cpu_;
  std::uint64_t seed_ = 0;
  Block block_;             ///< of the last known place
  std::uint64_t word_ = 0;  ///< the last known place
  std::optional<Kept> kept_;
  std::optional<std::uint64_t>
      destination_;                       ///< an offset to which the CPU generator has yet to go
  std::map<std::uint64_t, Words> marks_;  ///< blocks to go on from, by number
};

}  // namespace trellis::device
