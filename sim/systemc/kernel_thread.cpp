#include "sim/systemc/kernel_thread.h"

#include <exception>

namespace trellis::sim {

KernelThread& KernelThread::instance() {
  // Never destroyed: at process end the thread may still sit in SystemC's own scheduler.
  static auto* thread = new KernelThread;
  return *thread;
}

KernelThread::KernelThread() {
  std::thread([this] { serve(); }).detach();
}

void KernelThread::run(const std::function<void()>& job) {
  const std::scoped_lock turn(callers_);
  std::unique_lock lock(mutex_);
  failure_.reset();
  done_ = false;
  job_ = &job;
  changed_.notify_all();
  changed_.wait(lock, [this] { return done_; });
  if (failure_) throw Error(*failure_, failure_text_);
}

void KernelThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return job_ != nullptr; });
    execute();
    job_ = nullptr;
    done_ = true;
    changed_.notify_all();
  }
}

void KernelThread::execute() {
  try {
    (*job_)();
  } catch (const Error& error) {
    failure_ = error.code();
    failure_text_ = error.what();
  } catch (const std::exception& error) {
    failure_ = ExitCode::kInternal;
    failure_text_ = error.what();
  }
}

}  // namespace trellis::sim
