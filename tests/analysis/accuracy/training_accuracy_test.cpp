// Published training steps: the row file, runs of a program that replaces `trellis simulate`,
// results that are kept, and the report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/score.h"
#include "analysis/accuracy/training_report.h"
#include "base/error.h"
#include "sim/config/software_config.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Takes 2 s a step, but fails for a configuration called bad.yaml and prints no report for
/// odd.yaml. Each call records its arguments.
constexpr const char* kProgram = R"(#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$2" in
  *bad.yaml) echo "log line" >&2; echo "error: it does not fit: 17 GiB" >&2; exit 3;;
  *odd.yaml) echo '{"step_time_ms": "long"}'; exit 0;;
esac
echo '{"step_time_ms": 2000, "parameters": 1000, "mfu": 0.25}'
)";

constexpr const char* kConfig = R"(name: small
model_source: hf
trainer: {devices: 2, max_steps: 1}
data: {micro_batch_size: 1, global_batch_size: 2}
model: {num_layers: 2, hidden_size: 32, ffn_hidden_size: 64, num_attention_heads: 4,
  encoder_seq_length: 16, vocab_size: 512, optim: {name: adamw, lr: 0.1}}
precision: {type: fp32}
)";

class TrainingAccuracy : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / ("trellis_training_accuracy_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    ::setenv("TRELLIS_PUBLISHED_DIR", folder_.c_str(), 1);
    write("trellis", kProgram);
    fs::permissions(folder_ / "trellis", fs::perms::owner_all);
    for (const char* config : {"good.yaml", "bad.yaml", "odd.yaml"}) write(config, kConfig);
  }
  void TearDown() override {
    ::unsetenv("TRELLIS_PUBLISHED_DIR");
    fs::remove_all(folder_);
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  /// `rest`: what differs from row to row.
  void write_rows(const std::vector<std::string>& rows) const {
    std::string text = "rows:\n";
    for (const std::string& rest : rows) {
      text +=
          "  - {instance: trn1.2xlarge, nodes: 1, grade: A, size: \"<1B\", family: small, path: "
          "here, source: a table, " +
          rest + "}\n";
    }
    write("training.yaml", text);
  }
  [[nodiscard]] std::vector<std::string> calls() const {
    std::ifstream stream(folder_ / "calls");
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  [[nodiscard]] TrainingRequest request() const {
    TrainingRequest request;
    request.program = folder_ / "trellis";
    request.results = folder_ / "results";
    request.jobs = 2;
    return request;
  }
  static std::vector<Prediction> predict_all(const TrainingRequest& request) {
    return predict(read_training_runs(), request, [](const TrainingRun&, const Prediction&) {});
  }
  static std::string error_of_rows() {
    try {
      (void)read_training_runs();
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  }

  fs::path folder_;
};

constexpr const char* kTwo =
    "config: good.yaml, use: test, step_s: 2.5, measured: {\"2.9.0\": 2.5, \"2.10.0\": 1.9}";

TEST_F(TrainingAccuracy, ARowIsRunAndItsResultIsKept) {
  write_rows({std::string("id: A, ") + kTwo,
              "id: B, config: good.yaml, overrides: [model.num_layers=4], use: fit, step_s: 1.6, "
              "measured: {log: 1.6}"});
  const auto first = predict_all(request());
  ASSERT_EQ(first.size(), 2U);
  EXPECT_DOUBLE_EQ(first[0].step_s, 2);
  EXPECT_EQ(first[0].parameters, 1000);
  EXPECT_FALSE(first[0].kept);
  EXPECT_EQ(exit_code_of(first), 0);
  const auto said = calls();
  ASSERT_EQ(said.size(), 2U);
  const std::string& b = said[said[0].find("num_layers") == std::string::npos ? 1 : 0];
  EXPECT_THAT(
      b, AllOf(HasSubstr("simulate " + (folder_ / "good.yaml").string() + " model.num_layers=4"),
               HasSubstr("--instance trn1.2xlarge --nodes 1"), HasSubstr("--json"),
               HasSubstr("explicit_log_dir=" + (folder_ / "results/B/run").string())));
  for (const Prediction& prediction : predict_all(request())) EXPECT_TRUE(prediction.kept);
  EXPECT_EQ(calls().size(), 2U);
}

TEST_F(TrainingAccuracy, AnInterruptedCallGoesOnWhereItWas) {
  write_rows({std::string("id: A, ") + kTwo, std::string("id: B, ") + kTwo});
  (void)predict_all(request());
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "results/B")) {
    if (entry.path().extension() == ".cache") fs::remove(entry.path());
  }
  const auto again = predict_all(request());
  EXPECT_TRUE(again[0].kept);
  EXPECT_FALSE(again[1].kept);
  EXPECT_EQ(calls().size(), 3U);
}

TEST_F(TrainingAccuracy, AnotherConfigurationMachineOrProgramIsPredictedAgain) {
  write_rows({std::string("id: A, ") + kTwo});
  (void)predict_all(request());
  write("good.yaml", std::string(kConfig) + "seed: 7\n");
  EXPECT_FALSE(predict_all(request())[0].kept);
  TrainingRequest changed = request();
  changed.hardware = {"core.dma.engines=8"};
  EXPECT_FALSE(predict_all(changed)[0].kept);
  EXPECT_THAT(calls().back(), HasSubstr("--set core.dma.engines=8"));
  changed.calibrated = false;
  EXPECT_FALSE(predict_all(changed)[0].kept);
  EXPECT_THAT(calls().back(), HasSubstr("--published-only"));
  EXPECT_TRUE(predict_all(changed)[0].kept);
  write("trellis", std::string(kProgram) + "# rebuilt\n");
  EXPECT_FALSE(predict_all(changed)[0].kept);
}

TEST_F(TrainingAccuracy, ARowThatCannotBeRunIsListedAndNeverKept) {
  write_rows({std::string("id: A, ") + kTwo,
              "id: B, config: bad.yaml, use: test, step_s: 3, measured: {log: 3}",
              "id: C, config: odd.yaml, use: test, step_s: 3, measured: {log: 3}",
              "id: D, config: absent.yaml, use: test, step_s: 3, measured: {log: 3}"});
  for (int call = 0; call < 2; ++call) {
    const auto predictions = predict_all(request());
    EXPECT_EQ(predictions[1].exit_code, 3);
    EXPECT_EQ(predictions[1].error, "it does not fit: 17 GiB");
    EXPECT_THAT(predictions[2].error, HasSubstr("trellis.run_report/1"));
    EXPECT_THAT(predictions[3].error, HasSubstr("absent.yaml"));
    EXPECT_EQ(exit_code_of(predictions), 3);
    const auto runs = read_training_runs();
    EXPECT_THAT(
        training_text(runs, predictions),
        AllOf(HasSubstr("Not run:\nB "), HasSubstr("exit code 3: it does not fit: 17 GiB")));
    const nlohmann::json json = training_json(runs, predictions);
    EXPECT_EQ(json["rows"].size(), 1U);
    EXPECT_EQ(json["failed"].size(), 3U);
    EXPECT_EQ(json["failed"][0]["error_text"], "it does not fit: 17 GiB");
  }
  EXPECT_EQ(calls().size(), 5U) << "A once, B and C twice";
}

TEST_F(TrainingAccuracy, ExcludedRowsAreRunAndListedSeparately) {
  write_rows({std::string("id: A, ") + kTwo,
              "id: B, config: good.yaml, use: excluded, reason: no one knows why, step_s: 40, "
              "measured: {log: 40}"});
  const auto runs = read_training_runs();
  const auto predictions = predict_all(request());
  const std::string text = training_text(runs, predictions);
  EXPECT_THAT(text, AllOf(HasSubstr("Separate, not in the sums"), HasSubstr("B: no one knows why"),
                          HasSubstr("-95.0%"), HasSubstr("1.9 - 2.5")));
  const nlohmann::json json = training_json(runs, predictions);
  ASSERT_EQ(json["rows"].size(), 1U);
  EXPECT_NEAR(json["rows"][0]["error"].get<double>(), 2 / 2.5 - 1, 1e-12);
  EXPECT_EQ(json["rows"][0]["measured_s"]["2.10.0"], 1.9);
  EXPECT_EQ(json["excluded"][0]["reason"], "no one knows why");
  for (const auto& summary : json["summaries"]) EXPECT_EQ(summary["rows"], 1) << summary;
  std::vector<std::string> groups;
  for (const auto& summary : json["summaries"]) groups.push_back(summary["group"]);
  EXPECT_THAT(groups, ElementsAre("family small", "instance trn1.2xlarge", "path here", "size <1B",
                                  "all, test rows", "all"));
}

TEST_F(TrainingAccuracy, MistakesOfTheRowFileAreNamedInOnePass) {
  write_rows({"id: A, config: good.yaml, use: test, step_s: 3, measured: {log: 3.1}",
              "id: A, use: test, step_s: -1, measured: {log: -1}, colour: red",
              "id: C, config: good.yaml, use: excluded, step_s: 3, measured: {log: 3}"});
  EXPECT_THAT(error_of_rows(),
              AllOf(HasSubstr("none of the releases has step_s"), HasSubstr("\"A\" is there twice"),
                    HasSubstr("must be positive"), HasSubstr("says why")));
  write_rows({"id: A, use: test, step_s: 3, measured: {log: 3}, colour: red, config: good.yaml"});
  EXPECT_THAT(error_of_rows(), HasSubstr("colour"));
}

/// The shipped rows: 27 groups, each with a legal configuration whose ranks fit the machine of the
/// row.
TEST(ShippedTrainingRows, EachHasALegalConfiguration) {
  const auto runs = read_training_runs();
  EXPECT_EQ(runs.size(), 27U);
  for (const TrainingRun& run : runs) EXPECT_TRUE(fs::exists(run.config)) << run.config;
}

/// The record that every printed range comes from is of these rows: what it spans follows from them
/// alone, its errors from `trellis accuracy training`.
/// The measurements of a row are named by releases, or by the one run that there is.
TEST(ShippedTrainingRows, AreOfTheReleaseThatTheyWereMeasuredWith) {
  for (const TrainingRun& run : read_training_runs()) {
    const std::string software =
        trainer::load_run_config(run.config.string(), run.overrides).software;
    if (software == sim::kNoSoftware) continue;  // no release is published
    ASSERT_NE(software.find('@'), std::string::npos) << run.row.id;
    const std::string release = software.substr(software.find('@') + 1);
    const auto judged = std::ranges::find_if(run.row.measured_us, [&](const auto& each) {
      return each.first == release || each.first.starts_with(release + ".");
    });
    if (judged == run.row.measured_us.end()) {
      EXPECT_FALSE(run.row.measured_us.begin()->first.starts_with("2.")) << run.row.id;
      continue;
    }
    EXPECT_NEAR(judged->second, run.row.time_us, 2e-3 * run.row.time_us) << run.row.id;
  }
}

TEST(ShippedTrainingRows, AreWhatTheValidatedRecordIsOf) {
  const auto runs = read_training_runs();
  std::vector<Prediction> exact(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i)
    exact[i].simulated.seconds = runs[i].row.time_us * 1e-6;
  const ValidatedRecord expected = validated_record(runs, exact);
  const std::optional<ValidatedRecord> record = read_validated_record();
  ASSERT_TRUE(record.has_value());
  ASSERT_EQ(record->steps.size(), expected.steps.size());
  for (std::size_t i = 0; i < expected.steps.size(); ++i) {
    ComparedStep step = record->steps[i];
    step.predicted_s = expected.steps[i].predicted_s;
    step.published_s = expected.steps[i].published_s;
    EXPECT_NEAR(record->steps[i].published_s, step.published_s, 1e-5 * step.published_s);
    EXPECT_EQ(step, expected.steps[i])
        << step.id
        << ": `trellis accuracy training --write-validated benchmarks/published/validated.yaml` "
           "writes it again";
  }
}

/// The ranges that are printed hold for model families that nothing is known of.
TEST(ShippedTrainingRows, NineOfTenRangesHoldWithTheFamilyLeftOut) {
  const CrossValidation result = cross_validate(read_validated_record().value());
  EXPECT_EQ(result.steps, 24U);
  EXPECT_GE(10 * result.within, 9 * result.steps);
  EXPECT_GE(result.validated, 1U);
  EXPECT_GE(10 * result.validated_within, 9 * result.validated);
}

TEST_F(TrainingAccuracy, TheValidatedRecordIsOfRowsThatJudge) {
  write_rows(
      {std::string("id: A, ") + kTwo,
       "id: B, config: good.yaml, use: excluded, reason: none, step_s: 9, measured: {log: 9}",
       "id: C, config: bad.yaml, use: test, step_s: 1, measured: {log: 1}"});
  const auto runs = read_training_runs();
  std::vector<Prediction> predictions(3);
  for (Prediction& prediction : predictions) prediction.simulated.seconds = 2;
  predictions[2].error = "it does not fit";
  EXPECT_THAT([&] { (void)validated_record(runs, predictions); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("C has no prediction")));
  const ValidatedRecord record =
      validated_record({runs[0], runs[1]}, {predictions[0], predictions[1]});
  EXPECT_EQ(record.steps.size(), 1U);
  EXPECT_NEAR(record.worst_factor(), 1.25, 1e-9);
  EXPECT_THROW((void)validated_record({runs[1]}, {predictions[1]}), ConfigError);
}

TEST(Spearman, IsTheCorrelationOfRanks) {
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4}, {10, 100, 1000, 10000}), 1);
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4}, {4, 3, 2, 1}), -1);
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3}, {5, 5, 5}), 0);
  EXPECT_NEAR(spearman({1, 1, 2, 3}, {2, 1, 4, 3}), 3.5 / std::sqrt(4.5 * 5),
              1e-12);  // ranks 1.5 1.5 3 4 and 2 1 4 3
  EXPECT_EQ(spearman({}, {}), 0);
}

}  // namespace
}  // namespace trellis::analysis
