#include "trainer/files/checkpoint/formats/native/background_checks.h"

#include <utility>

namespace trellis::checkpoint::native {

BackgroundChecks::BackgroundChecks(Check check)
    : check_(std::move(check)), thread_([this](const std::stop_token& stop) { work(stop); }) {}

BackgroundChecks::~BackgroundChecks() = default;

void BackgroundChecks::add(std::string path) {
  const std::scoped_lock lock(mutex_);
  waiting_.push_back(std::move(path));
  changed_.notify_all();
}

void BackgroundChecks::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || (waiting_.empty() && !busy_); });
  if (error_) std::rethrow_exception(error_);
}

void BackgroundChecks::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !waiting_.empty(); }) && !stop.stop_requested()) {
    const std::string path = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      check_(path);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    if (!error_) error_ = error;
    changed_.notify_all();
  }
}

}  // namespace trellis::checkpoint::native
