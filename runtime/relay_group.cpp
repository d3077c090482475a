#include "runtime/relay_group.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "runtime/device_plugin.h"
#include "runtime/premultiplied.h"
#include "runtime/relay_records.h"
#include "runtime/transfer.h"

namespace trellis::runtime {
namespace {

using c10d::OpType;
using Tensors = RelayGroup::Tensors;
using TensorLists = RelayGroup::TensorLists;

/// The same bytes as a CPU tensor. The caller keeps `tensor` alive as long as the alias is used.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU));
}

Tensors on_host(const Tensors& tensors) {
  Tensors host;
  for (const at::Tensor& tensor : tensors) host.push_back(on_host(tensor));
  return host;
}

TensorLists on_host(const TensorLists& lists) {
  TensorLists host;
  for (const Tensors& list : lists) host.push_back(on_host(list));
  return host;
}

/// The carrier has no sum of multiples: it adds copies that were multiplied.
template <typename Options>
Options as_sum(Tensors& host, Options opts) {
  if (const std::optional<double> factor = factor_of(opts.reduceOp)) {
    for (at::Tensor& tensor : host) tensor = multiplied(tensor, *factor);
    opts.reduceOp = c10d::ReduceOp::SUM;
  }
  return opts;
}

/// The same where the carrier writes its result over what it adds.
template <typename Options>
Options as_sum_in_place(const Tensors& host, const Options& opts) {
  Tensors copies = host;
  Options sum = as_sum(copies, opts);
  const at::AutoDispatchBelowADInplaceOrView plain_copy;
  for (std::size_t i = 0; i < host.size(); ++i) {
    if (!copies[i].is_same(host[i])) host[i].copy_(copies[i]);
  }
  return sum;
}

std::int64_t total(const Tensors& tensors) {
  std::int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.numel();
  return sum;
}

Tensors flat(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<void*> addresses(const Tensors& tensors) {
  std::vector<void*> result;
  for (const at::Tensor& tensor : tensors) result.push_back(const_cast<at::Tensor*>(&tensor));
  return result;
}

/// Keeps the device's tensors while the carrier works on their aliases, and notifies the plugin
/// where the result is needed.
class RelayWork final : public c10d::Work {
 public:
  RelayWork(int rank, OpType op, c10::intrusive_ptr<c10d::Work> carried, Tensors kept,
            Tensors result, const DevicePlugin& plugin, std::int64_t handle,
            std::shared_ptr<RelayRecords> records, std::shared_ptr<Transfer> transfer)
      : Work(rank, op),
        records_(std::move(records)),
        transfer_(std::move(transfer)),
        carried_(std::move(carried)),
        kept_(std::move(kept)),
        result_(std::move(result)),
        plugin_(plugin),
        handle_(handle) {}

  bool isCompleted() override { return carried_->isCompleted(); }
  bool isSuccess() const override { return carried_->isSuccess(); }
  std::exception_ptr exception() const override { return carried_->exception(); }
  std::vector<at::Tensor> result() override { return result_; }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    const bool done = carry(timeout);
    if (handle_ >= 0) plugin_.check(plugin_.api().comm_wait(handle_));
    handle_ = -1;
    return done;
  }
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }
  /// Waits, then returns a completed future: callbacks must run on the rank's own thread.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait();
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(result_));
    return future;
  }

 private:
  bool carry(std::chrono::milliseconds timeout) {
    if (transfer_->done) return true;
    records_->begin_wait(*transfer_);
    try {
      const bool done = carried_->wait(timeout);
      records_->end_wait(*transfer_);
      return done;
    } catch (const std::exception& error) {
      C10_THROW_ERROR(DistBackendError, records_->explain(*transfer_, error.what()));
    }
  }

  std::shared_ptr<RelayRecords> records_;
  std::shared_ptr<Transfer> transfer_;
  c10::intrusive_ptr<c10d::Work> carried_;
  Tensors kept_, result_;
  const DevicePlugin& plugin_;
  std::int64_t handle_;
};

}  // namespace

RelayGroup::RelayGroup(c10::intrusive_ptr<c10d::Backend> carrier, Options options)
    : Backend(carrier->getRank(), carrier->getSize()),
      carrier_(std::move(carrier)),
      options_(std::move(options)),
      sent_(static_cast<std::size_t>(size_)),
      received_(static_cast<std::size_t>(size_)) {
  TORCH_CHECK(options_.plugin != nullptr, "relay group: a device plugin is needed");
  TORCH_CHECK(static_cast<int>(options_.ranks.size()) == size_, "relay group: expected ", size_,
              " global ranks, got ", options_.ranks.size());
  GroupInfo info{options_.axis, options_.ranks, static_cast<int>(options_.instance), size_,
                 c10::str(options_.axis, " [", c10::Join(", ", options_.ranks), "]")};
  if (info.instance > 0) info.label += c10::str(" (instance ", info.instance, ")");
  info_ = std::make_shared<const GroupInfo>(std::move(info));
  options_.records->note_group(info_);
}

namespace {

CommOp operation(OpType op) {
  switch (op) {
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED: return CommOp::kAllReduce;
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED: return CommOp::kAllGather;
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE: return CommOp::kReduceScatter;
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE: return CommOp::kAllToAll;
    case OpType::BROADCAST: return CommOp::kBroadcast;
    case OpType::REDUCE: return CommOp::kReduce;
    case OpType::GATHER: return CommOp::kGather;
    case OpType::SCATTER: return CommOp::kScatter;
    case OpType::SEND: return CommOp::kSend;
    case OpType::RECV: return CommOp::kRecv;
    default: return CommOp::kBarrier;
  }
}

}  // namespace

std::shared_ptr<Transfer> RelayGroup::recorded(const Call& call, const std::vector<int>& ranks,
                                               std::uint64_t sequence) const {
  Side side;
  side.call.op = operation(call.op);
  side.call.elements = call.elements;
  side.input_splits = {total(call.inputs)};
  side.output_splits = {total(call.outputs)};
  const Tensors& some = call.inputs.empty() ? call.outputs : call.inputs;
  if (!some.empty()) side.call.dtype = some[0].scalar_type();
  std::shared_ptr<Transfer> transfer;
  if (side.call.op == CommOp::kSend || side.call.op == CommOp::kRecv) {
    auto message = std::make_shared<Message>();
    message->group = info_;
    message->sequence = sequence;
    message->sender = ranks[0];
    message->receiver = ranks[1];
    transfer = std::move(message);
  } else {
    transfer = std::make_shared<Exchange>(info_, sequence);
  }
  options_.records->add(side, transfer);
  return transfer;
}

std::int64_t RelayGroup::announce(const Call& call, const std::vector<int>& ranks,
                                  std::uint64_t sequence) const {
  const trellis_device_plugin_t& api = options_.plugin->api();
  const Tensors& some = call.inputs.empty() ? call.outputs : call.inputs;
  const bool on_device = some.empty() || some[0].is_privateuseone();
  if (api.comm_start == nullptr || api.comm_wait == nullptr || !on_device) return -1;
  const auto inputs = addresses(call.inputs);
  const auto outputs = addresses(call.outputs);
  trellis_comm comm{};
  comm.kind = call.kind;
  comm.axis = options_.axis.c_str();
  comm.ranks = ranks.data();
  comm.num_ranks = static_cast<std::int32_t>(ranks.size());
  comm.sequence = (static_cast<std::uint64_t>(options_.instance) << 32) | sequence;
  comm.elements = call.elements;
  comm.scalar_type =
      static_cast<std::int32_t>(some.empty() ? c10::ScalarType::Byte : some[0].scalar_type());
  comm.inputs = inputs.data();
  comm.num_inputs = static_cast<std::int32_t>(inputs.size());
  comm.outputs = outputs.data();
  comm.num_outputs = static_cast<std::int32_t>(outputs.size());
  const std::int64_t handle = api.comm_start(&comm);
  if (handle < 0) options_.plugin->check(handle);
  return handle;
}

RelayGroup::WorkPtr RelayGroup::started(Call call, WorkPtr carried, const std::vector<int>& ranks,
                                        std::uint64_t sequence) {
  const std::int64_t handle = announce(call, ranks, sequence);
  auto transfer = recorded(call, ranks, sequence);
  return c10::make_intrusive<RelayWork>(
      rank_of(rank_), call.op, std::move(carried), std::move(call.inputs), std::move(call.outputs),
      *options_.plugin, handle, options_.records, std::move(transfer));
}

RelayGroup::WorkPtr RelayGroup::started(Call call, WorkPtr carried) {
  return started(std::move(call), std::move(carried), options_.ranks, collectives_++);
}

RelayGroup::WorkPtr RelayGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Tensors host = on_host(tensors);
  return started({OpType::ALLREDUCE, TRELLIS_ALL_REDUCE, total(tensors), tensors, tensors},
                 carrier_->allreduce(host, as_sum_in_place(host, opts)));
}

RelayGroup::WorkPtr RelayGroup::allreduce_coalesced(Tensors& tensors,
                                                    const c10d::AllreduceCoalescedOptions& opts) {
  Tensors host = on_host(tensors);
  return started(
      {OpType::ALLREDUCE_COALESCED, TRELLIS_ALL_REDUCE, total(tensors), tensors, tensors},
      carrier_->allreduce_coalesced(host, as_sum_in_place(host, opts)));
}

RelayGroup::WorkPtr RelayGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Tensors host = on_host(tensors);
  const bool root = rank_ == opts.rootRank;
  const c10d::ReduceOptions sum = root ? as_sum_in_place(host, opts) : as_sum(host, opts);
  return started(
      {OpType::REDUCE, TRELLIS_ALL_REDUCE, total(tensors), tensors, root ? tensors : Tensors{}},
      carrier_->reduce(host, sum));
}

RelayGroup::WorkPtr RelayGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Tensors host = on_host(tensors);
  const bool root = rank_ == opts.rootRank;
  return started({OpType::BROADCAST, TRELLIS_BROADCAST, total(tensors), root ? tensors : Tensors{},
                  root ? Tensors{} : tensors},
                 carrier_->broadcast(host, opts));
}

RelayGroup::WorkPtr RelayGroup::allgather(TensorLists& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) {
  TensorLists host_outputs = on_host(outputs);
  Tensors host_inputs = on_host(inputs);
  return started(
      {OpType::ALLGATHER, TRELLIS_ALL_GATHER, size_ * total(inputs), inputs, flat(outputs)},
      carrier_->allgather(host_outputs, host_inputs, opts));
}

RelayGroup::WorkPtr RelayGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& opts) {
  at::Tensor host_output = on_host(output);
  at::Tensor host_input = on_host(input);
  return started({OpType::_ALLGATHER_BASE, TRELLIS_ALL_GATHER, output.numel(), {input}, {output}},
                 carrier_->_allgather_base(host_output, host_input, opts));
}

RelayGroup::WorkPtr RelayGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  Tensors host_outputs = on_host(outputs);
  Tensors host_inputs = on_host(inputs);
  return started({OpType::COALESCED, TRELLIS_ALL_GATHER, total(outputs), inputs, outputs},
                 carrier_->allgather_into_tensor_coalesced(host_outputs, host_inputs, opts));
}

RelayGroup::WorkPtr RelayGroup::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                               const c10d::ReduceScatterOptions& opts) {
  Tensors host_outputs = on_host(outputs);
  TensorLists host_inputs = on_host(inputs);
  c10d::ReduceScatterOptions sum = opts;
  for (Tensors& list : host_inputs) sum = as_sum(list, opts);
  return started({OpType::REDUCE_SCATTER, TRELLIS_REDUCE_SCATTER, size_ * total(outputs),
                  flat(inputs), outputs},
                 carrier_->reduce_scatter(host_outputs, host_inputs, sum));
}

RelayGroup::WorkPtr RelayGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& opts) {
  at::Tensor host_output = on_host(output);
  Tensors host_input{on_host(input)};
  const c10d::ReduceScatterOptions sum = as_sum(host_input, opts);
  return started(
      {OpType::_REDUCE_SCATTER_BASE, TRELLIS_REDUCE_SCATTER, input.numel(), {input}, {output}},
      carrier_->_reduce_scatter_base(host_output, host_input[0], sum));
}

RelayGroup::WorkPtr RelayGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  Tensors host_outputs = on_host(outputs);
  Tensors host_inputs = on_host(inputs);
  const c10d::ReduceScatterOptions sum = as_sum(host_inputs, opts);
  return started({OpType::COALESCED, TRELLIS_REDUCE_SCATTER, total(inputs), inputs, outputs},
                 carrier_->reduce_scatter_tensor_coalesced(host_outputs, host_inputs, sum));
}

RelayGroup::WorkPtr RelayGroup::gather(TensorLists& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& opts) {
  TensorLists host_outputs = on_host(outputs);
  Tensors host_inputs = on_host(inputs);
  return started({OpType::GATHER, TRELLIS_ALL_GATHER, size_ * total(inputs), inputs, flat(outputs)},
                 carrier_->gather(host_outputs, host_inputs, opts));
}

RelayGroup::WorkPtr RelayGroup::scatter(Tensors& outputs, TensorLists& inputs,
                                        const c10d::ScatterOptions& opts) {
  Tensors host_outputs = on_host(outputs);
  TensorLists host_inputs = on_host(inputs);
  return started(
      {OpType::SCATTER, TRELLIS_BROADCAST, size_ * total(outputs), flat(inputs), outputs},
      carrier_->scatter(host_outputs, host_inputs, opts));
}

RelayGroup::WorkPtr RelayGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& opts) {
  Tensors host_outputs = on_host(outputs);
  Tensors host_inputs = on_host(inputs);
  return started({OpType::ALLTOALL, TRELLIS_ALL_TO_ALL, total(inputs), inputs, outputs},
                 carrier_->alltoall(host_outputs, host_inputs, opts));
}

RelayGroup::WorkPtr RelayGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_splits,
                                              std::vector<std::int64_t>& input_splits,
                                              const c10d::AllToAllOptions& opts) {
  at::Tensor host_output = on_host(output);
  at::Tensor host_input = on_host(input);
  return started(
      {OpType::ALLTOALL_BASE,
       TRELLIS_ALL_TO_ALL,
       std::max(input.numel(), output.numel()),
       {input},
       {output}},
      carrier_->alltoall_base(host_output, host_input, output_splits, input_splits, opts));
}

RelayGroup::WorkPtr RelayGroup::barrier(const c10d::BarrierOptions& opts) {
  c10d::BarrierOptions host = opts;
  host.device = c10::Device(c10::kCPU);
  return started({OpType::BARRIER, TRELLIS_BARRIER, 0, {}, {}}, carrier_->barrier(host));
}

RelayGroup::WorkPtr RelayGroup::send(Tensors& tensors, int to, int tag) {
  Tensors host = on_host(tensors);
  const std::uint64_t sequence = sent_.at(static_cast<std::size_t>(to))++;
  return started({OpType::SEND, TRELLIS_SEND_RECV, total(tensors), tensors, {}},
                 carrier_->send(host, to, tag), {rank_of(rank_), rank_of(to)}, sequence);
}

RelayGroup::WorkPtr RelayGroup::recv(Tensors& tensors, int from, int tag) {
  Tensors host = on_host(tensors);
  const std::uint64_t sequence = received_.at(static_cast<std::size_t>(from))++;
  return started({OpType::RECV, TRELLIS_SEND_RECV, total(tensors), {}, tensors},
                 carrier_->recv(host, from, tag), {rank_of(from), rank_of(rank_)}, sequence);
}

}  // namespace trellis::runtime
