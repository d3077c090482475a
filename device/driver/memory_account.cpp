#include <fmt/format.h>

#include "base/error.h"
#include "device/driver/session.h"

namespace trellis::device {

namespace {

std::string gib(std::int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

/// The smallest shipped instance whose cores hold `bytes`, or "".
std::string instance_that_holds(std::int64_t bytes) {
  std::string best;
  std::int64_t best_bytes = 0;
  for (const std::string& name : sim::instance_names()) {
    const std::int64_t size = sim::load_system(name).hbm_per_logical_core().value;
    if (size >= bytes && (best.empty() || size < best_bytes)) {
      best = fmt::format("{} ({} per core)", name, gib(size));
      best_bytes = size;
    }
  }
  return best;
}

std::string advice(const std::array<std::int64_t, kNumBufferCategories>& use, std::int64_t needed) {
  const auto of = [&](BufferCategory c) { return use[static_cast<std::size_t>(c)]; };
  const std::int64_t model = of(BufferCategory::kParameter) + of(BufferCategory::kGradient) + of(BufferCategory::kOptimizerState);
  std::string text = model >= of(BufferCategory::kActivation) + of(BufferCategory::kTemporary)
                         ? "double distributed_strategy.tensor_model_parallel_size or pipeline_model_parallel_size "
                           "(weights, gradients and optimizer states dominate)"
                         : "halve data.micro_batch_size or model.encoder_seq_length, or double tensor_model_parallel_size "
                           "(activations dominate)";
  if (const std::string instance = instance_that_holds(needed); !instance.empty()) {
    text += "; at least this allocation would fit with --instance " + instance;
  }
  return text;
}

}  // namespace

void MemoryAccount::allocate(std::int64_t bytes, BufferCategory category, const Scope& scope) {
  const std::size_t index = static_cast<std::size_t>(category);
  if (current_ + bytes > capacity_.value) {
    std::string parts;
    for (int c = 0; c < kNumBufferCategories; ++c) {
      parts += fmt::format("{}{} {}", c == 0 ? "" : ", ", name(static_cast<BufferCategory>(c)), gib(by_category_[static_cast<std::size_t>(c)]));
    }
    throw Error(ExitCode::kDoesNotFit,
                fmt::format("out of device memory: rank {}, phase {}, micro-batch {}, layer {}: allocating {} B ({}) of category {}, "
                            "but {} B ({}) of the core's {} B ({}) are in use ({}). What would help: {}.",
                            rank_, scope.phase.empty() ? "outside any phase" : scope.phase,
                            scope.microbatch < 0 ? std::string("-") : std::to_string(scope.microbatch),
                            scope.layer.empty() ? "-" : scope.layer, bytes, gib(bytes), name(category), current_, gib(current_),
                            capacity_.value, gib(capacity_.value), parts, advice(by_category_, current_ + bytes)));
  }
  current_ += bytes;
  by_category_[index] += bytes;
  if (current_ > peak_) {
    peak_ = current_;
    at_peak_ = by_category_;
    if (peak_phase_ != scope.phase) peak_phase_ = scope.phase;
  }
}

void MemoryAccount::release(std::int64_t bytes, BufferCategory category) {
  current_ -= bytes;
  by_category_[static_cast<std::size_t>(category)] -= bytes;
}

void MemoryAccount::recategorize(std::int64_t bytes, BufferCategory from, BufferCategory to) {
  by_category_[static_cast<std::size_t>(from)] -= bytes;
  by_category_[static_cast<std::size_t>(to)] += bytes;
}

void MemoryAccount::reset_peak() {
  peak_ = current_;
  at_peak_ = by_category_;
  peak_phase_.clear();
}

}  // namespace trellis::device
