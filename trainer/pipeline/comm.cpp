#include "trainer/pipeline/comm.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "runtime/calls/call_place.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kMaxDimensions = 8;
constexpr std::int64_t kHeaderSize = 2 + kMaxDimensions;  ///< scalar type, dimensions, sizes

c10::ScalarType type_of(const BorderTensor& border) {
  return border.options.dtype().toScalarType();
}

}  // namespace

PipelineComm::PipelineComm(ParallelGroup pipeline, const PipelineShape& shape, at::Device device,
                           const std::optional<BorderTensor>& border)
    : group_(std::move(pipeline)),
      shape_(shape),
      device_(device),
      borders_(static_cast<std::size_t>(shape.num_stages()), border) {}

void PipelineComm::Sending::wait() {
  if (work) work->wait();
  work.reset();
  tensor.reset();
}

std::optional<BorderTensor>& PipelineComm::border_of(const Message& message) {
  return borders_[static_cast<std::size_t>(message.is_gradient ? message.stage + 1
                                                               : message.stage)];
}

/// Distinct for all messages of a pass: receiving in another order than the sender's is a mismatch
/// that the process group names.
int PipelineComm::tag(const Message& message) const {
  return 2 * (message.stage * shape_.num_microbatches + message.microbatch) +
         (message.is_gradient ? 1 : 0);
}

void PipelineComm::begin(const IncomingMessages& incoming) {
  TORCH_INTERNAL_ASSERT(arriving_.empty(), "a pipeline pass left messages");
  incoming_.clear();
  for (const auto& [from, messages] : incoming) incoming_[from] = {messages, 0};
}

void PipelineComm::start_receive(const Message& message, int from) {
  const BorderTensor& border = *border_of(message);
  std::vector<at::Tensor> tensors{at::empty(border.sizes, border.options)};
  const runtime::CallSite here;
  auto work = group_.group->recv(tensors, from, tag(message));
  arriving_[message] = {tensors[0], std::move(work)};
}

void PipelineComm::post(const Message& message) {
  const int from = sender(message, shape_);
  if (is_local(from)) return;
  Channel& channel = incoming_.at(from);
  const auto end = std::find(channel.order.begin(), channel.order.end(), message) + 1;
  for (auto next = channel.order.begin() + static_cast<std::ptrdiff_t>(channel.posted);
       next < end && border_of(*next); ++next) {
    start_receive(*next, from);
    ++channel.posted;
  }
}

at::Tensor PipelineComm::receive(const Message& message) {
  const int from = sender(message, shape_);
  if (!is_local(from)) {
    Channel& channel = incoming_.at(from);
    for (post(message); !arriving_.contains(message); post(message))
      learn_border(channel.order[channel.posted], from);
  }
  auto arrived = arriving_.extract(message);
  TORCH_INTERNAL_ASSERT(!arrived.empty(), "a message is received before it was sent");
  if (arrived.mapped().work) arrived.mapped().work->wait();
  return arrived.mapped().tensor;
}

void PipelineComm::learn_border(const Message& message, int from) {
  std::vector<at::Tensor> header{at::empty({kHeaderSize}, at::kLong)};
  const runtime::CallSite here;
  group_.group->recv(header, from, tag(message))->wait();
  const auto* values = header[0].const_data_ptr<std::int64_t>();
  border_of(message) = {
      std::vector<std::int64_t>(values + 2, values + 2 + values[1]),
      at::TensorOptions().dtype(static_cast<c10::ScalarType>(values[0])).device(device_)};
}

void PipelineComm::announce_border(const Message& message, const at::Tensor& tensor, int to) {
  if (tensor.dim() > kMaxDimensions) {
    throw ConfigError(c10::str("the output of pipeline stage ", message.stage - 1, " has ",
                               tensor.dim(), " dimensions: expected at most ", kMaxDimensions));
  }
  border_of(message) = {tensor.sizes().vec(), tensor.options().requires_grad(false)};
  if (is_local(to)) return;
  std::vector<at::Tensor> header{at::zeros({kHeaderSize}, at::kLong)};
  auto* values = header[0].mutable_data_ptr<std::int64_t>();
  values[0] = static_cast<std::int64_t>(tensor.scalar_type());
  values[1] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), values + 2);
  const runtime::CallSite here;
  group_.group->send(header, to, tag(message))->wait();
}

void PipelineComm::check_border(const Message& message, const at::Tensor& tensor) {
  const BorderTensor& border = *border_of(message);
  if (tensor.sizes() == border.sizes && tensor.scalar_type() == type_of(border)) return;
  const int from = message.is_gradient ? message.stage + 1 : message.stage - 1;
  throw ConfigError(
      c10::str("the ", message.is_gradient ? "gradient" : "activation", " that pipeline stage ",
               from, " sends to stage ", message.stage, " changed its shape: expected ",
               c10::toString(type_of(border)), " ", at::IntArrayRef(border.sizes), ", got ",
               c10::toString(tensor.scalar_type()), " ", tensor.sizes(), " (micro-batch ",
               message.microbatch, "); every micro-batch must have the same sizes: pad them"));
}

void PipelineComm::send(const Message& message, const at::Tensor& tensor) {
  const int to = shape_.rank_of(message.stage);
  if (!border_of(message)) announce_border(message, tensor, to);
  check_border(message, tensor);
  if (is_local(to)) {
    arriving_[message] = {tensor, nullptr};
    return;
  }
  Sending& sending = sending_[to];
  sending.wait();
  sending.tensor = tensor.contiguous();
  std::vector<at::Tensor> tensors{sending.tensor};
  const runtime::CallSite here;
  sending.work = group_.group->send(tensors, to, tag(message));
}

void PipelineComm::finish() {
  for (auto& [to, sending] : sending_) sending.wait();
}

}  // namespace trellis::trainer
