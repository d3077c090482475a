#include <deque>
#include <map>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/timing/rank_clock.h"

namespace trellis::device::repeat_period_test {
namespace {

/// The work of every micro-batch on a stage, drawn from a seed: a forward that keeps memory for its
/// backward `depth` micro-batches later, sends that are waited for before the next one, messages
/// that arrive one pass ahead, and one number that lives to the end of the step.
struct Program {
  struct Op {
    std::int64_t bytes = 0;
    bool saved = false;  ///< for backward
    bool dies = false;   ///< right after the next operation
    bool sums = false;   ///< a collective follows
    int category = 0;
  };
  explicit Program(unsigned seed) : random(seed) {
    depth = number(0, 3);
    forward = ops();
    backward = ops();
    receives = number(0, 1) == 1;
  }
  std::vector<Op> ops() {
    std::vector<Op> list(static_cast<std::size_t>(number(3, 20)));
    for (Op& op : list)
      op = {number(1, 40) * (number(0, 3) == 0 ? 100'000 : 700), number(0, 2) == 0,
            number(0, 1) == 0, number(0, 4) == 0, static_cast<int>(number(0, 5))};
    return list;
  }
  std::int64_t number(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  }

  std::mt19937 random;
  std::int64_t depth = 0;
  std::vector<Op> forward, backward;
  bool receives = false;
};

/// A tensor as its owner holds it.
struct Tensor {
  std::uint64_t buffer = 0;
  std::int64_t bytes = 0;
  MemoryBlock* block = nullptr;
};

/// One rank that runs the program, with or without repetition.
class Stage {
 public:
  Stage(const Program& program, bool replays, std::int64_t kept_bytes = 4)
      : program_(program), kept_bytes_(kept_bytes) {
    if (replays) recorder.log_passes();
  }

  void step(int microbatches, int executed) {
    const int depth = static_cast<int>(program_.depth), skipped = microbatches - executed;
    kept_.clear();
    for (int i = 0; i < executed + depth; ++i) {
      const bool steady = i >= depth && i < executed;
      const bool late = skipped > 0 && i >= depth + 3;
      if (i < executed) forward(i + (late ? skipped : 0), i + 1 < executed);
      if (i >= depth) backward(i - depth + (late ? skipped : 0));
      if (!steady || skipped == 0 || i > depth + 2) continue;
      recorder.mark_period();
      if (i == depth + 2) repeat(skipped);
    }
    finish_send();
    scoped("phase=grad_reduce", [&] {
      for (auto& tensor : kept_) op({tensor.get()}, nullptr);
    });
    while (!kept_.empty()) {
      free(*kept_.front());
      kept_.pop_front();
    }
    ASSERT_TRUE(saved_.empty());
    recorder.end_step();
  }

  /// Does what every owner does when a step fails: it releases the block that it has, if any.
  void release_all() {
    std::vector<std::unique_ptr<Tensor>> all;
    for (auto& saved : saved_)
      for (auto& tensor : saved) all.push_back(std::move(tensor));
    for (auto& tensor : kept_) all.push_back(std::move(tensor));
    for (auto* tensor : {&arriving_, &sending_, &gradient_})
      if (*tensor) all.push_back(std::move(*tensor));
    for (const auto& tensor : all) {
      if (tensor->block == nullptr) continue;
      ASSERT_EQ(tensor->block->holder, &tensor->block) << "the block has another owner by now";
      free(*tensor);
    }
  }

  RankRecorder recorder{0, 0, Bytes(std::int64_t{1} << 30), true};

 private:
  template <typename Body>
  void scoped(const std::string& scope, const Body& body) {
    recorder.push_scope(scope);
    body();
    recorder.pop_scope(scope);
  }

  std::unique_ptr<Tensor> make(std::int64_t bytes, int category) {
    auto tensor = std::make_unique<Tensor>();
    tensor->buffer = recorder.new_buffer();
    tensor->bytes = bytes;
    tensor->block = recorder.memory().allocate(bytes, static_cast<BufferCategory>(category),
                                               recorder.scope_id(), tensor->buffer);
    tensor->block->holder = &tensor->block;
    return tensor;
  }

  void free(Tensor& tensor) {
    recorder.memory().release(*tensor.block);
    recorder.release_buffer(tensor.buffer);
  }

  Operand operand(const Tensor& tensor) {
    return {tensor.buffer, recorder.interned().view({{tensor.bytes}, {1}, 0, DType::kUInt8})};
  }

  void op(std::vector<Tensor*> inputs, Tensor* output) {
    std::vector<Operand> in, out;
    std::vector<std::int64_t> bytes;
    for (const Tensor* tensor : inputs)
      in.push_back(operand(*tensor)), bytes.push_back(tensor->bytes);
    if (output != nullptr) out.push_back(operand(*output)), bytes.push_back(output->bytes);
    recorder.record("aten::relu", "", in, out, bytes);
  }

  std::int64_t communicate(sim::CollectiveKind kind, std::vector<int> ranks, Tensor& tensor,
                           std::uint64_t sequence) {
    const std::vector<Operand> operands{operand(tensor)};
    const std::vector<std::int64_t> bytes{tensor.bytes, tensor.bytes};
    return recorder.comm_start(
        {kind, "pp", std::move(ranks), sequence, tensor.bytes, DType::kUInt8}, operands, operands,
        bytes);
  }

  std::vector<std::unique_ptr<Tensor>> run(const std::vector<Program::Op>& ops, Tensor* input) {
    std::vector<std::unique_ptr<Tensor>> saved;
    std::unique_ptr<Tensor> dying;
    for (const Program::Op& each : ops) {
      auto result = make(each.bytes, each.category);
      op(input == nullptr ? std::vector<Tensor*>{} : std::vector<Tensor*>{input}, result.get());
      if (dying) free(*dying);
      dying.reset();
      if (each.sums)
        recorder.comm_wait(
            communicate(sim::CollectiveKind::kAllReduce, {0, 1, 2, 3}, *result, sums_++));
      recorder.memory().recategorize(
          *result->block, static_cast<BufferCategory>((each.category + 1) % kNumBufferCategories));
      if (each.saved) {
        saved.push_back(std::move(result));
      } else if (each.dies) {
        dying = std::move(result);
      } else {
        free(*result);
      }
    }
    if (dying) free(*dying);
    return saved;
  }

  void receive() {
    arriving_ = make(5000, 0);
    arrives_ = communicate(sim::CollectiveKind::kSendRecv, {9, 0}, *arriving_, received_++);
  }

  void forward(int microbatch, bool more) {
    const std::string scope = "microbatch=" + std::to_string(microbatch);
    if (program_.receives && !arriving_)
      scoped("phase=forward", [&] { scoped(scope, [&] { receive(); }); });
    scoped("phase=forward", [&] {
      scoped(scope, [&] {
        std::unique_ptr<Tensor> input = std::move(arriving_);
        if (input) recorder.comm_wait(arrives_);
        auto saved = run(program_.forward, input.get());
        if (input) saved.push_back(std::move(input));
        auto message = make(3000, 1);
        finish_send();
        sends_ = communicate(sim::CollectiveKind::kSendRecv, {0, 7}, *message, sent_++);
        sending_ = std::move(message);
        kept_.push_back(make(kept_bytes_, 2));
        op({sending_.get()}, kept_.back().get());
        saved_.push_back(std::move(saved));
      });
    });
    // The next one's message travels while this rank computes.
    if (program_.receives && more)
      scoped("phase=forward",
             [&] { scoped("microbatch=" + std::to_string(microbatch + 1), [&] { receive(); }); });
  }

  void finish_send() {
    if (!sending_) return;
    recorder.comm_wait(sends_);
    free(*sending_);
    sending_.reset();
  }

  void backward(int microbatch) {
    scoped("phase=backward", [&] {
      scoped("microbatch=" + std::to_string(microbatch), [&] {
        auto saved = std::move(saved_.front());
        saved_.pop_front();
        auto results = run(program_.backward, saved.empty() ? nullptr : saved.front().get());
        for (const auto& tensor : saved) op({tensor.get()}, nullptr);
        for (const auto& tensor : results) free(*tensor);
        for (auto tensor = saved.rbegin(); tensor != saved.rend(); ++tensor) free(**tensor);
        if (!gradient_) gradient_ = make(123456, 1);  // once, in the first backward
        op({gradient_.get()}, gradient_.get());
      });
    });
  }

  void repeat(int times) {
    MemoryBlock* const last = kept_.back()->block;
    const auto blocks = recorder.repeat_period(times, {&last, 1});
    ASSERT_TRUE(blocks.has_value());
    ASSERT_EQ(blocks->size(), static_cast<std::size_t>(times));
    for (MemoryBlock* block : *blocks) {
      kept_.push_back(std::make_unique<Tensor>(Tensor{recorder.new_buffer(), 4, block}));
      block->holder = &kept_.back()->block;
    }
  }

  const Program& program_;
  std::int64_t kept_bytes_;  ///< of a micro-batch, to the end of the step
  std::deque<std::vector<std::unique_ptr<Tensor>>> saved_;
  std::deque<std::unique_ptr<Tensor>> kept_;
  std::unique_ptr<Tensor> arriving_, sending_, gradient_;
  std::int64_t arrives_ = 0, sends_ = 0;
  std::uint64_t sums_ = 0, received_ = 0, sent_ = 0;
};

void expect_equal(const StepStream& a, const StepStream& b) {
  ASSERT_EQ(a.instances.size(), b.instances.size());
  ASSERT_EQ(a.comms.size(), b.comms.size());
  for (std::size_t i = 0; i < a.instances.size(); ++i) {
    const GraphInstance &x = a.instances[i], &y = b.instances[i];
    ASSERT_EQ(std::tie(x.graph, x.microbatch, x.comms, x.memory_before, x.memory_after),
              std::tie(y.graph, y.microbatch, y.comms, y.memory_before, y.memory_after))
        << i;
  }
  for (std::size_t i = 0; i < a.comms.size(); ++i) {
    const CommRequest &x = a.comms[i], &y = b.comms[i];
    ASSERT_EQ(std::tie(x.kind, x.axis, x.ranks, x.sequence, x.elements, x.dtype),
              std::tie(y.kind, y.axis, y.ranks, y.sequence, y.elements, y.dtype))
        << i;
  }
}

void expect_equal(const MemoryAccount& a, const MemoryAccount& b) {
  const std::vector<MemoryEvent> x = a.timeline().events(), y = b.timeline().events();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::make_tuple(x[i].op, x[i].address(), x[i].size(), +x[i].scope, +x[i].kind,
                              +x[i].category),
              std::make_tuple(y[i].op, y[i].address(), y[i].size(), +y[i].scope, +y[i].kind,
                              +y[i].category))
        << i;
  }
  EXPECT_EQ(a.timeline().before(), b.timeline().before());
  EXPECT_EQ(a.op(), b.op());
  EXPECT_EQ(a.peak(), b.peak());
  EXPECT_EQ(a.peak_reserved(), b.peak_reserved());
  EXPECT_EQ(a.at_peak_by_category(), b.at_peak_by_category());
  EXPECT_EQ(a.peak_scope(), b.peak_scope());
  EXPECT_EQ(a.current(), b.current());
  EXPECT_EQ(a.next_serial(), b.next_serial());
}

TEST(RepeatPeriodTest, LeavesTheSameBytesAsExecution) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program(seed);
    Stage executes(program, false), repeats(program, true);
    const int executed = static_cast<int>(program.depth) + 4;
    for (const int microbatches : {executed + 1, executed + 30, executed + 7}) {
      executes.step(microbatches, microbatches);
      repeats.step(microbatches, executed);
      expect_equal(executes.recorder.impl().finished, repeats.recorder.impl().finished);
      expect_equal(executes.recorder.memory(), repeats.recorder.memory());
      EXPECT_EQ(executes.recorder.impl().graph_runs, repeats.recorder.impl().graph_runs);
      EXPECT_EQ(executes.recorder.impl().graphs.size(), repeats.recorder.impl().graphs.size());
      if (HasFatalFailure()) return;
    }
  }
}

/// A pass that allocates `bytes`, and frees it again unless it is kept.
void pass(RankRecorder& recorder, int microbatch, std::int64_t bytes, bool keeps) {
  const std::string scope = "microbatch=" + std::to_string(microbatch);
  recorder.push_scope("phase=forward");
  recorder.push_scope(scope);
  MemoryBlock* const block = recorder.memory().allocate(bytes, BufferCategory::kTemporary,
                                                        recorder.scope_id(), recorder.new_buffer());
  if (!keeps) recorder.memory().release(*block);
  recorder.pop_scope(scope);
  recorder.pop_scope("phase=forward");
  recorder.mark_period();
}

TEST(RepeatPeriodTest, PeriodsThatDifferAreNotRepeated) {
  const auto repeated = [](std::vector<std::int64_t> bytes, bool keeps) {
    RankRecorder recorder(0, 0, Bytes(1 << 24), true);
    recorder.log_passes();
    for (std::size_t i = 0; i < bytes.size(); ++i)
      pass(recorder, static_cast<int>(i), bytes[i], keeps);
    const std::int64_t before = recorder.memory().current();
    const auto result = recorder.repeat_period(3, {});
    EXPECT_EQ(recorder.memory().current(), before);
    return result.has_value();
  };
  EXPECT_TRUE(repeated({700, 512, 512}, false));
  EXPECT_FALSE(repeated({512, 512}, false)) << "there is nothing to compare with";
  EXPECT_FALSE(repeated({512, 512, 513}, false)) << "other sizes";
  EXPECT_FALSE(repeated({512, 512, 512}, true)) << "memory that no one answers for";
}

TEST(RepeatPeriodTest, MemoryThatRunsOutIsReported) {
  RankRecorder recorder(0, 0, Bytes(4 << 20), true);
  recorder.log_passes();
  MemoryBlock* last = nullptr;
  for (int i = 0; i < 3; ++i) {
    pass(recorder, i, 1000, true);
    last = recorder.impl().log.passes().back().blocks.back();
  }
  try {
    static_cast<void>(recorder.repeat_period(100'000, {&last, 1}));
    FAIL() << "4 MiB hold no hundred thousand blocks";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("forward"), std::string::npos) << error.what();
  }
}

TEST(RepeatPeriodTest, OwnersReleaseWhatTheyHaveWhenMemoryRunsOut) {
  for (unsigned seed = 0; seed < 15; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program(seed);
    Stage stage(program, true, std::int64_t{32} << 20);
    const int executed = static_cast<int>(program.depth) + 4;
    EXPECT_THROW(stage.step(executed + 40, executed), Error);
    stage.release_all();
    if (HasFatalFailure()) return;
    stage.recorder.memory().synchronize();
    EXPECT_EQ(stage.recorder.memory().current(), 0) << "of repeated passes no one has anything";
  }
}

}  // namespace
}  // namespace trellis::device::repeat_period_test
