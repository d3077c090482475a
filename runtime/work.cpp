#include "runtime/work.h"

#include "runtime/device_plugin.h"

namespace trellis::runtime {

bool NeuronWork::isSuccess() const {
  return parts_.transfer == nullptr || (parts_.transfer->done && parts_.transfer->error == nullptr);
}

std::exception_ptr NeuronWork::exception() const {
  return parts_.transfer != nullptr && parts_.transfer->done ? parts_.transfer->error : nullptr;
}

bool NeuronWork::wait(std::chrono::milliseconds timeout) {
  if (parts_.transfer) parts_.rendezvous->wait(parts_.rank, *parts_.transfer, timeout.count() > 0 ? timeout : parts_.timeout);
  if (parts_.plugin != nullptr && !announced_wait_) {
    announced_wait_ = true;
    parts_.plugin->check(parts_.plugin->api().comm_wait(parts_.handle));
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFuture() {
  wait();
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(parts_.result));
  return future;
}

}  // namespace trellis::runtime
