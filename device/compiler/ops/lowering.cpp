#include "device/compiler/ops/lowering.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/compiler/fusion/chain.h"
#include "device/compiler/fusion/lower_chain.h"

namespace trellis::device {

std::vector<std::int32_t> buffer_slots(const Graph& graph) {
  std::vector<std::int32_t> slots(graph.buffers.size(), -1);
  std::int32_t next = 0;
  for (const Node& node : graph.nodes) {
    for (const auto* list : {&node.inputs, &node.outputs}) {
      for (std::uint32_t v : *list) {
        const std::uint32_t b = graph.values[v].buffer;
        if (slots[b] < 0 && graph.buffers[b].role != BufferRole::kTemporary) slots[b] = next++;
      }
    }
  }
  return slots;
}

Lowering::Lowering(const Graph& graph, std::vector<std::int32_t> slots, const sim::CoreConfig& core)
    : graph_(graph),
      builder_(graph.name, core),
      slots_(std::move(slots)),
      program_buffer_(graph.buffers.size(), isa::kNone) {
  measure_buffers();
}

/// On the device, 8-byte elements take 4: a buffer is as large as what its views reach.
void Lowering::measure_buffers() {
  bytes_.assign(graph_.buffers.size(), 0);
  for (const Value& v : graph_.values) {
    std::int64_t last = v.view.offset;
    for (std::size_t d = 0; d < v.view.sizes.size(); ++d)
      last += v.view.strides[d] * std::max<std::int64_t>(v.view.sizes[d] - 1, 0);
    bytes_[v.buffer] =
        std::max(bytes_[v.buffer], (last + 1) * isa::size_bytes(device_dtype(v.view.dtype)));
  }
}

std::uint32_t Lowering::buffer(std::uint32_t graph_buffer) {
  std::uint32_t& id = program_buffer_.at(graph_buffer);
  if (id == isa::kNone) {
    const std::int32_t slot = slots_[graph_buffer];
    id = builder_.add_hbm(slot >= 0 ? fmt::format("slot{}", slot) : "temporary",
                          bytes_[graph_buffer], slot);
  }
  return id;
}

HbmView Lowering::view(std::uint32_t value) {
  const Value& v = graph_.values.at(value);
  return {buffer(v.buffer), device_dtype(v.view.dtype), v.view.sizes, v.view.strides,
          v.view.offset};
}

std::uint32_t Lowering::kernel(const std::string& name, std::uint32_t node, std::int64_t flops,
                               bool estimated, std::int64_t ops) {
  (estimated ? coverage_.estimated_ops : coverage_.lowered_ops) += ops;
  (estimated ? coverage_.estimated_flops : coverage_.lowered_flops) += flops;
  return builder_.add_kernel({name, node, flops, estimated});
}

namespace {
Chain one_step(const HbmView& target) {
  Chain chain;
  chain.sizes = target.sizes;
  chain.reduced.assign(target.sizes.size(), false);
  return chain;
}
}  // namespace

void copy_view(Lowering& lowering, std::uint32_t kernel, const HbmView& target,
               const HbmView& source) {
  if (target.elements() == 0) return;
  Chain chain = one_step(target);
  chain.values = {{source.dtype, true, source.buffer, source.offset, source.strides},
                  {target.dtype, false, 0, 0, {}}};
  Chain::Step step;
  step.a = 0;
  step.dst = 1;
  chain.steps = {step};
  chain.outputs = {{1, target.buffer, target.dtype, target.offset, target.strides}};
  lower_chain(lowering.builder(), kernel, std::move(chain));
}

void fill_view(Lowering& lowering, std::uint32_t kernel, const HbmView& target, double value) {
  if (target.elements() == 0) return;
  Chain chain = one_step(target);
  chain.values = {{target.dtype, false, 0, 0, {}}};
  Chain::Step step;
  step.opcode = isa::Opcode::kMemset;
  step.imm0 = value;
  step.dst = 0;
  chain.steps = {step};
  chain.outputs = {{0, target.buffer, target.dtype, target.offset, target.strides}};
  lower_chain(lowering.builder(), kernel, std::move(chain));
}

}  // namespace trellis::device
