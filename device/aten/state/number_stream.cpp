#include "device/aten/state/number_stream.h"

#include <iterator>

#include <ATen/core/DistributionsHelper.h>

namespace trellis::device {
namespace {

constexpr std::uint64_t kBlock = at::MERSENNE_STATE_N;
constexpr std::uint64_t kWordsPerUnit = 4;
constexpr int kUnitBits = 42, kWordBits = 2, kKeptBits = 19;
constexpr std::uint64_t kUnits = std::uint64_t{1} << kUnitBits;
constexpr std::uint64_t kLongestKept = (std::uint64_t{1} << kKeptBits) - 2;
constexpr std::uint64_t kWordsOfAPair = 4;  // of two doubles
constexpr std::size_t kMostMarks = 1024;
constexpr std::uint64_t kBlocksBetweenMarks = 1024;
constexpr std::uint64_t kMostBlocksToAState = std::uint64_t{1} << 24;  // some ten seconds

std::uint32_t twist(std::uint32_t u, std::uint32_t v) {
  return (((u & at::UMASK) | (v & at::LMASK)) >> 1) ^ ((v & 1) != 0 ? at::MATRIX_A : 0);
}

std::uint64_t blocks_before(std::uint64_t word) { return (word + kBlock - 1) / kBlock; }

}  // namespace

NumberStream::NumberStream(at::Generator cpu) : cpu_(std::move(cpu)) {
  restart(cpu_.current_seed());
}

NumberStream::NumberStream(const NumberStream& other) {
  const std::lock_guard lock(other.mutex_);
  cpu_ = other.cpu_.clone();
  seed_ = other.seed_;
  block_ = other.block_;
  word_ = other.word_;
  kept_ = other.kept_;
  destination_ = other.destination_;
  marks_ = other.marks_;
}

at::CPUGeneratorImpl& NumberStream::cpu() const {
  return *static_cast<at::CPUGeneratorImpl*>(cpu_.unsafeGetGeneratorImpl());
}

/// Makes the next block, as the Mersenne twister does when its words are used up.
void NumberStream::advance(Block& block) {
  constexpr std::size_t n = at::MERSENNE_STATE_N, m = at::MERSENNE_STATE_M;
  std::uint32_t* const w = block.words.data();
  for (std::size_t i = 0; i < n - m; ++i) w[i] = w[i + m] ^ twist(w[i], w[i + 1]);
  for (std::size_t i = n - m; i < n - 1; ++i) w[i] = w[i + m - n] ^ twist(w[i], w[i + 1]);
  w[n - 1] = w[m - 1] ^ twist(w[n - 1], w[0]);
  ++block.number;
}

void NumberStream::restart(std::uint64_t seed) {
  seed_ = seed;
  block_ = {0, at::mt19937(seed).data().state_};
  word_ = 0;
  kept_.reset();
  destination_.reset();
  marks_.clear();
  marks_.emplace(0, block_.words);
}

/// Every second mark is forgotten when there are many: those of long ago become few.
void NumberStream::remember(const Block& block) {
  marks_.insert_or_assign(block.number, block.words);
  if (marks_.size() <= kMostMarks) return;
  for (auto mark = std::next(marks_.begin()); mark != marks_.end();) {
    mark = marks_.erase(mark);
    if (mark != marks_.end()) ++mark;
  }
}

at::mt19937 NumberStream::engine_at(std::uint64_t word) {
  const std::uint64_t number = blocks_before(word);
  const auto mark = std::prev(marks_.upper_bound(number));
  Block block{mark->first, mark->second};
  if (block.number < number) {
    while (block.number < number) {
      advance(block);
      if (block.number % kBlocksBetweenMarks == 0) remember(block);
    }
    remember(block);
  }
  at::mt19937 engine(seed_);
  at::mt19937_data_pod data = engine.data();
  data.state_ = block.words;
  if (number > 0) {
    data.next_ = static_cast<std::uint32_t>(word - (number - 1) * kBlock);
    data.left_ = static_cast<int>(kBlock + 1 - data.next_);
  }
  engine.set_data(data);
  return engine;
}

/// The number that the CPU keeps when it makes a pair of normal numbers of the words before `word`.
std::optional<double> NumberStream::kept_after(std::uint64_t word) {
  if (word < kWordsOfAPair) return std::nullopt;
  at::CPUGeneratorImpl other;
  other.set_engine(engine_at(word - kWordsOfAPair));
  at::normal_distribution<double> normal(0.0, 1.0);
  static_cast<void>(normal(&other));
  return other.next_double_normal_sample();
}

/// Goes on until the words of the block are `words`.
void NumberStream::reach(const Words& words) {
  if (block_.words == words) return;
  Block block = block_;
  while (block.words != words) {
    TORCH_CHECK(block.number - block_.number < kMostBlocksToAState,
                "neuron: this state of a generator is not among the first ",
                kMostBlocksToAState * kBlock, " numbers of its seed, ", seed_,
                ": seed the generator instead");
    advance(block);
    if (block.number % kBlocksBetweenMarks == 0) remember(block);
  }
  remember(block);
  block_ = block;
}

void NumberStream::look() {
  if (destination_.has_value()) return;
  const std::lock_guard lock(cpu().mutex_);
  const at::mt19937_data_pod data = cpu().engine().data();
  reach(data.state_);
  word_ = block_.number == 0 ? 0 : (block_.number - 1) * kBlock + data.next_;
  look_at_kept();
}

/// The half of a pair that is kept is the last that a kernel made; what cannot be found again from
/// an offset is given up, so that a stream that goes on and one that is restored are the same.
void NumberStream::look_at_kept() {
  const std::optional<double> now = cpu().next_double_normal_sample();
  const bool known = now.has_value() && kept_.has_value() && kept_->value == *now;
  if (!now.has_value()) {
    kept_.reset();
  } else if (!known && kept_after(word_) == now) {
    kept_ = Kept{*now, word_};
  } else if (!known || word_ - kept_->after > kLongestKept) {
    kept_.reset();
    cpu().set_next_double_normal_sample(std::nullopt);
  }
}

std::uint64_t NumberStream::seed() const {
  const std::lock_guard lock(mutex_);
  return seed_;
}

std::uint64_t NumberStream::offset() {
  const std::lock_guard lock(mutex_);
  if (destination_.has_value()) return *destination_;
  look();
  const std::uint64_t ago = kept_.has_value() ? word_ - kept_->after + 1 : 0;
  return (word_ / kWordsPerUnit) | ((word_ % kWordsPerUnit) << kUnitBits) |
         (ago << (kUnitBits + kWordBits));
}

void NumberStream::begin(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  restart(seed);
  cpu_.set_current_seed(seed);
}

void NumberStream::go_to(std::uint64_t seed, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  if (seed != seed_) {
    restart(seed);
  } else {
    look();  // what was drawn so far need not be made again
  }
  destination_ = offset;
}

void NumberStream::arrive() {
  const std::uint64_t offset = *destination_;
  word_ = (offset % kUnits) * kWordsPerUnit + (offset >> kUnitBits) % kWordsPerUnit;
  const at::mt19937 engine = engine_at(word_);
  block_ = {blocks_before(word_), engine.data().state_};
  const std::uint64_t ago = (offset >> (kUnitBits + kWordBits)) & (kLongestKept + 1);
  kept_.reset();
  if (ago > 0 && word_ >= ago - 1) {
    if (const std::optional<double> value = kept_after(word_ - (ago - 1)))
      kept_ = Kept{*value, word_ - (ago - 1)};
  }
  const std::lock_guard lock(cpu().mutex_);
  cpu().set_engine(engine);
  cpu().set_next_float_normal_sample(std::nullopt);
  cpu().set_next_double_normal_sample(kept_.has_value() ? std::optional(kept_->value)
                                                        : std::nullopt);
  destination_.reset();
}

at::Generator& NumberStream::to_draw_from() {
  const std::lock_guard lock(mutex_);
  if (destination_.has_value()) {
    arrive();
  } else {
    look();
  }
  return cpu_;
}

void NumberStream::take(const c10::TensorImpl& cpu_state) {
  const std::lock_guard lock(mutex_);
  at::CPUGeneratorImpl given;
  given.set_state(cpu_state);
  restart(given.current_seed());
  cpu_.set_current_seed(seed_);  // all that is left when it throws
  reach(given.engine().data().state_);
  cpu().set_state(cpu_state);
  look();
}

}  // namespace trellis::device
