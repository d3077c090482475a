#pragma once

#include <pthread.h>

#include <functional>

namespace trellis::runtime {

/// A thread with a stack of at least 8 MiB whatever the shell's limit: deep autograd graphs
/// recurse. Joined on destruction.
class RankThread {
 public:
  explicit RankThread(std::function<void()> body);
  ~RankThread();
  RankThread(const RankThread&) = delete;
  RankThread& operator=(const RankThread&) = delete;

 private:
  std::function<void()> body_;
  pthread_t thread_{};
};

}  // namespace trellis::runtime
