#include "device/driver/record/out_of_memory.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "device/driver/record/rank_recorder_impl.h"
#include "sim/config/load_system.h"

namespace trellis::device {
namespace {

constexpr std::size_t kListed = 10;  ///< live tensors

std::string size_text(std::int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes >= 1 << 30) return fmt::format("{:.2f} GiB", b / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.2f} MiB", b / (1 << 20));
  return fmt::format("{} B", bytes);
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string scope_place(const Scope& scope) {
  return fmt::format("phase {}, micro-batch {}, layer {}",
                     scope.phase.empty() ? "outside any phase" : scope.phase,
                     scope.microbatch < 0 ? std::string("-") : std::to_string(scope.microbatch),
                     or_dash(scope.layer));
}

/// The smallest shipped instance whose cores hold `bytes`, or "".
std::string instance_that_holds(std::int64_t bytes) {
  std::string best;
  std::int64_t best_bytes = 0;
  for (const std::string& name : sim::instance_names()) {
    const std::int64_t size = sim::load_system(name).hbm_per_logical_core().value;
    if (size >= bytes && (best.empty() || size < best_bytes)) {
      best = fmt::format("{} ({} per core)", name, size_text(size));
      best_bytes = size;
    }
  }
  return best;
}

std::string advice(const AllocatorStats& stats, std::int64_t needed) {
  const auto of = [&](BufferCategory c) { return stats.by_category[static_cast<std::size_t>(c)]; };
  const std::int64_t model = of(BufferCategory::kParameter) + of(BufferCategory::kGradient) +
                             of(BufferCategory::kOptimizerState);
  std::string text = model >= of(BufferCategory::kActivation) + of(BufferCategory::kTemporary)
                         ? "double distributed_strategy.tensor_model_parallel_size or "
                           "pipeline_model_parallel_size "
                           "(weights, gradients and optimizer states dominate)"
                         : "halve data.micro_batch_size or model.encoder_seq_length, or double "
                           "tensor_model_parallel_size "
                           "(activations dominate)";
  if (const std::string instance = instance_that_holds(needed); !instance.empty()) {
    text += "; at least this allocation would fit with --instance " + instance;
  }
  return text;
}

std::string by_category(const AllocatorStats& stats) {
  std::string text;
  for (int c = 0; c < kNumBufferCategories; ++c) {
    text += fmt::format("{}{} {}", c == 0 ? "" : ", ", name(static_cast<BufferCategory>(c)),
                        size_text(stats.by_category[static_cast<std::size_t>(c)]));
  }
  return text;
}

struct Occupation {
  std::vector<MemoryBlock> live;  ///< largest first, then by address
  std::int64_t largest_free = 0;
};

Occupation occupation(const MemoryAccount& memory) {
  Occupation result;
  for (const MemoryAccount::Segment& segment : memory.snapshot()) {
    for (const MemoryBlock& block : segment.blocks) {
      if (block.state == MemoryBlock::State::kFree) {
        result.largest_free = std::max(result.largest_free, block.size);
      } else {
        result.live.push_back(block);
      }
    }
  }
  const std::size_t listed = std::min(kListed, result.live.size());
  std::partial_sort(result.live.begin(), result.live.begin() + static_cast<std::ptrdiff_t>(listed),
                    result.live.end(), [](const MemoryBlock& a, const MemoryBlock& b) {
                      return a.size != b.size ? a.size > b.size : a.address < b.address;
                    });
  result.live.resize(listed);
  return result;
}

/// " fp32 [2, 3]" when the open graph has met the buffer, else "".
std::string shape_of(RankRecorder& recorder, std::uint64_t buffer) {
  const std::vector<Operand>& operands = recorder.impl().operands;
  const auto met = std::find_if(operands.rbegin(), operands.rend(),
                                [&](const Operand& operand) { return operand.buffer == buffer; });
  if (met == operands.rend()) return "";
  const TensorView& view = recorder.interned().view(static_cast<std::uint32_t>(met->view));
  return fmt::format(" {} [{}]", sim::isa::name(view.dtype), fmt::join(view.sizes, ", "));
}

std::string largest_tensors(RankRecorder& recorder, const std::vector<MemoryBlock>& live,
                            bool own_thread) {
  std::string text;
  for (const MemoryBlock& block : live) {
    text += fmt::format("\n  {:>12}{}, {}", size_text(block.requested),
                        own_thread ? shape_of(recorder, block.buffer) : "", name(block.category));
    if (own_thread) {
      const Scope& scope = recorder.interned().scope(block.scope);
      text +=
          fmt::format(", made in phase {}, layer {}", or_dash(scope.phase), or_dash(scope.layer));
    }
    text += fmt::format(" (after operation {})", block.op);
  }
  return text;
}

}  // namespace

std::string out_of_memory(RankRecorder& recorder, std::int64_t bytes, BufferCategory category,
                          bool own_thread) {
  const MemoryAccount& memory = recorder.memory();
  const AllocatorStats stats = memory.stats();
  const std::int64_t reserved = stats.all.reserved_bytes.current,
                     allocated = stats.all.allocated_bytes.current;
  const std::int64_t capacity = memory.capacity().value;
  const Occupation used = occupation(memory);
  return fmt::format(
      "neuron: out of memory on rank {}, {}: tried to allocate {} B ({}) of category {}: NRT "
      "allocation failed for size {} (OOM), "
      "NRT_RESOURCE (status 4).\n"
      "The core's capacity is {} B ({}): {} reserved, of which {} allocated and {} cached (largest "
      "free block {}); {} not reserved. "
      "Unused segments were freed before this was given up.\n"
      "Allocated: {}.\nThe largest live tensors:{}\n"
      "What would help: {}; in a program that goes on: free tensors, then empty_cache().",
      recorder.world_rank(),
      own_thread ? scope_place(recorder.current_scope())
                 : "on a thread that is not bound to the rank",
      bytes, size_text(bytes), name(category), bytes, capacity, size_text(capacity),
      size_text(reserved), size_text(allocated), size_text(reserved - allocated),
      size_text(used.largest_free), size_text(capacity - reserved), by_category(stats),
      used.live.empty() ? " none" : largest_tensors(recorder, used.live, own_thread),
      advice(stats, allocated + bytes));
}

}  // namespace trellis::device
