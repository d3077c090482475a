#pragma once

#include <cstddef>
#include <functional>

namespace trellis::trainer {

/// run(0) … run(count − 1), up to `workers` at a time and begun in this order, then done(i) for
/// each, one at a time and in this order too. After an error none begins any more, and the error of
/// the first of those that failed is thrown when the others have ended.
void run_in_order(std::size_t count, int workers, const std::function<void(std::size_t)>& run,
                  const std::function<void(std::size_t)>& done);

}  // namespace trellis::trainer
