#include "runtime/groups/work.h"

#include <algorithm>

#include "runtime/groups/device_plugin.h"

namespace trellis::runtime {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> completed_future(const std::vector<at::Tensor>& tensors) {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(tensors));
  return future;
}

}  // namespace

bool NeuronWork::isSuccess() const {
  return parts_.transfer == nullptr || (parts_.transfer->done && parts_.transfer->error == nullptr);
}

std::exception_ptr NeuronWork::exception() const {
  return parts_.transfer != nullptr && parts_.transfer->done ? parts_.transfer->error : nullptr;
}

bool NeuronWork::wait(std::chrono::milliseconds timeout) {
  if (parts_.transfer)
    parts_.rendezvous->wait(parts_.rank, *parts_.transfer,
                            timeout.count() > 0 ? timeout : parts_.timeout);
  if (parts_.plugin != nullptr && !announced_wait_) {
    announced_wait_ = true;
    parts_.plugin->check(parts_.plugin->api().comm_wait(parts_.handle));
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFuture() {
  wait();
  return completed_future(parts_.result);
}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (auto exception = work->exception()) return exception;
  }
  return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> tensors;
  for (const auto& work : works_) {
    for (const at::Tensor& tensor : work->result()) tensors.push_back(tensor);
  }
  return tensors;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  wait();
  return completed_future(result());
}

}  // namespace trellis::runtime
