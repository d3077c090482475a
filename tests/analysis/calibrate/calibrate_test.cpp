// Measurements of a user: the file and its mistakes, factors that are found again, what a
// calibration file says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "analysis/calibrate/calibrate_report.h"
#include "analysis/calibrate/measurements.h"

namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kCalibrated = R"(name: small
model_source: hf
trainer: {devices: 2, max_steps: 1}
data: {micro_batch_size: 1, global_batch_size: 2}
model: {num_layers: 2, hidden_size: 32, ffn_hidden_size: 64, num_attention_heads: 4,
  encoder_seq_length: 16, vocab_size: 512, optim: {name: adamw, lr: 1.0e-3}}
precision: {type: fp32}
)";

class Measurements : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trellis_calibrate_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::ofstream(folder_ / "small.yaml") << kCalibrated;
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path write(const std::string& text) const {
    std::ofstream(folder_ / "mine.csv") << text;
    return folder_ / "mine.csv";
  }
  [[nodiscard]] std::string error_of(const std::string& text) const {
    try {
      (void)read_measurements(write(text));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

constexpr const char* kHead = "config,instance,step_s,use\n";
constexpr const char* kGood = "small.yaml,trn1.2xlarge,0.5,fit\nsmall.yaml,trn1.2xlarge,0.6,fit\n";

TEST_F(Measurements, AreReadWithTheirRuns) {
  const auto runs = read_measurements(write(
      "# mine\nid, use, config, instance, nodes, overrides, step_s\n\n"
      "a, fit, small.yaml, trn1.2xlarge, 1, \"model.num_layers=4 name=other\", "
      "1.5\nb,test,small.yaml,trn1.2xlarge,,,2\n\"c, d\",fit,small.yaml,trn1.2xlarge,1,,2e-1\n"));
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].row.id, "a");
  EXPECT_EQ(runs[0].row.use, RowUse::kFit);
  EXPECT_THAT(runs[0].overrides, ElementsAre("model.num_layers=4", "name=other"));
  EXPECT_DOUBLE_EQ(runs[0].row.time_us, 1.5e6);
  EXPECT_EQ(runs[0].config, folder_ / "small.yaml");
  EXPECT_EQ(runs[1].row.use, RowUse::kTest);
  EXPECT_EQ(runs[1].nodes, 1);
  EXPECT_EQ(runs[2].row.id, "c, d");
}

TEST_F(Measurements, EveryMistakeIsNamedWithLineAndColumn) {
  const std::string text =
      error_of(std::string(kHead) + kGood +
               "small.yaml,trn1.2xlarge,-3,fit\nnone.yaml,trn1.2xlarge,1,fit\nsmall.yaml,trn1."
               "2xlrge,1,test\nsmall.yaml,trn1.2xlarge,fast,tset\n,,,\nsmall.yaml,1\n");
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("mine.csv:4:step_s: expected the seconds of one step, above 0, got '-3'"),
            HasSubstr("mine.csv:5:config: no such configuration: "),
            HasSubstr(
                "mine.csv:6:instance: unknown machine 'trn1.2xlrge', did you mean 'trn1.2xlarge'?"),
            HasSubstr("mine.csv:7:step_s: "),
            HasSubstr("mine.csv:7:use: expected fit or test, got 'tset'"),
            HasSubstr("mine.csv:8:config: is missing"), HasSubstr("mine.csv:9: expected 4 cells")));
}

TEST_F(Measurements, ImpossibleValuesAreRefused) {
  EXPECT_THAT(error_of(std::string(kHead) + kGood + "small.yaml,trn1.2xlarge,1e-12,fit\n"),
              HasSubstr("mine.csv:4:step_s: 1e-12 s is impossible: the model's FLOPs alone take "));
  EXPECT_THAT(error_of("config,instance,step_s,use,nodes\nsmall.yaml,trn1.2xlarge,1,fit,0\n"),
              HasSubstr("mine.csv:2:nodes: expected a number of instances of at least 1, got '0'"));
  EXPECT_THAT(error_of("config,instance,step_s,use,overrides\nsmall.yaml,trn1.2xlarge,1,fit,model."
                       "num_layers=none\n"),
              HasSubstr("mine.csv:2:overrides: "));
  EXPECT_THAT(error_of("config,instance,step_s,use,overrides\nsmall.yaml,trn1.2xlarge,1,fit,"
                       "trainer.devices=64\n"),
              HasSubstr("mine.csv:2:overrides: "));
  EXPECT_THAT(error_of(std::string(kHead) + "small.yaml,trn1.2xlarge,nan,fit\n"),
              HasSubstr("got 'nan'"));
}

TEST_F(Measurements, TheHeadAndTheNumberOfRowsAreChecked) {
  EXPECT_THAT(error_of("config,instance,seconds,use\n"),
              AllOf(HasSubstr("mine.csv:1:seconds: unknown column"),
                    HasSubstr("the head has no column step_s")));
  EXPECT_THAT(error_of("config,config,instance,step_s,use\n"), HasSubstr("occurs twice"));
  EXPECT_THAT(error_of(std::string(kHead) +
                       "small.yaml,trn1.2xlarge,1,fit\nsmall.yaml,trn1.2xlarge,1,test\n"),
              HasSubstr("1 row of use fit: expected at least 2"));
  EXPECT_THAT(error_of(""), HasSubstr("0 rows of use fit"));
  EXPECT_THAT(error_of(std::string(kHead) + "\"small.yaml,trn1.2xlarge,1,fit\n"),
              HasSubstr("mine.csv:2: a quote does not end"));
  EXPECT_THROW((void)read_measurements(folder_ / "absent.csv"), ConfigError);
}

/// Steps of random parts, measured with known factors.
std::vector<MeasuredParts> made_rows(const StepFactors& factors, std::size_t count,
                                     double most_communication) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0, most_communication), size(0.5, 20);
  std::vector<MeasuredParts> rows;
  for (std::size_t i = 0; i < count; ++i) {
    const double step = size(random), part = share(random);
    rows.push_back({{step * (1 - part), step * part}, 0});
    rows.back().measured_s = rows.back().parts.seconds(factors);
  }
  return rows;
}

TEST(FitFactors, KnownFactorsAreFoundAgain) {
  for (const StepFactors factors :
       {StepFactors{1.3, 0.6}, StepFactors{0.8, 2.5}, StepFactors{1, 1}}) {
    const StepFit fit = fit_factors(made_rows(factors, 8, 0.6));
    EXPECT_TRUE(fit.communication_fitted);
    EXPECT_FALSE(fit.at_bound);
    EXPECT_NEAR(fit.factors.compute, factors.compute, 1e-4);
    EXPECT_NEAR(fit.factors.communication, factors.communication, 1e-3);
  }
}

TEST(FitFactors, NoOtherFactorsHaveALowerCost) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> noise(0.8, 1.25), shift(0.9, 1.1);
  std::vector<MeasuredParts> rows = made_rows({1.2, 0.7}, 10, 0.5);
  for (MeasuredParts& row : rows) row.measured_s *= noise(random);
  const auto cost = [&](const StepFactors& factors) {
    double sum = 0;
    for (const MeasuredParts& row : rows)
      sum += std::pow(std::log(row.parts.seconds(factors) / row.measured_s), 2);
    return sum;
  };
  const StepFactors best = fit_factors(rows).factors;
  for (int i = 0; i < 200; ++i)
    EXPECT_LE(cost(best),
              cost({best.compute * shift(random), best.communication * shift(random)}) + 1e-12);
}

TEST(FitFactors, WhatTheRowsCannotDistinguishHasOneFactor) {
  const StepFit few = fit_factors(made_rows({1.5, 0.5}, 2, 0.6)),
                alike = fit_factors(made_rows({1.5, 0.5}, 8, 0.04));
  for (const StepFit& fit : {few, alike}) {
    EXPECT_FALSE(fit.communication_fitted);
    EXPECT_EQ(fit.factors.compute, fit.factors.communication);
  }
}

TEST(FitFactors, AWrongUnitEndsAtTheBound) {
  std::vector<MeasuredParts> rows = made_rows({1, 1}, 4, 0.5);
  for (MeasuredParts& row : rows) row.measured_s *= 1000;
  const StepFit fit = fit_factors(rows);
  EXPECT_TRUE(fit.at_bound);
  EXPECT_NEAR(fit.factors.compute, StepFactors::kMost, 0.01);
}

TEST_F(Measurements, AreFittedAndTheRestIsReportedSeparately) {
  std::string text = kHead;
  for (const char* use : {"fit", "fit", "fit", "test", "test"})
    text += std::string("small.yaml,trn1.2xlarge,1,") + use + "\n";
  std::vector<TrainingRun> runs = read_measurements(write(text));
  std::vector<Prediction> predictions;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    predictions.emplace_back().parts = {0.9 - 0.1 * static_cast<double>(i),
                                        0.1 + 0.1 * static_cast<double>(i)};
    runs[i].row.time_us = 1e6 * predictions[i].parts.seconds({1.2, 0.5}) *
                          (runs[i].row.use == RowUse::kTest ? 1.1 : 1);
  }
  const CalibrateResult result = calibrate(runs, predictions, "mine.csv");
  const nlohmann::json document = calibrate_json(result);
  ASSERT_EQ(document.at("fit").size(), 3U);
  ASSERT_EQ(document.at("test").size(), 2U);
  for (const auto& row : document.at("fit")) EXPECT_NEAR(row.at("error").get<double>(), 0, 1e-3);
  for (const auto& row : document.at("test"))
    EXPECT_NEAR(row.at("error").get<double>(), 1 / 1.1 - 1, 1e-3);
  EXPECT_THAT(calibrate_text(result), AllOf(HasSubstr("compute        × 1.2000"),
                                            HasSubstr("Fitted rows"), HasSubstr("Held-out rows")));
  EXPECT_NEAR(result.calibration.record.worst_factor(), 1.1, 1e-2);

  std::ofstream(folder_ / "mine.yaml") << to_yaml(result.calibration);
  const Calibration again = read_calibration(folder_ / "mine.yaml");
  EXPECT_NEAR(again.factors.compute, 1.2, 1e-3);
  EXPECT_EQ(again.held_out_rows, 2);
  EXPECT_EQ(to_yaml(again), to_yaml(result.calibration));

  predictions[4].error = "it does not fit";
  EXPECT_THROW((void)calibrate(runs, predictions, "mine.csv"), ConfigError);
}

}  // namespace
}  // namespace trellis::analysis
