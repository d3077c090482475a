#include "trainer/pipeline/comm.h"

#include <ATen/ops/empty.h>

namespace trellis::trainer {

void PipelineComm::Sending::wait() {
  if (work) work->wait();
  work.reset();
  tensor.reset();
}

at::Tensor PipelineComm::receive(int from) {
  std::vector<at::Tensor> tensors{at::empty(border_.sizes, border_.options)};
  group_.group->recv(tensors, from, /*tag=*/0)->wait();
  return tensors[0];
}

void PipelineComm::send(const at::Tensor& tensor, int to, Sending& slot) {
  TORCH_INTERNAL_ASSERT(tensor.sizes() == border_.sizes && tensor.scalar_type() == border_.options.dtype().toScalarType(),
                        "a stage border carries tensors of sizes ", border_.sizes, ", got ", tensor.sizes());
  slot.wait();
  slot.tensor = tensor.contiguous();
  std::vector<at::Tensor> tensors{slot.tensor};
  slot.work = group_.group->send(tensors, to, /*tag=*/0);
}

void PipelineComm::finish() {
  to_next_.wait();
  to_previous_.wait();
}

}  // namespace trellis::trainer
