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

#include "analysis/calibrate/calibrate_report.h"
#include "analysis/calibrate/measurements.h"
#include "base/error.h"

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

class OwnMeasurements : public ::testing::Test {
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

TEST_F(OwnMeasurements, AreReadWithTheirRuns) {
  const auto [runs, parts] = read_measurements(write(
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
  EXPECT_TRUE(parts.empty());
}

TEST_F(OwnMeasurements, EveryMistakeIsNamedWithLineAndColumn) {
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

TEST_F(OwnMeasurements, ImpossibleValuesAreRefused) {
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

TEST_F(OwnMeasurements, TheHeadAndTheNumberOfRowsAreChecked) {
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
    EXPECT_EQ(fit.compute, FactorBasis::kOwn);
    EXPECT_EQ(fit.communication, FactorBasis::kOwn);
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
    EXPECT_EQ(fit.compute, FactorBasis::kShared);
    EXPECT_EQ(fit.communication, FactorBasis::kShared);
    EXPECT_EQ(fit.factors.compute, fit.factors.communication);
  }
}

TEST(FitFactors, OnlyWhatWasMeasuredIsFitted) {
  const MeasuredParts kernel{{2, 0}, 2.6}, collective{{0, 3}, 1.5};
  const StepFit kernels = fit_factors({kernel, kernel}),
                collectives = fit_factors({collective, collective}),
                both = fit_factors({kernel, collective});
  EXPECT_NEAR(kernels.factors.compute, 1.3, 1e-4);
  EXPECT_EQ(kernels.factors.communication, 1);
  EXPECT_EQ(kernels.communication, FactorBasis::kUnseen);
  EXPECT_EQ(collectives.factors.compute, 1);
  EXPECT_EQ(collectives.compute, FactorBasis::kUnseen);
  EXPECT_NEAR(collectives.factors.communication, 0.5, 1e-4);
  EXPECT_NEAR(both.factors.compute, 1.3, 1e-3);
  EXPECT_NEAR(both.factors.communication, 0.5, 1e-3);
  EXPECT_EQ(both.communication, FactorBasis::kOwn);
}

TEST(FitFactors, AWrongUnitEndsAtTheBound) {
  std::vector<MeasuredParts> rows = made_rows({1, 1}, 4, 0.5);
  for (MeasuredParts& row : rows) row.measured_s *= 1000;
  const StepFit fit = fit_factors(rows);
  EXPECT_TRUE(fit.at_bound);
  EXPECT_NEAR(fit.factors.compute, StepFactors::kMost, 0.01);
}

TEST_F(OwnMeasurements, AreFittedAndTheRestIsReportedSeparately) {
  std::string text = kHead;
  for (const char* use : {"fit", "fit", "fit", "test", "test"})
    text += std::string("small.yaml,trn1.2xlarge,1,") + use + "\n";
  Measurements measurements = read_measurements(write(text));
  std::vector<TrainingRun>& runs = measurements.runs;
  std::vector<Prediction> predictions;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    predictions.emplace_back().parts = {0.9 - 0.1 * static_cast<double>(i),
                                        0.1 + 0.1 * static_cast<double>(i)};
    runs[i].row.time_us = 1e6 * predictions[i].parts.seconds({1.2, 0.5}) *
                          (runs[i].row.use == RowUse::kTest ? 1.1 : 1);
  }
  const CalibrateResult result = calibrate(measurements, predictions, "mine.csv");
  const nlohmann::json document = calibrate_json(result);
  ASSERT_EQ(document.at("fit").size(), 3U);
  ASSERT_EQ(document.at("test").size(), 2U);
  for (const auto& row : document.at("fit")) EXPECT_NEAR(row.at("error").get<double>(), 0, 1e-3);
  for (const auto& row : document.at("test"))
    EXPECT_NEAR(row.at("error").get<double>(), 1 / 1.1 - 1, 1e-3);
  EXPECT_THAT(calibrate_text(result),
              AllOf(HasSubstr("compute        × 1.2000"), HasSubstr("Fitted steps"),
                    HasSubstr("Held-out steps")));
  EXPECT_NEAR(result.calibration.record.worst_factor(), 1.1, 1e-2);

  std::ofstream(folder_ / "mine.yaml") << to_yaml(result.calibration);
  const Calibration again = read_calibration(folder_ / "mine.yaml");
  EXPECT_NEAR(again.factors.compute, 1.2, 1e-3);
  EXPECT_EQ(again.held_out_rows, 2);
  EXPECT_EQ(to_yaml(again), to_yaml(result.calibration));

  predictions[4].error = "it does not fit";
  EXPECT_THROW((void)calibrate(measurements, predictions, "mine.csv"), ConfigError);
}

constexpr const char* kParts = "kind,instance,what,time_us,profile,use\n";

TEST_F(OwnMeasurements, KernelsAndCollectivesAreTimedByTheModel) {
  std::ofstream(folder_ / "summary.json") << R"({"5f3a": {"total_time": 0.0005, "mfu": 0.2}})";
  Measurements measurements = read_measurements(
      write(std::string(kParts) +
            "kernel,trn1.32xlarge,matmul m=1024 k=1024 n=1024 dtype=bf16,100,,fit\n"
            "kernel,trn1.32xlarge,matmul m=1024 k=1024 n=1024 dtype=bf16,,summary.json,fit\n"
            "collective,trn1.32xlarge,all_reduce ranks=32 size=16MiB,391.6,,test\n"));
  std::vector<MeasuredPart>& parts = measurements.parts;
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_DOUBLE_EQ(parts[1].row.time_us, 500) << "of the profile";
  time_parts(parts);
  EXPECT_GT(parts[0].model_us, 10);
  EXPECT_EQ(parts[0].model_us, parts[1].model_us);
  // A published time of such an all-reduce (measured-results.md 7.1, T1).
  EXPECT_NEAR(parts[2].model_us / 391.6, 1, 0.1);
  parts[0].row.time_us = parts[1].row.time_us = 1.5 * parts[0].model_us;
  const CalibrateResult result = calibrate(measurements, {}, "mine.csv");
  EXPECT_NEAR(result.fit.factors.compute, 1.5, 1e-3);
  EXPECT_EQ(result.fit.factors.communication, 1) << "collectives of use test fit nothing";
  EXPECT_THAT(calibrate_text(result),
              AllOf(HasSubstr("no row of use fit has communication"),
                    HasSubstr("matmul m=1024 k=1024 n=1024 dtype=bf16"),
                    HasSubstr("the range of calibrated steps is that of the published steps")));
  std::ofstream(folder_ / "mine.yaml") << to_yaml(result.calibration);
  const Calibration again = read_calibration(folder_ / "mine.yaml");
  EXPECT_EQ(again.communication, FactorBasis::kUnseen);
  EXPECT_TRUE(again.record.steps.empty());
  EXPECT_EQ(to_yaml(again), to_yaml(result.calibration));
}

TEST_F(OwnMeasurements, MistakesOfKernelsAndCollectivesAreNamed) {
  std::ofstream(folder_ / "summary.json") << "{\"hash\": {\"mfu\": 0.2}}";
  const std::string text =
      error_of(std::string(kParts) +
               "kernl,trn1.32xlarge,matmul m=1,1,,fit\n"
               "kernel,trn1.32xlarge,matmul m,1,,fit\n"
               "kernel,trn1.32xlarge,matmul m=1,,summary.json,fit\n"
               "kernel,trn1.32xlarge,matmul m=1,0,,fit\n"
               "collective,trn1.32xlarge,all_reduce rank=2,1,,fit\n"
               "collective,trn1.32xlarge,all_reduce ranks=2,,summary.json,fit\n"
               "step,trn1.32xlarge,matmul,1,,fit\n"
               "kernel,trn1.32xlarge,matmul m=1 measured=benchmark,,summary.json,fit\n");
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("mine.csv:2:kind: expected step, kernel or collective, got 'kernl'"),
            HasSubstr("mine.csv:3:what: expected words key=value after matmul, got 'm'"),
            HasSubstr("mine.csv:4:profile: "), HasSubstr("expected total_time, in seconds above 0"),
            HasSubstr("mine.csv:5:time_us: expected the microseconds of one execution, above 0"),
            HasSubstr("mine.csv:6:what: unknown word 'rank': a collective has dtype, lnc, ranks, "
                      "size"),
            HasSubstr("mine.csv:7:profile: only a kernel's time comes from a profile"),
            HasSubstr("mine.csv:8:what: is of kernels and collectives"),
            HasSubstr("mine.csv:9:profile: is the time on the device")));
  Measurements measurements =
      read_measurements(write(std::string(kParts) +
                              "kernel,trn1.32xlarge,matmull m=64,1,,fit\n"
                              "collective,trn1.32xlarge,all_reduce ranks=33 size=1MiB,1,,fit\n"));
  try {
    time_parts(measurements.parts);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("mine.csv:2:what: "), HasSubstr("mine.csv:3:what: ")));
  }
}

}  // namespace
}  // namespace trellis::analysis
