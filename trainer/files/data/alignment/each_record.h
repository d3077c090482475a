#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace trellis::trainer {

/// Calls `body` with first … end − 1 on `workers` threads. The exception of the lowest number that
/// throws one is thrown.
template <typename Body>
void for_each_record(std::int64_t first, std::int64_t end, unsigned workers, const Body& body) {
  constexpr std::int64_t kBlock = 64;
  std::atomic<std::int64_t> next = first;
  std::mutex mutex;
  std::pair<std::int64_t, std::exception_ptr> first_error{end, nullptr};
  const auto work = [&] {
    for (std::int64_t begin = next.fetch_add(kBlock); begin < end; begin = next.fetch_add(kBlock)) {
      for (std::int64_t i = begin; i < std::min(begin + kBlock, end); ++i) {
        try {
          body(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (i < first_error.first) first_error = {i, std::current_exception()};
          next = end;
          return;
        }
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < workers; ++i) threads.emplace_back(work);
  }
  if (first_error.second) std::rethrow_exception(first_error.second);
}

}  // namespace trellis::trainer
