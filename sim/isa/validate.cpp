#include <fmt/format.h>

#include <map>
#include <set>

#include "sim/isa/features.h"
#include "sim/isa/rules.h"

namespace trellis::sim::isa {
namespace {

class Validator {
 public:
  Validator(const Program& program, const Limits& limits) : program_(program), limits_(limits) {}

  std::vector<Violation> run() {
    check_buffers();
    for (segment_ = 0; segment_ < program_.segments.size(); ++segment_) check_segment();
    return std::move(violations_);
  }

 private:
  void add(const std::string& text) { violations_.push_back({segment_, engine_, index_, text}); }

  void check_buffers() {
    for (std::size_t b = 0; b < program_.buffers.size(); ++b) {
      std::vector<std::string> found;
      check_buffer(program_.buffers[b], limits_, found);
      for (const auto& text : found)
        add(fmt::format("buffer {} \"{}\" {}", b, program_.buffers[b].name, text));
    }
  }

  void check_segment() {
    waiters_.clear();
    for (int e = 0; e < kNumEngines; ++e) {
      engine_ = static_cast<Engine>(e);
      check_queue(program_.segments[segment_].queues[e]);
    }
  }

  void check_queue(const std::vector<Instruction>& queue) {
    loop_counts_.clear();
    stationary_ = nullptr;
    for (index_ = 0; index_ < queue.size(); ++index_) check_instruction(queue[index_]);
    if (!loop_counts_.empty())
      add(fmt::format("the queue ends inside {} open loops", loop_counts_.size()));
    index_ = 0;
  }

  void check_instruction(const Instruction& i) {
    check_semaphores(i);
    if (is_control(i.opcode)) {
      check_loops(i);
      if (first_core_version(i.opcode) > limits_.core_version) {
        add(fmt::format("{}: it needs NeuronCore-v{}, the core is v{}", name(i.opcode),
                        first_core_version(i.opcode), limits_.core_version));
      }
      return;
    }
    if (i.kernel >= program_.kernels.size())
      add(fmt::format("kernel {} does not exist, the program has {}", i.kernel,
                      program_.kernels.size()));
    std::vector<std::string> found;
    const RuleContext context{program_, limits_, engine_, loop_counts_, stationary_};
    if (check_operands(i, context, found)) check_operation(i, context, found);
    for (const auto& text : found) add(fmt::format("{}: {}", name(i.opcode), text));
    if (i.opcode == Opcode::kMatmul) check_accumulation(i);
    if (i.opcode == Opcode::kLoadStationary) stationary_ = &i;
  }

  /// Up to v3 only the array starts a sum in PSUM: what another engine wrote there is no starting
  /// value.
  void check_accumulation(const Instruction& i) {
    const bool starts = !i.accumulate || i.overwrite_first;
    if (starts) {
      started_.insert(i.dst.buffer);
    } else if (limits_.core_version < 4 && !started_.contains(i.dst.buffer)) {
      add(fmt::format(
          "matmul: accumulates in buffer {}, in which no matmul before it started a sum",
          i.dst.buffer));
    }
  }

  void check_loops(const Instruction& i) {
    if (i.opcode == Opcode::kLoop) {
      if (i.count < 1) add(fmt::format("loop: count is {}, at least 1 is needed", i.count));
      if (loop_counts_.size() == kMaxLoopDepth)
        add(fmt::format("loop: nested deeper than {}", kMaxLoopDepth));
      loop_counts_.push_back(i.count);
    } else if (i.opcode == Opcode::kEndLoop) {
      if (loop_counts_.empty()) {
        add("end_loop: no loop is open");
      } else {
        loop_counts_.pop_back();
      }
    }
    const bool loop = i.opcode == Opcode::kLoop || i.opcode == Opcode::kEndLoop;
    if (loop && !(i.waits.empty() && i.updates.empty()))
      add(fmt::format("{}: loops neither wait nor post", name(i.opcode)));
  }

  void check_semaphores(const Instruction& i) {
    for (const auto& update : i.updates) check_semaphore_id(update.id, update.value);
    for (const auto& wait : i.waits) {
      check_semaphore_id(wait.id, wait.value);
      const auto [entry, is_new] = waiters_.emplace(wait.id, engine_);
      if (!is_new && entry->second != engine_) {
        add(fmt::format("waits on semaphore {}, which the {} engine also waits on: one waiter each",
                        wait.id, name(entry->second)));
      }
    }
  }

  void check_semaphore_id(int id, int value) {
    if (id >= limits_.semaphores)
      add(fmt::format("semaphore {} does not exist, the core has {}", id, limits_.semaphores));
    if (value == 0) add(fmt::format("semaphore {} is used with value 0", id));
  }

  const Program& program_;
  const Limits& limits_;
  std::vector<Violation> violations_;
  std::size_t segment_ = 0;
  Engine engine_ = Engine::kTensor;
  std::size_t index_ = 0;
  std::vector<std::int64_t> loop_counts_;
  const Instruction* stationary_ = nullptr;
  std::set<std::uint32_t> started_;  ///< PSUM buffers in which a matmul has begun a sum
  std::map<int, Engine> waiters_;    ///< semaphore → the engine that waits on it in this segment
};

}  // namespace

std::vector<Violation> validate(const Program& program, const Limits& limits) {
  return Validator(program, limits).run();
}

}  // namespace trellis::sim::isa
