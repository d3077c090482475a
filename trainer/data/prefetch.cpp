#include "trainer/data/prefetch.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace trellis::trainer {
namespace {

/// A rank's share of a step.
using Share = std::pair<std::int64_t, int>;

class PrefetchingDataModule : public DataModule {
 public:
  PrefetchingDataModule(std::shared_ptr<const DataModule> data, int workers)
      : data_(std::move(data)) {
    for (int i = 0; i < workers; ++i)
      workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }

  std::vector<MicroBatch> micro_batches(std::int64_t step, int dp_rank) const override {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Entry> entry = entry_of({step, dp_rank});
    entry_of({step + 1, dp_rank});
    forget_before(step - 1);
    changed_.notify_all();
    if (entry->state == State::kWanted)
      make(*entry, {step, dp_rank}, lock);  // no worker has taken it: waiting would only cost time
    changed_.wait(lock, [&] { return entry->state == State::kReady; });
    if (entry->error) std::rethrow_exception(entry->error);
    return entry->batches;
  }

  std::int64_t num_evaluation_batches(Split split) const override {
    return data_->num_evaluation_batches(split);
  }
  std::vector<MicroBatch> evaluation_batches(Split split, std::int64_t batch,
                                             int dp_rank) const override {
    return data_->evaluation_batches(split, batch, dp_rank);
  }
  std::int64_t num_tokens() const override { return data_->num_tokens(); }
  std::int64_t num_pairs(Split split) const override { return data_->num_pairs(split); }
  std::vector<MicroBatch> pairs_in_order(Split split, std::int64_t first,
                                         int dp_rank) const override {
    return data_->pairs_in_order(split, first, dp_rank);
  }
  std::string place_of_pair(Split split, std::int64_t pair) const override {
    return data_->place_of_pair(split, pair);
  }
  std::string description() const override { return data_->description(); }

 private:
  enum class State { kWanted, kTaken, kReady };
  struct Entry {
    State state = State::kWanted;
    std::vector<MicroBatch> batches;
    std::exception_ptr error;
  };

  std::shared_ptr<Entry> entry_of(const Share& share) const {
    const auto [place, is_new] = entries_.try_emplace(share, std::make_shared<Entry>());
    if (is_new) wanted_.push_back(share);
    return place->second;
  }

  /// Ranks may be one step from each other; what is older is not asked for again. A rank that does
  /// ask gets it made again.
  void forget_before(std::int64_t step) const {
    for (auto entry = entries_.begin(); entry != entries_.end() && entry->first.first < step;) {
      entry = entry->second->state == State::kReady ? entries_.erase(entry) : std::next(entry);
    }
  }

  /// Called and left with the lock held; free while the work is done.
  void make(Entry& entry, const Share& share, std::unique_lock<std::mutex>& lock) const {
    entry.state = State::kTaken;
    lock.unlock();
    std::vector<MicroBatch> batches;
    std::exception_ptr error;
    try {
      batches = data_->micro_batches(share.first, share.second);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    entry.batches = std::move(batches);
    entry.error = error;
    entry.state = State::kReady;
    changed_.notify_all();
  }

  void work(const std::stop_token& stop) const {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !wanted_.empty(); })) {
      const Share share = wanted_.front();
      wanted_.pop_front();
      const auto found = entries_.find(share);
      if (found == entries_.end() || found->second->state != State::kWanted) continue;
      const std::shared_ptr<Entry> entry = found->second;
      make(*entry, share, lock);
    }
  }

  std::shared_ptr<const DataModule> data_;
  mutable std::mutex mutex_;
  mutable std::condition_variable_any changed_;
  mutable std::map<Share, std::shared_ptr<Entry>> entries_;
  mutable std::deque<Share> wanted_;
  std::vector<std::jthread> workers_;  ///< last: they end before what they use
};

}  // namespace

std::shared_ptr<const DataModule> make_prefetching_data_module(
    std::shared_ptr<const DataModule> data, int workers) {
  return std::make_shared<const PrefetchingDataModule>(std::move(data), workers);
}

}  // namespace trellis::trainer
