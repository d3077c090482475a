#include <set>
#include <thread>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "trainer/config/sections/byte_vocabulary.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"

namespace trellis::trainer::text_data_module_test {
namespace {

using testing::HasSubstr;

RunConfig config_of(const std::string& train_dir, int dp, int micro_batch, int global_batch,
                    int sequence) {
  RunConfig config;
  config.trainer.devices = dp;
  config.data.train_dir = train_dir;
  config.data.micro_batch_size = micro_batch;
  config.data.global_batch_size = global_batch;
  config.model.encoder_seq_length = sequence;
  return config;
}

/// A text whose every position is recognisable: 2-byte numbers, so that a sample of 2k tokens
/// starts with its own place.
std::string numbered_text(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += {static_cast<char>('A' + i / 26), static_cast<char>('a' + i % 26)};
  return text;
}

std::vector<std::vector<std::int64_t>> rows_of(const at::Tensor& tensor) {
  std::vector<std::vector<std::int64_t>> rows;
  const auto* data = tensor.const_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < tensor.size(0); ++row)
    rows.emplace_back(data + row * tensor.size(1), data + (row + 1) * tensor.size(1));
  return rows;
}

/// Input rows of a step in global order: rank by rank, micro-batch by micro-batch.
std::vector<std::vector<std::int64_t>> step_rows(const DataModule& data, std::int64_t step,
                                                 int dp) {
  std::vector<std::vector<std::int64_t>> rows;
  for (int rank = 0; rank < dp; ++rank) {
    for (const MicroBatch& batch : data.micro_batches(step, rank)) {
      for (auto& row : rows_of(batch.input_ids)) rows.push_back(std::move(row));
    }
  }
  return rows;
}

TEST(TextDataModule, TokenizesBytesAndEndsDocuments) {
  const TemporaryDirectory directory;
  directory.write("text/a", "\xC3\xA9");
  directory.write("text/b", "xyz");
  const auto data = make_data_module(config_of((directory.path() / "text").string(), 1, 1, 1, 6));
  EXPECT_EQ(data->num_tokens(), 7);
  const auto batches = data->micro_batches(0, 0);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(rows_of(batches[0].input_ids),
            (std::vector<std::vector<std::int64_t>>{{0xC3, 0xA9, kEndOfDocument, 'x', 'y', 'z'}}));
  EXPECT_EQ(rows_of(batches[0].labels),
            (std::vector<std::vector<std::int64_t>>{
                {0xA9, kEndOfDocument, 'x', 'y', 'z', kEndOfDocument}}));
}

TEST(TextDataModule, ShapesAndLabelsFit) {
  const TemporaryDirectory directory;
  const auto data =
      make_data_module(config_of(directory.write("text", numbered_text(200)), 2, 2, 12, 9));
  const auto batches = data->micro_batches(0, 1);
  ASSERT_EQ(batches.size(), 3u);
  for (const MicroBatch& batch : batches) {
    EXPECT_EQ(batch.input_ids.sizes(), (std::vector<std::int64_t>{2, 9}));
    EXPECT_EQ(batch.input_ids.scalar_type(), at::kLong);
    EXPECT_TRUE(at::equal(batch.input_ids.slice(1, 1), batch.labels.slice(1, 0, 8)));
  }
}

TEST(TextDataModule, OrderDoesNotDependOnTheLayout) {
  const TemporaryDirectory directory;
  const std::string text = directory.write("text", numbered_text(300));
  const auto one = make_data_module(config_of(text, 1, 12, 12, 9));
  for (const auto& [dp, micro_batch] : {std::pair{1, 1}, {2, 3}, {4, 3}, {6, 2}, {12, 1}}) {
    const auto other = make_data_module(config_of(text, dp, micro_batch, 12, 9));
    for (const std::int64_t step : {0, 1, 6, 50})
      EXPECT_EQ(step_rows(*other, step, dp), step_rows(*one, step, 1))
          << "DP " << dp << ", step " << step;
  }
}

TEST(TextDataModule, EachEpochShowsEverySampleOnceInAnotherOrder) {
  const TemporaryDirectory directory;
  // 401 tokens are 40 samples of 10: 8 steps of 5 are one epoch.
  const auto data =
      make_data_module(config_of(directory.write("text", numbered_text(200)), 1, 5, 5, 9));
  std::vector<std::vector<std::vector<std::int64_t>>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::vector<std::int64_t>> rows;
    for (int step = 0; step < 8; ++step) {
      for (auto& row : step_rows(*data, epoch * 8 + step, 1)) rows.push_back(std::move(row));
    }
    EXPECT_EQ(std::set(rows.begin(), rows.end()).size(), 40u);
    epochs.push_back(std::move(rows));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(TextDataModule, AStepMaySpanTwoEpochs) {
  const TemporaryDirectory directory;
  // 40 samples, 16 a step: step 2 takes the last 8 of epoch 0 and the first 8 of epoch 1.
  const std::string text = directory.write("text", numbered_text(200));
  const auto data = make_data_module(config_of(text, 2, 4, 16, 9));
  const auto fine = make_data_module(config_of(text, 1, 8, 8, 9));
  const auto rows = step_rows(*data, 2, 2);
  auto expected = step_rows(*fine, 4, 1);
  for (auto& row : step_rows(*fine, 5, 1)) expected.push_back(row);
  EXPECT_EQ(rows, expected);
}

TEST(TextDataModule, SeedChangesTheOrder) {
  const TemporaryDirectory directory;
  RunConfig config = config_of(directory.write("text", numbered_text(200)), 1, 5, 5, 9);
  const auto first = make_data_module(config);
  config.seed += 1;
  EXPECT_NE(step_rows(*make_data_module(config), 0, 1), step_rows(*first, 0, 1));
}

TEST(TextDataModule, IsSafeForRanksInDifferentEpochs) {
  const TemporaryDirectory directory;
  const std::string text = directory.write("text", numbered_text(200));
  const auto data = make_data_module(config_of(text, 4, 1, 4, 9));
  const auto oracle = make_data_module(config_of(text, 4, 1, 4, 9));
  std::vector<std::thread> ranks;
  std::vector<std::vector<std::vector<std::int64_t>>> seen(4);
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      for (std::int64_t step = 0; step < 100; ++step)
        seen[static_cast<std::size_t>(rank)].push_back(
            rows_of(data->micro_batches(step, rank)[0].input_ids)[0]);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 0; rank < 4; ++rank) {
    for (std::int64_t step = 0; step < 100; ++step) {
      EXPECT_EQ(seen[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)],
                rows_of(oracle->micro_batches(step, rank)[0].input_ids)[0]);
    }
  }
}

TEST(TextDataModule, TooShortATextIsNamedWithBothNumbers) {
  const TemporaryDirectory directory;
  const std::string text = directory.write("text", "0123456789");
  try {
    (void)make_data_module(config_of(text, 1, 1, 4, 9));
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "data.train_dir: " + text +
                  " is too short for one global batch: it has 11 tokens, one step needs 40 "
                  "(global_batch_size 4 × "
                  "(encoder_seq_length 9 + 1)); give a longer text, or lower "
                  "data.global_batch_size or model.encoder_seq_length");
  }
  EXPECT_NO_THROW((void)make_data_module(config_of(text, 1, 1, 1, 10)));
}

TEST(TextDataModule, DescribesWhatItRead) {
  const TemporaryDirectory directory;
  directory.write("text/a", numbered_text(10));
  directory.write("text/b", "\xFF");
  const auto data = make_data_module(config_of((directory.path() / "text").string(), 1, 1, 1, 9));
  EXPECT_THAT(data->description(),
              HasSubstr("1 documents, 21 byte-level tokens, 2 samples of 10; 1 files skipped"));
}

TEST(TextDataModule, DefaultIsThePythonLibrary) {
  const auto data = make_data_module(config_of("", 1, 1, 1, 128));
  EXPECT_GT(data->num_tokens(), 1'000'000);
  EXPECT_THAT(data->description(), HasSubstr("the Python standard library's sources in "));
}

TEST(EmptyDataModule, HasTheShapesAndNoData) {
  const auto data = make_empty_data_module(config_of("/no/such/place", 2, 2, 12, 9));
  EXPECT_EQ(data->num_tokens(), 0);
  const auto batches = data->micro_batches(1000, 1);
  ASSERT_EQ(batches.size(), 3u);
  for (const MicroBatch& batch : batches) {
    EXPECT_EQ(batch.input_ids.sizes(), (std::vector<std::int64_t>{2, 9}));
    EXPECT_EQ(batch.labels.sizes(), (std::vector<std::int64_t>{2, 9}));
    EXPECT_EQ(batch.input_ids.sum().item<std::int64_t>(), 0);
  }
}

}  // namespace
}  // namespace trellis::trainer::text_data_module_test
