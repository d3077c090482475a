#include "runtime/groups/process_group_neuron.h"

#include <algorithm>
#include <numeric>

#include "device/plugin.h"
#include "runtime/calls/premultiplied.h"
#include "runtime/calls/reduce_kernel.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/groups/work.h"

namespace trellis::runtime {
namespace {

using c10d::OpType;
using Tensors = ProcessGroupNeuron::Tensors;

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM: return Reduction::kSum;
    case c10d::ReduceOp::AVG: return Reduction::kAverage;
    case c10d::ReduceOp::PRODUCT: return Reduction::kProduct;
    case c10d::ReduceOp::MIN: return Reduction::kMin;
    case c10d::ReduceOp::MAX: return Reduction::kMax;
    case c10d::ReduceOp::BAND: return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR: return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR: return Reduction::kBitXor;
    default:
      TORCH_CHECK(false,
                  "backend neuron combines by SUM, AVG, PREMUL_SUM, PRODUCT, MIN, MAX, BAND, BOR "
                  "or BXOR, got reduce operation ",
                  static_cast<int>(op.op_));
  }
}

std::int64_t total(const Tensors& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::int64_t{0},
                         [](std::int64_t n, const at::Tensor& t) { return n + t.numel(); });
}

/// The call as this rank sees it; `tensors` travel together and must be of one type.
CommCall make_call(CommOp op, const Tensors& tensors, std::int64_t elements) {
  TORCH_CHECK(!tensors.empty(), name(op), ": expected at least one tensor");
  CommCall call;
  call.op = op;
  call.dtype = tensors[0].scalar_type();
  call.elements = elements;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.layout() == at::kStrided, name(op), ": expected a dense tensor, got layout ",
                tensor.layout());
    TORCH_CHECK(tensor.scalar_type() == call.dtype, name(op),
                ": expected all tensors of one communication to be ", call.dtype, ", got ",
                tensor.scalar_type());
    if (tensors.size() > 1) call.parts.push_back(tensor.numel());
  }
  return call;
}

CommCall with_reduction(CommCall call, const c10d::ReduceOp& op) {
  call.reduction = reduction_of(op);
  check_reducible(call.dtype, call.reduction);
  return call;
}

/// c10d's list forms hold one list or tensor per device of a rank; a rank has one device.
template <typename T>
T& the_one(std::vector<T>& per_device, const char* what) {
  TORCH_CHECK(per_device.size() == 1, what, ": expected one entry (a rank has one device), got ",
              per_device.size());
  return per_device[0];
}

void check_shards(CommOp op, const Tensors& shards, const at::Tensor& like, int members) {
  TORCH_CHECK(static_cast<int>(shards.size()) == members, name(op),
              ": expected one tensor per member (", members, "), got ", shards.size());
  for (const at::Tensor& shard : shards) {
    TORCH_CHECK(shard.numel() == like.numel() && shard.scalar_type() == like.scalar_type(),
                name(op), ": expected shards of ", like.numel(), " ", like.scalar_type(), ", got ",
                shard.numel(), " ", shard.scalar_type());
  }
}

void check_whole(CommOp op, const at::Tensor& whole, const at::Tensor& shard, int members) {
  TORCH_CHECK(
      whole.numel() == members * shard.numel() && whole.scalar_type() == shard.scalar_type(),
      name(op), ": expected a gathered tensor of ", members * shard.numel(), " ",
      shard.scalar_type(), " (", members, " members x ", shard.numel(), "), got ", whole.numel(),
      " ", whole.scalar_type());
}

void check_root(CommOp op, std::int64_t root, int members) {
  TORCH_CHECK(root >= 0 && root < members, name(op), ": expected a root between 0 and ",
              members - 1, " (a member of the group), got ", root);
}

int plugin_kind(CommOp op) {
  switch (op) {
    case CommOp::kAllReduce:
    case CommOp::kReduce: return TRELLIS_ALL_REDUCE;
    case CommOp::kAllGather:
    case CommOp::kGather: return TRELLIS_ALL_GATHER;
    case CommOp::kReduceScatter: return TRELLIS_REDUCE_SCATTER;
    case CommOp::kAllToAll: return TRELLIS_ALL_TO_ALL;
    case CommOp::kBroadcast:
    case CommOp::kScatter: return TRELLIS_BROADCAST;
    case CommOp::kSend:
    case CommOp::kRecv: return TRELLIS_SEND_RECV;
    case CommOp::kBarrier:
    case CommOp::kNewGroup: return TRELLIS_BARRIER;
  }
  return TRELLIS_BARRIER;
}

std::vector<void*> addresses(const Tensors& tensors) {
  std::vector<void*> result;
  for (const at::Tensor& tensor : tensors) result.push_back(const_cast<at::Tensor*>(&tensor));
  return result;
}

/// Rows of dimension 0 → elements; no splits: as even as c10d demands.
std::vector<std::int64_t> split_elements(const at::Tensor& tensor,
                                         const std::vector<std::int64_t>& rows, int members) {
  if (rows.empty()) {
    TORCH_CHECK(tensor.numel() == 0 || tensor.size(0) % members == 0,
                "all-to-all: expected dimension 0 to divide by ", members, ", got ", tensor.size(0),
                "; give split sizes");
    return std::vector<std::int64_t>(static_cast<std::size_t>(members), tensor.numel() / members);
  }
  const std::int64_t sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  TORCH_CHECK(static_cast<int>(rows.size()) == members && sum == tensor.size(0),
              "all-to-all: expected ", members, " split sizes that add up to ", tensor.size(0),
              ", got ", c10::Join(", ", rows));
  std::vector<std::int64_t> elements;
  for (std::int64_t r : rows) {
    TORCH_CHECK(r >= 0, "all-to-all: expected split sizes of 0 or more, got ",
                c10::Join(", ", rows));
    elements.push_back(sum == 0 ? 0 : tensor.numel() / sum * r);
  }
  return elements;
}

}  // namespace

ProcessGroupNeuron::ProcessGroupNeuron(std::shared_ptr<Rendezvous> rendezvous,
                                       Rendezvous::Group& group, int member, Options options)
    : Backend(member, static_cast<int>(group.info->ranks.size())),
      rendezvous_(std::move(rendezvous)),
      group_(group),
      options_(options),
      backend_options_(c10::make_intrusive<Backend::Options>("neuron")) {
  backend_options_->group_desc = group.info->axis;
  for (int rank : group.info->ranks)
    backend_options_->global_ranks_in_group.push_back(static_cast<std::uint64_t>(rank));
}

void ProcessGroupNeuron::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "timeout of ", group_.info->label,
              ": expected more than 0 ms, got ", timeout.count());
  timeout_ = timeout;
  backend_options_->timeout = timeout;
}

c10d::ErrorType ProcessGroupNeuron::getError() {
  return rendezvous_->has_failed() ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::SUCCESS;
}

void ProcessGroupNeuron::startCoalescing() {
  TORCH_CHECK(!coalesced_.has_value(), "startCoalescing of ", group_.info->label,
              ": the one before has not ended");
  coalesced_.emplace();
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::endCoalescing() {
  TORCH_CHECK(coalesced_.has_value(), "endCoalescing of ", group_.info->label,
              " without startCoalescing");
  auto work = c10::make_intrusive<CoalescedWork>(world_rank(), std::move(*coalesced_));
  coalesced_.reset();
  return work;
}

/// Tensors of another device are named before anybody waits for this rank.
void ProcessGroupNeuron::check_usable(const Request& request) const {
  const auto op = name(request.call.op);
  TORCH_CHECK(!is_shut_down_, op, " of rank ", world_rank(), " in ", group_.info->label,
              " after the group was shut down: make another group");
  const at::Tensor* first = nullptr;
  for (const Tensors* tensors : {&request.inputs, &request.outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      if (first == nullptr) first = &tensor;
      TORCH_CHECK(tensor.device() == first->device(), op,
                  ": expected all tensors on one device, got ", first->device(), " and ",
                  tensor.device());
      TORCH_CHECK(tensor.device().is_cpu() || tensor.device().index() == options_.device.index(),
                  op, ": rank ", world_rank(), " expected tensors on the CPU or on device index ",
                  static_cast<int>(options_.device.index()), ", got ", tensor.device());
    }
  }
}

bool ProcessGroupNeuron::is_announced(const Request& request) const {
  if (options_.plugin == nullptr || options_.plugin->api().comm_start == nullptr ||
      options_.plugin->api().comm_wait == nullptr)
    return false;
  if (request.call.op == CommOp::kBarrier) return true;
  const auto& some = request.inputs.empty() ? request.outputs : request.inputs;
  return !some.empty() && some[0].device().type() == c10::DeviceType::PrivateUse1;
}

std::int64_t ProcessGroupNeuron::announce(const Request& request, const std::vector<int>& ranks,
                                          std::uint64_t sequence) const {
  if (!is_announced(request)) return -1;
  const auto inputs = addresses(request.inputs);
  const auto outputs = addresses(request.outputs);
  trellis_comm comm{};
  comm.kind = plugin_kind(request.call.op);
  comm.axis = group_.info->axis.c_str();
  comm.ranks = ranks.data();
  comm.num_ranks = static_cast<std::int32_t>(ranks.size());
  // The plugin knows a group by axis and ranks: later groups of the same ranks count in their own
  // range.
  comm.sequence = (static_cast<std::uint64_t>(group_.info->instance) << 32) | sequence;
  comm.elements = request.call.elements;
  comm.scalar_type = static_cast<std::int32_t>(request.call.dtype);
  comm.inputs = inputs.data();
  comm.num_inputs = static_cast<std::int32_t>(inputs.size());
  comm.outputs = outputs.data();
  comm.num_outputs = static_cast<std::int32_t>(outputs.size());
  const std::int64_t handle = options_.plugin->api().comm_start(&comm);
  if (handle < 0) options_.plugin->check(handle);
  return handle;
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::finish_start(const Request& request,
                                                             std::uint64_t sequence,
                                                             std::int64_t handle,
                                                             std::shared_ptr<Transfer> transfer,
                                                             Tensors result) {
  NeuronWork::Parts parts;
  parts.rank = world_rank();
  parts.rendezvous = rendezvous_;
  parts.transfer = std::move(transfer);
  parts.plugin = handle >= 0 ? options_.plugin : nullptr;
  parts.handle = handle;
  parts.result = std::move(result);
  parts.sequence = sequence;
  parts.source = request.source;
  parts.timeout = request.timeout.count() > 0 ? request.timeout : timeout_;
  auto work = c10::make_intrusive<NeuronWork>(request.op, std::move(parts));
  if (coalesced_.has_value()) {
    coalesced_->push_back(work);
  } else if (!request.asynchronous) {
    work->wait();
  }
  return work;
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::start_collective(Request request, Side side,
                                                                 Tensors result) {
  check_usable(request);
  side.call = request.call;
  const std::uint64_t sequence = collectives_++;
  const std::int64_t handle = announce(request, group_.info->ranks, sequence);
  return finish_start(request, sequence, handle,
                      rendezvous_->exchange(group_, rank_, sequence, std::move(side)),
                      std::move(result));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allreduce(Tensors& tensors,
                                                          const c10d::AllreduceOptions& opts) {
  TORCH_CHECK(!opts.sparseIndices.has_value(),
              "all-reduce: backend neuron takes dense tensors only");
  auto call = with_reduction(make_call(CommOp::kAllReduce, tensors, total(tensors)), opts.reduceOp);
  SideBuilder side(options_.shape_only, factor_of(opts.reduceOp));
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    side.in_out(tensor, offset);
    offset += tensor.numel();
  }
  return start_collective(
      {OpType::ALLREDUCE, std::move(call), tensors, tensors, opts.timeout, opts.asyncOp},
      side.finish(), tensors);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return allreduce(tensors, opts);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::reduce(Tensors& tensors,
                                                       const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = the_one(tensors, "reduce");
  check_root(CommOp::kReduce, opts.rootRank, size_);
  auto call = with_reduction(make_call(CommOp::kReduce, tensors, tensor.numel()), opts.reduceOp);
  call.root = static_cast<int>(opts.rootRank);
  const bool is_root = rank_ == call.root;
  SideBuilder side(options_.shape_only, factor_of(opts.reduceOp));
  if (is_root) {
    side.in_out(tensor, 0);
  } else {
    side.input(tensor, 0);
  }
  return start_collective({OpType::REDUCE, std::move(call), tensors, is_root ? tensors : Tensors{},
                           opts.timeout, opts.asyncOp},
                          side.finish(), tensors);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::broadcast(Tensors& tensors,
                                                          const c10d::BroadcastOptions& opts) {
  check_root(CommOp::kBroadcast, opts.rootRank, size_);
  auto call = make_call(CommOp::kBroadcast, tensors, total(tensors));
  call.root = static_cast<int>(opts.rootRank);
  const bool is_root = rank_ == call.root;
  SideBuilder side(options_.shape_only);
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    is_root ? side.input(tensor, offset) : side.output(tensor, offset);
    offset += tensor.numel();
  }
  return start_collective({OpType::BROADCAST, std::move(call), is_root ? tensors : Tensors{},
                           is_root ? Tensors{} : tensors, opts.timeout, opts.asyncOp},
                          side.finish(), tensors);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allgather(TensorLists& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  const Tensors& shards = the_one(outputs, "all-gather outputs");
  const at::Tensor& input = the_one(inputs, "all-gather inputs");
  check_shards(CommOp::kAllGather, shards, input, size_);
  SideBuilder side(options_.shape_only);
  side.input(input, rank_ * input.numel());
  for (int m = 0; m < size_; ++m)
    side.output(shards[static_cast<std::size_t>(m)], m * input.numel());
  return start_collective(
      {OpType::ALLGATHER, make_call(CommOp::kAllGather, inputs, size_ * input.numel()), inputs,
       shards, opts.timeout, opts.asyncOp},
      side.finish(), shards);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "all-gather: expected one output per input (",
              inputs.size(), "), got ", outputs.size());
  const std::int64_t shard = total(inputs);
  auto call = make_call(CommOp::kAllGather, inputs, size_ * shard);
  SideBuilder side(options_.shape_only);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int64_t length = inputs[i].numel();
    check_whole(CommOp::kAllGather, outputs[i], inputs[i], size_);
    side.input(inputs[i], rank_ * shard + offset);
    for (int m = 0; m < size_; ++m) side.output(outputs[i], m * length, length, m * shard + offset);
    offset += length;
  }
  return start_collective(
      {OpType::_ALLGATHER_BASE, std::move(call), inputs, outputs, opts.timeout, opts.asyncOp},
      side.finish(), outputs);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) {
  const Tensors& shards = the_one(inputs, "reduce-scatter inputs");
  const at::Tensor& output = the_one(outputs, "reduce-scatter outputs");
  check_shards(CommOp::kReduceScatter, shards, output, size_);
  auto call = with_reduction(make_call(CommOp::kReduceScatter, outputs, size_ * output.numel()),
                             opts.reduceOp);
  SideBuilder side(options_.shape_only, factor_of(opts.reduceOp));
  for (int m = 0; m < size_; ++m)
    side.input(shards[static_cast<std::size_t>(m)], m * output.numel());
  side.output(output, rank_ * output.numel());
  return start_collective(
      {OpType::REDUCE_SCATTER, std::move(call), shards, outputs, opts.timeout, opts.asyncOp},
      side.finish(), outputs);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "reduce-scatter: expected one output per input (",
              inputs.size(), "), got ", outputs.size());
  const std::int64_t shard = total(outputs);
  auto call =
      with_reduction(make_call(CommOp::kReduceScatter, outputs, size_ * shard), opts.reduceOp);
  SideBuilder side(options_.shape_only, factor_of(opts.reduceOp));
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::int64_t length = outputs[i].numel();
    check_whole(CommOp::kReduceScatter, inputs[i], outputs[i], size_);
    for (int m = 0; m < size_; ++m) side.input(inputs[i], m * length, length, m * shard + offset);
    side.output(outputs[i], rank_ * shard + offset);
    offset += length;
  }
  return start_collective(
      {OpType::_REDUCE_SCATTER_BASE, std::move(call), inputs, outputs, opts.timeout, opts.asyncOp},
      side.finish(), outputs);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::gather(TensorLists& outputs, Tensors& inputs,
                                                       const c10d::GatherOptions& opts) {
  const at::Tensor& input = the_one(inputs, "gather inputs");
  check_root(CommOp::kGather, opts.rootRank, size_);
  auto call = make_call(CommOp::kGather, inputs, size_ * input.numel());
  call.root = static_cast<int>(opts.rootRank);
  SideBuilder side(options_.shape_only);
  side.input(input, rank_ * input.numel());
  Tensors shards;
  if (rank_ == call.root) {
    shards = the_one(outputs, "gather outputs of the root");
    check_shards(CommOp::kGather, shards, input, size_);
    for (int m = 0; m < size_; ++m)
      side.output(shards[static_cast<std::size_t>(m)], m * input.numel());
  }
  return start_collective(
      {OpType::GATHER, std::move(call), inputs, shards, opts.timeout, opts.asyncOp}, side.finish(),
      shards);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::scatter(Tensors& outputs, TensorLists& inputs,
                                                        const c10d::ScatterOptions& opts) {
  const at::Tensor& output = the_one(outputs, "scatter outputs");
  check_root(CommOp::kScatter, opts.rootRank, size_);
  auto call = make_call(CommOp::kScatter, outputs, size_ * output.numel());
  call.root = static_cast<int>(opts.rootRank);
  SideBuilder side(options_.shape_only);
  Tensors shards;
  if (rank_ == call.root) {
    shards = the_one(inputs, "scatter inputs of the root");
    check_shards(CommOp::kScatter, shards, output, size_);
    for (int m = 0; m < size_; ++m)
      side.input(shards[static_cast<std::size_t>(m)], m * output.numel());
  }
  side.output(output, rank_ * output.numel());
  return start_collective(
      {OpType::SCATTER, std::move(call), shards, outputs, opts.timeout, opts.asyncOp},
      side.finish(), outputs);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::alltoall(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllToAllOptions& opts) {
  TORCH_CHECK(static_cast<int>(inputs.size()) == size_ && static_cast<int>(outputs.size()) == size_,
              "all-to-all: expected one input and one output per member (", size_, "), got ",
              inputs.size(), " and ", outputs.size());
  auto call = make_call(CommOp::kAllToAll, inputs, total(inputs));
  call.parts.clear();  // tensors per member, not several communications in one
  SideBuilder builder(options_.shape_only);
  Side splits;
  std::int64_t source = 0;
  std::int64_t target = 0;
  for (std::size_t m = 0; m < inputs.size(); ++m) {
    TORCH_CHECK(outputs[m].scalar_type() == call.dtype, "all-to-all: expected outputs of ",
                call.dtype, ", got ", outputs[m].scalar_type());
    builder.input(inputs[m], source);
    builder.output(outputs[m], target);
    splits.input_splits.push_back(inputs[m].numel());
    splits.output_splits.push_back(outputs[m].numel());
    source += inputs[m].numel();
    target += outputs[m].numel();
  }
  Side side = builder.finish();
  side.input_splits = std::move(splits.input_splits);
  side.output_splits = std::move(splits.output_splits);
  return start_collective(
      {OpType::ALLTOALL, std::move(call), inputs, outputs, opts.timeout, opts.asyncOp},
      std::move(side), outputs);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
    std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "all-to-all: expected an output of ",
              input.scalar_type(), ", got ", output.scalar_type());
  SideBuilder builder(options_.shape_only);
  builder.input(input, 0);
  builder.output(output, 0);
  Side side = builder.finish();
  side.input_splits = split_elements(input, input_splits, size_);
  side.output_splits = split_elements(output, output_splits, size_);
  const Tensors inputs{input};
  const Tensors outputs{output};
  const std::int64_t busier_side = std::max(input.numel(), output.numel());
  return start_collective({OpType::ALLTOALL_BASE, make_call(CommOp::kAllToAll, inputs, busier_side),
                           inputs, outputs, opts.timeout, opts.asyncOp},
                          std::move(side), outputs);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::barrier(const c10d::BarrierOptions& opts) {
  CommCall call;
  call.op = CommOp::kBarrier;
  return start_collective({OpType::BARRIER, std::move(call), {}, {}, opts.timeout, opts.asyncOp},
                          Side{}, {});
}

void ProcessGroupNeuron::monitoredBarrier(const c10d::BarrierOptions& opts, bool) {
  barrier(opts)->wait();
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::send(Tensors& tensors, int to, int tag) {
  check_root(CommOp::kSend, to, size_);
  const at::Tensor& tensor = the_one(tensors, "send");
  Request request{OpType::SEND, make_call(CommOp::kSend, tensors, tensor.numel()), tensors, {}};
  request.call.tag = tag;
  SideBuilder builder(options_.shape_only);
  builder.input(tensor, 0);
  Side side = builder.finish();
  check_usable(request);
  side.call = request.call;
  const std::uint64_t sequence = sent_[to]++;
  const std::int64_t handle = announce(request, {world_rank(), rank_of(to)}, sequence);
  rendezvous_->send(group_, rank_, to, sequence, std::move(side));
  return finish_start(request, sequence, handle, nullptr, tensors);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::recv(Tensors& tensors, int from, int tag) {
  check_root(CommOp::kRecv, from, size_);
  const at::Tensor& tensor = the_one(tensors, "receive");
  Request request{OpType::RECV, make_call(CommOp::kRecv, tensors, tensor.numel()), {}, tensors};
  request.call.tag = tag;
  request.source = rank_of(from);
  SideBuilder builder(options_.shape_only);
  builder.output(tensor, 0);
  Side side = builder.finish();
  check_usable(request);
  side.call = request.call;
  const std::uint64_t sequence = received_[from]++;
  const std::int64_t handle = announce(request, {rank_of(from), world_rank()}, sequence);
  return finish_start(request, sequence, handle,
                      rendezvous_->receive(group_, rank_, from, sequence, std::move(side)),
                      tensors);
}

}  // namespace trellis::runtime
