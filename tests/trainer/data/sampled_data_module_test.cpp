#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/files/data/megatron/indexed_dataset_builder.h"

namespace trellis::trainer::sampled_data_module_test {
namespace {

using testing::HasSubstr;
using Row = std::vector<std::int64_t>;

constexpr int kSequence = 8;

/// `documents` of 10 … 29 tokens; token values rise through the whole data set, so that each place
/// is recognisable.
std::string write_data(const TemporaryDirectory& directory, const std::string& name,
                       int documents) {
  const std::string prefix = (directory.path() / name).string();
  IndexedDatasetBuilder builder(prefix, TokenType::kInt32);
  std::int32_t next = 100;
  for (int i = 0; i < documents; ++i) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(10 + i % 20));
    for (auto& token : tokens) token = next++;
    builder.add_item(tokens);
    builder.end_document();
  }
  builder.finalize();
  return prefix;
}

RunConfig config_of(const std::string& prefix, int dp = 1, int micro_batch = 1,
                    int global_batch = 12, int steps = 10) {
  RunConfig config;
  config.trainer.devices = dp;
  config.trainer.max_steps = steps;
  config.trainer.limit_val_batches = BatchCount{2, std::nullopt};
  config.trainer.val_check_interval = BatchCount{5, std::nullopt};
  config.trainer.limit_test_batches = BatchCount{1, std::nullopt};
  config.data.kind = DataKind::kMegatron;
  config.data.data_prefix = {{1.0, prefix}};
  config.data.splits = {80, 10, 10};
  config.data.micro_batch_size = micro_batch;
  config.data.global_batch_size = global_batch;
  config.model.encoder_seq_length = kSequence;
  return config;
}

/// Rows of a global batch in the order of their places.
std::vector<Row> global_rows(int dp, const std::function<std::vector<MicroBatch>(int)>& share) {
  std::map<std::int64_t, Row> rows;
  for (int rank = 0; rank < dp; ++rank) {
    for (const MicroBatch& batch : share(rank)) {
      for (std::int64_t row = 0; row < batch.input_ids.size(0); ++row) {
        const auto* first =
            batch.input_ids.const_data_ptr<std::int64_t>() + row * batch.input_ids.size(1);
        EXPECT_TRUE(rows.emplace(batch.places.at(static_cast<std::size_t>(row)),
                                 Row(first, first + kSequence))
                        .second)
            << "a place is given twice";
      }
    }
  }
  std::vector<Row> ordered;
  for (auto& [place, row] : rows) {
    EXPECT_EQ(place, static_cast<std::int64_t>(ordered.size()));
    ordered.push_back(std::move(row));
  }
  return ordered;
}

std::vector<Row> step_rows(const DataModule& data, std::int64_t step, int dp = 1) {
  return global_rows(dp, [&](int rank) { return data.micro_batches(step, rank); });
}

std::string error_of(const RunConfig& config) {
  try {
    (void)make_data_module(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(MegatronData, OrderDoesNotDependOnTheLayoutNorOnWorkers) {
  const TemporaryDirectory directory;
  const std::string prefix = write_data(directory, "data", 60);
  const auto one = make_data_module(config_of(prefix, 1, 12));
  for (const auto& [dp, micro_batch] : {std::pair{1, 1}, {2, 3}, {3, 1}, {4, 3}, {6, 2}, {12, 1}}) {
    for (const int workers : {0, 4}) {
      RunConfig config = config_of(prefix, dp, micro_batch);
      config.data.num_workers = workers;
      const auto other = make_data_module(config);
      for (const std::int64_t step : {0, 1, 7, 9})
        EXPECT_EQ(step_rows(*other, step, dp), step_rows(*one, step))
            << "DP " << dp << ", step " << step << ", workers " << workers;
      EXPECT_EQ(
          global_rows(
              dp, [&](int rank) { return other->evaluation_batches(Split::kValidation, 1, rank); }),
          global_rows(
              1, [&](int rank) { return one->evaluation_batches(Split::kValidation, 1, rank); }));
    }
  }
}

TEST(MegatronData, LabelsAreTheNextTokens) {
  const TemporaryDirectory directory;
  const auto data = make_data_module(config_of(write_data(directory, "data", 60), 1, 12));
  const MicroBatch batch = data->micro_batches(0, 0).at(0);
  EXPECT_TRUE(at::equal(batch.input_ids.slice(1, 1), batch.labels.slice(1, 0, kSequence - 1)));
  EXPECT_FALSE(batch.loss_mask.defined());
  EXPECT_FALSE(batch.position_ids.defined());
}

TEST(MegatronData, OneEpochShowsEverySampleOnce) {
  const TemporaryDirectory directory;
  // 40 documents of 10 … 29 tokens: 780 tokens, 97 samples of 8; the training split is all of them.
  RunConfig config = config_of(write_data(directory, "data", 40), 1, 8, 8, 12);
  config.data.splits = {1, 0, 0};
  for (const int dp : {1, 2, 4, 8}) {
    config.trainer.devices = dp;
    config.data.micro_batch_size = 1;
    const auto data = make_data_module(config);
    std::set<Row> seen;
    for (std::int64_t step = 0; step < 12; ++step) {
      for (auto& row : step_rows(*data, step, dp)) EXPECT_TRUE(seen.insert(row).second);
    }
    EXPECT_EQ(seen.size(), 96u);
  }
}

TEST(MegatronData, SplitsShareNoDocument) {
  const TemporaryDirectory directory;
  const auto data = make_data_module(config_of(write_data(directory, "data", 60), 1, 12));
  // 48, 6 and 6 documents; tokens rise, so the borders are tokens.
  std::int64_t train_last = 0, validation_first = 1 << 30, validation_last = 0,
               test_first = 1 << 30;
  for (std::int64_t step = 0; step < 10; ++step)
    train_last = std::max(train_last,
                          data->micro_batches(step, 0).at(0).input_ids.max().item<std::int64_t>());
  for (std::int64_t i = 0; i < data->num_evaluation_batches(Split::kValidation); ++i) {
    const at::Tensor ids = data->evaluation_batches(Split::kValidation, i, 0).at(0).input_ids;
    validation_first = std::min(validation_first, ids.min().item<std::int64_t>());
    validation_last = std::max(validation_last, ids.max().item<std::int64_t>());
  }
  test_first =
      data->evaluation_batches(Split::kTest, 0, 0).at(0).input_ids.min().item<std::int64_t>();
  EXPECT_EQ(data->num_evaluation_batches(Split::kValidation), 2);
  EXPECT_EQ(data->num_evaluation_batches(Split::kTest), 1);
  EXPECT_LT(train_last, validation_first);
  EXPECT_LT(validation_last, test_first);
}

TEST(MegatronData, ResumesAtConsumedSamplesWhateverTheBatchSizeBefore) {
  const TemporaryDirectory directory;
  const std::string prefix = write_data(directory, "data", 60);
  const auto whole = make_data_module(config_of(prefix, 1, 12));
  const auto resumed = make_data_module(config_of(prefix, 2, 3), {4, 48});
  for (std::int64_t step = 4; step < 10; ++step)
    EXPECT_EQ(step_rows(*resumed, step, 2), step_rows(*whole, step));
  // 54 samples of another batch size went before: a batch may begin anywhere.
  const auto continued = make_data_module(config_of(prefix, 1, 6, 12), {6, 54});
  const auto rows = step_rows(*continued, 6);
  auto expected = step_rows(*whole, 4);
  expected.erase(expected.begin(), expected.begin() + 6);
  const auto next = step_rows(*whole, 5);
  expected.insert(expected.end(), next.begin(), next.begin() + 6);
  EXPECT_EQ(rows, expected);
}

TEST(MegatronData, CyclicShowsEverySampleOnceAnEpochAndResumes) {
  const TemporaryDirectory directory;
  RunConfig config = config_of(write_data(directory, "data", 40), 2, 2, 8,
                               12);  // 97 samples: an epoch is 12 steps
  config.data.splits = {1, 0, 0};
  config.data.cyclic = true;
  const auto data = make_data_module(config);
  const auto resumed = make_data_module(config, {5, 40});
  std::set<Row> first, second;
  for (std::int64_t step = 0; step < 12; ++step) {
    for (auto& row : step_rows(*data, step, 2)) first.insert(row);
    for (auto& row : step_rows(*data, step + 12, 2)) second.insert(row);
    if (step < 5) continue;
    EXPECT_EQ(step_rows(*resumed, step, 2), step_rows(*data, step, 2));
  }
  EXPECT_EQ(first.size(), 96u);
  EXPECT_EQ(second.size(), 96u);
  EXPECT_NE(step_rows(*data, 0, 2), step_rows(*data, 12, 2));
}

TEST(MegatronData, ABlendKeepsItsWeights) {
  const TemporaryDirectory directory;
  const std::string small = write_data(directory, "small", 30);
  const std::string prefix = (directory.path() / "large").string();
  IndexedDatasetBuilder builder(prefix, TokenType::kInt32);
  for (int i = 0; i < 60; ++i) {
    builder.add_item(std::vector<std::int32_t>(40, 5000));
    builder.end_document();
  }
  builder.finalize();
  RunConfig config = config_of(small, 1, 12, 12, 25);
  config.data.data_prefix = {{3, small}, {1, prefix}};
  const auto data = make_data_module(config);
  int from_large = 0;
  for (std::int64_t step = 0; step < 25; ++step) {
    for (const Row& row : step_rows(*data, step)) from_large += row[0] == 5000 ? 1 : 0;
  }
  EXPECT_NEAR(from_large, 300 / 4, 1);
}

TEST(MegatronData, ADictionaryOfPrefixesTakesWholeDataSets) {
  const TemporaryDirectory directory;
  RunConfig config = config_of("", 1, 12);
  config.data.data_prefix.clear();
  for (const char* split : {"train", "validation", "test"})
    config.data.data_prefix_by_split[split] = {{1.0, write_data(directory, split, 60)}};
  EXPECT_EQ(make_data_module(config)->num_evaluation_batches(Split::kTest), 1);
  config.data.data_prefix_by_split.erase("test");
  EXPECT_THAT(
      error_of(config),
      HasSubstr("data.data_prefix.test: missing: expected all of train, validation and test"));
}

TEST(MegatronData, AnIncompleteValidationBatchIsFilledWithRowsWithoutLoss) {
  const TemporaryDirectory directory;
  RunConfig config = config_of(write_data(directory, "data", 60), 3, 4);
  config.data.validation_drop_last = false;
  config.trainer.limit_val_batches = BatchCount{std::nullopt, 1.0};
  const auto data = make_data_module(config);
  const std::int64_t batches = data->num_evaluation_batches(Split::kValidation);
  double counted = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    for (int rank = 0; rank < 3; ++rank) {
      for (const MicroBatch& batch : data->evaluation_batches(Split::kValidation, i, rank)) {
        ASSERT_TRUE(batch.loss_mask.defined());
        counted += batch.loss_mask.sum().item<double>();
      }
    }
  }
  // 6 documents of 18 … 23 tokens: 123, and so 122 labels.
  EXPECT_EQ(counted, 122);
  EXPECT_EQ(batches, 2);
}

TEST(MegatronData, MasksAndPositionsReachTheModel) {
  const TemporaryDirectory directory;
  const std::string prefix = (directory.path() / "data").string();
  IndexedDatasetBuilder builder(prefix, TokenType::kUint16);
  for (int i = 0; i < 50; ++i) {
    builder.add_item(std::vector<std::int32_t>{1, 2, 3, 256});
    builder.end_document();
  }
  builder.finalize();
  RunConfig config = config_of(prefix, 1, 1, 1, 3);
  config.data.eod_mask_loss = config.data.reset_position_ids = true;
  const MicroBatch batch = make_data_module(config)->micro_batches(0, 0).at(0);
  const at::Tensor is_end = batch.input_ids.eq(256);
  EXPECT_TRUE(at::equal(batch.loss_mask, is_end.logical_not().to(at::kFloat)));
  for (std::int64_t i = 1; i < kSequence; ++i) {
    const auto before = batch.position_ids[0][i - 1].item<std::int64_t>();
    EXPECT_EQ(batch.position_ids[0][i].item<std::int64_t>(),
              is_end[0][i - 1].item<bool>() ? 0 : before + 1);
  }
}

TEST(MegatronData, NamesWhatIsWrong) {
  const TemporaryDirectory directory;
  const std::string prefix = write_data(directory, "data", 60);
  EXPECT_THAT(error_of(config_of(prefix + ".bin")),
              HasSubstr("data_prefix names it without the extension: " + prefix));
  RunConfig config = config_of(prefix);
  config.data.splits = {980, 10};
  EXPECT_THAT(error_of(config),
              HasSubstr("data.splits_string: expected three numbers, such as 980,10,10, got 2"));
  config = config_of(prefix);
  config.model.encoder_seq_length = 100000;
  EXPECT_THAT(error_of(config), HasSubstr("expected 100001 or more for one sample"));
  config = config_of(prefix);
  config.model.vocab_size = 128;
  try {
    const auto data = make_data_module(config);
    for (std::int64_t step = 0; step < 10; ++step) (void)data->micro_batches(step, 0);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected 0 … 127, the model's padded vocabulary"));
  }
  config = config_of(prefix);
  config.data.cyclic = true;
  config.data.drop_last = false;
  EXPECT_THAT(error_of(config),
              HasSubstr("data.drop_last: expected true with dataloader_type cyclic, got false: "
                        "every step runs a whole global batch"));
}

TEST(TextData, HoldsOutFilesAndTakesJsonLines) {
  const TemporaryDirectory directory;
  std::string lines, text;
  for (int i = 0; i < 40; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  for (int i = 0; i < 100; ++i) text += static_cast<char>('a' + i % 26);
  RunConfig config = config_of("", 2, 1, 4);
  config.data.kind = DataKind::kText;
  config.data.train_dir = directory.write("train.jsonl", lines);
  config.data.val_dir = directory.write("val.txt", text);
  config.trainer.limit_val_batches = std::nullopt;
  const auto data = make_data_module(config);
  EXPECT_THAT(data->description(), HasSubstr("40 documents"));
  // 101 tokens are 11 samples of 9: two whole batches of 4.
  ASSERT_EQ(data->num_evaluation_batches(Split::kValidation), 2);
  const auto rows = global_rows(
      2, [&](int rank) { return data->evaluation_batches(Split::kValidation, 0, rank); });
  EXPECT_EQ(rows[1][0], text[9]);
  config.data.validation_drop_last = false;
  const auto padded = make_data_module(config);
  ASSERT_EQ(padded->num_evaluation_batches(Split::kValidation), 3);
  EXPECT_EQ(
      padded->evaluation_batches(Split::kValidation, 2, 1).at(1).loss_mask.sum().item<double>(), 0);
  EXPECT_EQ(
      padded->evaluation_batches(Split::kValidation, 2, 1).at(0).loss_mask.sum().item<double>(), 8);
  const auto resumed = make_data_module(config, {3, 12});
  EXPECT_EQ(step_rows(*resumed, 5, 2), step_rows(*data, 5, 2));
}

TEST(TextData, NamesTheBrokenLineOfAJsonLinesFile) {
  const TemporaryDirectory directory;
  RunConfig config = config_of("", 1, 1, 1);
  config.data.kind = DataKind::kText;
  const std::pair<const char*, const char*> broken[] = {
      {"{\"text\": \"a\"}\n\n{\"text\": ", ":3: this is no JSON"},
      {"[1]", ":1: expected an object {\"text\": \"…\"}, got array"},
      {"{\"texts\": \"a\"}", ":1: there is no member \"text\"; the line has \"texts\""},
      {"{\"text\": 3}", ":1: member \"text\": expected a text, got number"}};
  for (const auto& [content, message] : broken) {
    config.data.train_dir = directory.write("broken.jsonl", content);
    EXPECT_THAT(error_of(config), HasSubstr(config.data.train_dir + message));
  }
}

TEST(Prefetch, GivesTheSameToRanksThatAskAtOnceAndThrowsWhatFails) {
  const TemporaryDirectory directory;
  const std::string prefix = write_data(directory, "data", 60);
  RunConfig config = config_of(prefix, 4, 1);
  const auto plain = make_data_module(config);
  config.data.num_workers = 3;
  const auto ahead = make_data_module(config);
  std::vector<std::thread> ranks;
  std::atomic<int> different{0};
  for (int rank = 0; rank < 8; ++rank) {  // two tensor-parallel ranks for each share
    ranks.emplace_back([&, rank] {
      for (std::int64_t step = 0; step < 10; ++step) {
        const auto expected = plain->micro_batches(step, rank / 2),
                   got = ahead->micro_batches(step, rank / 2);
        for (std::size_t i = 0; i < expected.size(); ++i)
          different += at::equal(expected[i].input_ids, got[i].input_ids) ? 0 : 1;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(different, 0);
  config.model.vocab_size = 101;
  const auto failing = make_data_module(config);
  EXPECT_THROW((void)failing->micro_batches(0, 0), ConfigError);
}

}  // namespace
}  // namespace trellis::trainer::sampled_data_module_test
