#include "tests/runtime/collective_player.h"

#include <algorithm>
#include <random>

namespace trellis::runtime::testing {
namespace {

using Shape = std::vector<std::int64_t>;
using Work = c10::intrusive_ptr<c10d::Work>;

constexpr int kGap = 77;
constexpr std::size_t kMostInFlight = 6;

/// A tensor and the elements around it, which no one may touch.
struct Placed {
  at::Tensor tensor;
  at::Tensor gaps;
};

Placed place(const Shape& shape, at::TensorOptions options, int layout) {
  const at::Tensor fresh = at::full(shape, 55, options);
  switch (layout) {
    case 1: {
      Shape wide = shape;
      wide.back() *= 2;
      const at::Tensor base = at::full(wide, kGap, options);
      return {base.slice(-1, 0, wide.back(), 2), base.slice(-1, 1, wide.back(), 2)};
    }
    case 2:
      if (shape.size() < 2) return {fresh, {}};
      return {at::full({shape[1], shape[0]}, 55, options).t(), {}};
    case 3: {
      const at::Tensor base = at::full({fresh.numel() + 3}, kGap, options);
      return {base.slice(0, 3, base.numel()).view(shape), base.slice(0, 0, 3)};
    }
    default: return {fresh, {}};
  }
}

class Player {
 public:
  Player(const Program& program, const Stage& stage)
      : program_(program),
        stage_(stage),
        dice_(program.seed * 64 + static_cast<std::uint64_t>(stage.rank)) {
    results_.resize(program.instructions.size());
  }

  std::vector<Tensors> run() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& in = program_.instructions[i];
      if (!stage_.groups[in.group] || (stage_.can_play != nullptr && !stage_.can_play(in)))
        continue;
      start(i, in);
      while (!pending_.empty() && (pending_.size() > kMostInFlight || dice_() % 2 == 0))
        finish(dice_() % pending_.size());
    }
    while (!pending_.empty()) finish(0);
    return std::move(results_);
  }

 private:
  struct Pending {
    std::size_t instruction;
    std::vector<Work> works;
    std::vector<Placed> inputs;
    std::vector<Placed> outputs;
  };

  int layout() { return stage_.strided ? static_cast<int>(dice_() % 4) : 0; }

  void start(std::size_t index, const Instruction& in) {
    c10d::Backend& backend = *stage_.groups[in.group];
    Pending pending{index, {}, {}, {}};
    const auto options = at::TensorOptions(in.dtype).device(stage_.device);
    Tensors inputs;
    Tensors outputs;
    for (const at::Tensor& values : inputs_of(in, backend.getRank(), backend.getSize())) {
      pending.inputs.push_back(place(values.sizes().vec(), options, layout()));
      inputs.push_back(pending.inputs.back().tensor);
      inputs.back().copy_(values);
    }
    if (is_in_place(in.op)) {
      pending.outputs = pending.inputs;
    } else {
      for (const Shape& shape : output_shapes(in, backend.getRank(), backend.getSize()))
        pending.outputs.push_back(place(shape, options, layout()));
    }
    for (const Placed& output : pending.outputs) outputs.push_back(output.tensor);
    pending.works = in.op == ProgramOp::kMessages
                        ? messages(backend, in, inputs, outputs)
                        : std::vector<Work>{collective(backend, in, inputs, outputs)};
    pending_.push_back(std::move(pending));
  }

  static std::vector<Work> messages(c10d::Backend& backend, const Instruction& in,
                                    const Tensors& sent, const Tensors& received) {
    std::vector<Work> works;
    auto source = sent.begin();
    auto target = received.begin();
    for (const ProgramMessage& message : in.messages) {
      if (message.from == backend.getRank()) {
        Tensors one{*source++};
        works.push_back(backend.send(one, message.to, message.tag));
      }
      if (message.to == backend.getRank()) {
        Tensors one{*target++};
        works.push_back(backend.recv(one, message.from, message.tag));
      }
    }
    return works;
  }

  template <typename Options>
  static Options reducing(const Instruction& in) {
    Options options;
    options.reduceOp = in.reduction;
    return options;
  }
  template <typename Options>
  static Options rooted(const Instruction& in) {
    Options options;
    options.rootRank = in.root;
    return options;
  }

  static Work collective(c10d::Backend& backend, const Instruction& in, Tensors& inputs,
                         Tensors& outputs) {
    std::vector<Tensors> input_lists{inputs};
    std::vector<Tensors> output_lists{outputs};
    const bool is_root = backend.getRank() == in.root;
    switch (in.op) {
      case ProgramOp::kAllReduce:
        return backend.allreduce(inputs, reducing<c10d::AllreduceOptions>(in));
      case ProgramOp::kAllReduceCoalesced:
        return backend.allreduce_coalesced(inputs, reducing<c10d::AllreduceCoalescedOptions>(in));
      case ProgramOp::kReduce: {
        auto options = reducing<c10d::ReduceOptions>(in);
        options.rootRank = in.root;
        return backend.reduce(inputs, options);
      }
      case ProgramOp::kBroadcast:
        return backend.broadcast(inputs, rooted<c10d::BroadcastOptions>(in));
      case ProgramOp::kAllGather: return backend.allgather(output_lists, inputs);
      case ProgramOp::kAllGatherBase: return backend._allgather_base(outputs[0], inputs[0]);
      case ProgramOp::kAllGatherCoalesced:
        return backend.allgather_into_tensor_coalesced(outputs, inputs);
      case ProgramOp::kReduceScatter:
        return backend.reduce_scatter(outputs, input_lists,
                                      reducing<c10d::ReduceScatterOptions>(in));
      case ProgramOp::kReduceScatterBase:
        return backend._reduce_scatter_base(outputs[0], inputs[0],
                                            reducing<c10d::ReduceScatterOptions>(in));
      case ProgramOp::kReduceScatterCoalesced:
        return backend.reduce_scatter_tensor_coalesced(outputs, inputs,
                                                       reducing<c10d::ReduceScatterOptions>(in));
      case ProgramOp::kGather:
        if (!is_root) output_lists.clear();
        return backend.gather(output_lists, inputs, rooted<c10d::GatherOptions>(in));
      case ProgramOp::kScatter:
        if (!is_root) input_lists.clear();
        return backend.scatter(outputs, input_lists, rooted<c10d::ScatterOptions>(in));
      case ProgramOp::kAllToAll: return backend.alltoall(outputs, inputs);
      case ProgramOp::kAllToAllBase: return all_to_all_base(backend, in, inputs[0], outputs[0]);
      case ProgramOp::kMessages:
      case ProgramOp::kBarrier: break;
    }
    return backend.barrier();
  }

  static Work all_to_all_base(c10d::Backend& backend, const Instruction& in, at::Tensor& input,
                              at::Tensor& output) {
    Shape sent;
    Shape received;
    const auto me = static_cast<std::size_t>(backend.getRank());
    if (!in.splits.empty()) {
      sent = in.splits[me];
      for (const Shape& from : in.splits) received.push_back(from[me]);
    }
    return backend.alltoall_base(output, input, received, sent);
  }

  void finish(std::size_t which) {
    const auto place_of = pending_.begin() + static_cast<std::ptrdiff_t>(which);
    for (const Work& work : place_of->works) work->wait();
    Tensors& results = results_[place_of->instruction];
    for (const Placed& output : place_of->outputs) {
      results.push_back(output.tensor.cpu().contiguous());
      check_gaps(output, program_.instructions[place_of->instruction]);
    }
    pending_.erase(place_of);
  }

  void check_gaps(const Placed& output, const Instruction& in) const {
    if (!output.gaps.defined()) return;
    TORCH_CHECK(output.gaps.cpu().eq(kGap).all().item<bool>(), "rank ", stage_.rank,
                ": elements next to an output were overwritten by ", describe(program_, in));
  }

  const Program& program_;
  const Stage& stage_;
  std::mt19937_64 dice_;
  std::vector<Pending> pending_;
  std::vector<Tensors> results_;
};

at::Tensor chunk(const at::Tensor& whole, int member, int members) {
  const std::int64_t length = whole.size(0) / members;
  return whole.slice(0, member * length, (member + 1) * length);
}

/// The rows of an all-to-all's packed input that are meant for `to`.
at::Tensor packed_rows(const Instruction& in, const at::Tensor& packed, int from, int to,
                       int members) {
  if (in.splits.empty()) return chunk(packed, to, members);
  const Shape& splits = in.splits[static_cast<std::size_t>(from)];
  std::int64_t begin = 0;
  for (int before = 0; before < to; ++before) begin += splits[static_cast<std::size_t>(before)];
  return packed.slice(0, begin, begin + splits[static_cast<std::size_t>(to)]);
}

}  // namespace

std::vector<Tensors> play(const Program& program, const Stage& stage) {
  return Player(program, stage).run();
}

namespace {

/// The messages that `member` receives, in the order in which they are sent.
std::vector<Tensors> messages_to(int member, const Instruction& in,
                                 const std::vector<Tensors>& all) {
  std::vector<Tensors> received;
  std::vector<std::size_t> sent(all.size(), 0);
  for (const ProgramMessage& message : in.messages) {
    const auto from = static_cast<std::size_t>(message.from);
    const std::size_t index = sent[from]++;
    if (message.to == member) received.push_back({all[from][index]});
  }
  return received;
}

}  // namespace

std::vector<Tensors> contributions(const Instruction& in, int member, int n) {
  std::vector<Tensors> all;
  for (int m = 0; m < n; ++m) all.push_back(inputs_of(in, m, n));
  const auto me = static_cast<std::size_t>(member);
  const auto root = static_cast<std::size_t>(in.root);
  const auto combined =
      [&](auto part_of) {  // one output per tensor, each combined from all members
        std::vector<Tensors> outputs(in.shapes.size());
        if (in.op == ProgramOp::kReduceScatter) outputs.resize(1);
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          for (const Tensors& inputs : all) outputs[i].push_back(part_of(inputs, i));
        }
        return outputs;
      };
  std::vector<Tensors> outputs;
  switch (in.op) {
    case ProgramOp::kReduce:
      if (member != in.root) return {{all[me][0]}};
      [[fallthrough]];
    case ProgramOp::kAllReduce:
    case ProgramOp::kAllReduceCoalesced:
      return combined([](const Tensors& inputs, std::size_t i) { return inputs[i]; });
    case ProgramOp::kReduceScatter:
      return combined([me](const Tensors& inputs, std::size_t) { return inputs[me]; });
    case ProgramOp::kReduceScatterBase:
    case ProgramOp::kReduceScatterCoalesced:
      return combined(
          [&](const Tensors& inputs, std::size_t i) { return chunk(inputs[i], member, n); });
    case ProgramOp::kBroadcast: return {{all[root][0]}};
    case ProgramOp::kScatter: return {{all[root][me]}};
    case ProgramOp::kGather:
      if (member != in.root) return {};
      [[fallthrough]];
    case ProgramOp::kAllGather:
      for (const Tensors& inputs : all) outputs.push_back({inputs[0]});
      return outputs;
    case ProgramOp::kAllGatherBase:
    case ProgramOp::kAllGatherCoalesced:
      for (std::size_t i = 0; i < in.shapes.size(); ++i) {
        Tensors parts;
        for (const Tensors& inputs : all) parts.push_back(inputs[i]);
        outputs.push_back({at::cat(parts)});
      }
      return outputs;
    case ProgramOp::kAllToAll:
      for (const Tensors& inputs : all) outputs.push_back({inputs[me]});
      return outputs;
    case ProgramOp::kAllToAllBase: {
      Tensors parts;
      for (int from = 0; from < n; ++from)
        parts.push_back(packed_rows(in, all[static_cast<std::size_t>(from)][0], from, member, n));
      return {{at::cat(parts)}};
    }
    case ProgramOp::kMessages: return messages_to(member, in, all);
    case ProgramOp::kBarrier: break;
  }
  return {};
}

}  // namespace trellis::runtime::testing
