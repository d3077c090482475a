#include "trainer/app/prepare/failed_allocation.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>

#include <c10/util/Exception.h>
#include <oneapi/dnnl/dnnl_common.hpp>

namespace trellis::trainer {
namespace {

/// A second in all, with what a loaded host takes to print.
constexpr std::chrono::milliseconds kPatience{700};

Error error_of(const std::string& what) {
  return {
      ExitCode::kDoesNotFit,
      "the host has no memory left: " + what +
          "; `trellis simulate` gives the step time and "
          "`trellis memory` each device's memory without allocating weights; to train here, take "
          "fewer ranks, --threads 1 or a smaller model"};
}

bool is_of_memory(dnnl_status_t status) {
  return status == dnnl_out_of_memory || status == dnnl_runtime_error;
}

}  // namespace

std::optional<Error> failed_allocation(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr) {
    return error_of("an allocation failed");
  }
  // oneDNN, which multiplies matrices for LibTorch, has its own type; its code generator reports
  // kernels that it has no memory for as failures at run time.
  if (const auto* failed = dynamic_cast<const dnnl::error*>(&thrown);
      failed != nullptr && is_of_memory(failed->status)) {
    return error_of(std::string("oneDNN ") + failed->message);
  }
  const auto* error = dynamic_cast<const c10::Error*>(&thrown);
  if (error == nullptr) return std::nullopt;
  // LibTorch has no own type for it: "[enforce fail at …] err == 0. DefaultCPUAllocator:
  // can't allocate memory: you tried to allocate N bytes. …".
  const std::string_view text = error->what_without_backtrace();
  const std::size_t begin = text.find("you tried to allocate");
  const bool is_allocation = text.find("DefaultCPUAllocator") != std::string_view::npos;
  if (!is_allocation || begin == std::string_view::npos) return std::nullopt;
  return error_of(std::string(text.substr(begin, text.find('.', begin) - begin)));
}

struct LastResort::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> error;
  bool ended = false;
  std::thread watcher;

  void watch() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return ended || error; });
    if (changed.wait_for(lock, kPatience, [this] { return ended; })) return;
    std::cout << std::flush;
    std::fprintf(stderr, "error: %s\n", error->what());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(error->code()));  // destructors would wait for the ranks
  }
};

LastResort::LastResort() : impl_(std::make_unique<Impl>()) {
  impl_->watcher = std::thread([this] { impl_->watch(); });
}

LastResort::~LastResort() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ended = true;
  }
  impl_->changed.notify_all();
  impl_->watcher.join();
}

void LastResort::arm(const Error& error) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->error) return;
  impl_->error = error;
  impl_->changed.notify_all();
}

}  // namespace trellis::trainer
