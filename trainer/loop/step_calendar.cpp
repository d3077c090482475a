#include "trainer/loop/step_calendar.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace trellis::trainer {
namespace {

std::int64_t batches_of(const BatchCount& limit, std::int64_t all) {
  if (limit.count) return std::min(*limit.count, all);
  return static_cast<std::int64_t>(std::floor(*limit.fraction * static_cast<double>(all)));
}

}  // namespace

StepCalendar::StepCalendar(const TrainerSection& trainer, std::int64_t batches_per_epoch)
    : batches_per_epoch_(std::max<std::int64_t>(
          1, trainer.limit_train_batches
                 ? batches_of(*trainer.limit_train_batches, batches_per_epoch)
                 : batches_per_epoch)),
      last_step_(trainer.max_steps < 0 ? std::numeric_limits<std::int64_t>::max()
                                       : trainer.max_steps),
      interval_(batches_per_epoch_),
      every_n_epochs_(trainer.check_val_every_n_epoch.value_or(0)) {
  const std::int64_t by_epochs = trainer.max_epochs * batches_per_epoch_;
  if (trainer.max_epochs >= 0 && by_epochs < last_step_) {
    last_step_ = by_epochs;
    ends_by_epochs_ = true;
  }
  least_step_ =
      std::max(trainer.min_steps.value_or(0), trainer.min_epochs.value_or(0) * batches_per_epoch_);
  if (!trainer.val_check_interval) return;
  const BatchCount& interval = *trainer.val_check_interval;
  interval_ = interval.count ? *interval.count
                             : std::max<std::int64_t>(1, batches_of(interval, batches_per_epoch_));
  if (interval.count && every_n_epochs_ > 0 && interval_ > batches_per_epoch_) {
    throw ConfigError(
        "trainer.val_check_interval: an epoch would end before the first validation: expected at "
        "most " +
        std::to_string(batches_per_epoch_) + " (batches of an epoch), got " +
        std::to_string(interval_) +
        "; set trainer.check_val_every_n_epoch to null to count steps across epochs");
  }
}

bool StepCalendar::validates_after(std::int64_t step) const {
  if (interval_ <= 0) return false;
  if (every_n_epochs_ == 0) return step % interval_ == 0;
  const std::int64_t batch = (step - 1) % batches_per_epoch_ + 1,
                     epoch = (step - 1) / batches_per_epoch_ + 1;
  return epoch % every_n_epochs_ == 0 && batch % interval_ == 0;
}

bool StepCalendar::ever_validates() const {
  if (interval_ <= 0) return false;
  const std::int64_t epochs_before = std::max<std::int64_t>(0, every_n_epochs_ - 1);
  return epochs_before * batches_per_epoch_ + interval_ <= last_step_;
}

}  // namespace trellis::trainer
