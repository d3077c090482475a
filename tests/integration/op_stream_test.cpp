// The operations that the device sees: in named scopes, the same in every step, and the same with
// and without data.
#include <sstream>

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"

namespace trellis::trainer {
namespace {

using testing_support::Layout;
using testing_support::RandomTokens;
using testing_support::small_llama;

using Stream = std::vector<std::string>;
thread_local Stream* recording = nullptr;

void append(std::ostream& out, const c10::IValue& value) {
  if (value.isTensor()) {
    if (value.toTensor().defined())
      out << " " << value.toTensor().scalar_type() << value.toTensor().sizes();
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) append(out, element);
  } else if (value.isInt() || value.isDouble() || value.isBool() || value.isScalar()) {
    out << " " << value;
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  if (recording == nullptr) return nullptr;
  std::ostringstream text;
  text << function.name();
  if (function.scope() == at::RecordScope::FUNCTION) {
    for (const c10::IValue& value : function.inputs()) append(text, value);
  } else {
    text << " {";
  }
  recording->push_back(text.str());
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  if (recording != nullptr && function.scope() == at::RecordScope::USER_SCOPE)
    recording->push_back("} " + std::string(function.name()));
}

bool is_scope(const std::string& entry) {
  return entry.rfind("phase=", 0) == 0 || entry.rfind("microbatch=", 0) == 0 ||
         entry.rfind("layer=", 0) == 0;
}

/// The operations of each step, on each rank: [rank][step].
std::vector<std::vector<Stream>> record(const Layout& layout, std::int64_t steps, bool shape_only) {
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(on_start, on_end)
                                .needsInputs(true)
                                .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
  const RunConfig config = small_llama(layout, "mixed_precision", steps);
  std::vector<std::vector<Stream>> streams(static_cast<std::size_t>(layout.world_size()));
  runtime::WorldOptions world;
  world.world_size = layout.world_size();
  world.shape_only = shape_only;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Trainer trainer(config, rank, std::make_shared<RandomTokens>(config));
    Stream stream;
    recording = &stream;
    trainer.fit([](const StepResult&) {});
    recording = nullptr;
    std::vector<Stream>& own = streams[static_cast<std::size_t>(rank.rank())];
    bool in_step = false;  // what is between the steps, such as making the data, is the host's
    for (std::string& entry : stream) {
      const bool begins_forward = entry == "phase=forward {";
      if (begins_forward && !in_step) own.emplace_back(), in_step = true;
      if (in_step) own.back().push_back(std::move(entry));
      if (in_step && own.back().back() == "} phase=optimizer") in_step = false;
    }
  });
  at::removeCallback(handle);
  return streams;
}

const Layout kLayout{2, 2, 1, true, true};

TEST(OpStream, IsTheSameInEveryStep) {
  for (const auto& steps : record(kLayout, 3, false)) {
    ASSERT_EQ(steps.size(), 3u);
    EXPECT_EQ(steps[0], steps[1]);
    EXPECT_EQ(steps[1], steps[2]);
  }
}

TEST(OpStream, IsTheSameWithoutData) {
  const auto real = record(kLayout, 1, false), shapes = record(kLayout, 1, true);
  ASSERT_EQ(real.size(), shapes.size());
  for (std::size_t rank = 0; rank < real.size(); ++rank) {
    EXPECT_GT(real[rank].at(0).size(), 500u);
    EXPECT_EQ(real[rank].at(0), shapes[rank].at(0)) << "rank " << rank;
  }
}

TEST(OpStream, PassesOfMicroBatchesAreTheSameUpToTheFirstGradient) {
  std::map<std::string, std::vector<Stream>> passes;  // phase → one stream per micro-batch
  Stream* pass = nullptr;
  std::string phase;
  const Stream stream = record({1, 1, 1, false, true}, 1, false).at(0).at(0);
  for (const std::string& entry : stream) {
    if (entry.rfind("phase=", 0) == 0) phase = entry;
    if (entry.rfind("} microbatch=", 0) == 0) pass = nullptr;
    if (pass != nullptr) pass->push_back(entry);
    if (entry.rfind("microbatch=", 0) == 0) pass = &passes[phase].emplace_back();
  }
  const auto& forward = passes.at("phase=forward {");
  const auto& backward = passes.at("phase=backward {");
  ASSERT_EQ(forward.size(), 8u);
  for (std::size_t i = 1; i < forward.size(); ++i) EXPECT_EQ(forward[i], forward[0]) << i;
  for (std::size_t i = 2; i < backward.size(); ++i) EXPECT_EQ(backward[i], backward[1]) << i;
  EXPECT_NE(backward[1], backward[0]) << "the first gradient is copied, the others are added";
}

TEST(OpStream, ScopesNestByPhaseMicroBatchAndLayer) {
  for (const auto& steps : record(kLayout, 1, false)) {
    std::vector<std::string> open;
    for (const std::string& entry : steps.at(0)) {
      const std::string name = entry.substr(0, entry.find(" {"));
      if (entry.rfind("} ", 0) == 0) {
        ASSERT_FALSE(open.empty());
        EXPECT_EQ(open.back(), entry.substr(2)) << "scopes close in the order in which they opened";
        open.pop_back();
      } else if (is_scope(entry)) {
        EXPECT_EQ(open.empty(), name.rfind("phase=", 0) == 0) << name;
        EXPECT_EQ(open.size() == 1, name.rfind("microbatch=", 0) == 0) << name;
        open.push_back(name);
      } else {
        EXPECT_FALSE(open.empty()) << "an operation outside any phase: " << entry;
      }
    }
    EXPECT_TRUE(open.empty());
  }
}

TEST(OpStream, MatrixProductsCarryTheirLayerInForwardAndBackward) {
  const Stream stream = record({1, 1, 1, false, true}, 1, false).at(0).at(0);
  std::vector<std::string> open;
  std::map<std::string, int> products;  // "phase module" → aten::mm
  for (const std::string& entry : stream) {
    if (entry.rfind("} ", 0) == 0) {
      open.pop_back();
    } else if (is_scope(entry)) {
      open.push_back(entry.substr(0, entry.find(" {")));
    } else if (entry.rfind("aten::mm ", 0) == 0) {
      ++products[open.front() + " " + open.back()];
    }
  }
  const int micro_batches = 8;
  EXPECT_EQ(products["phase=forward layer=model.layers.3.mlp"], 2 * micro_batches);
  EXPECT_EQ(products["phase=backward layer=model.layers.3.mlp"], 4 * micro_batches);
  EXPECT_EQ(products["phase=forward layer=model.layers.0.self_attn"], 4 * micro_batches);
  EXPECT_EQ(products["phase=forward layer=lm_head"], micro_batches);
  EXPECT_EQ(products["phase=backward layer=lm_head"], 2 * micro_batches);
}

}  // namespace
}  // namespace trellis::trainer
