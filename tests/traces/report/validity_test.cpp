// How far a predicted step is to be believed: the record's arithmetic, what lies inside it and what
// outside, and what the texts and documents say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/traces/report/made_report.h"
#include "traces/report/report_file.h"
#include "traces/report/run_report.h"
#include "traces/report/validity.h"

namespace trellis::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kB = 1'000'000'000;

StepPlace place(std::int64_t parameters, std::int64_t nodes) {
  return {.instance = "trn1.32xlarge",
          .parameters = parameters,
          .sequence_length = 4096,
          .nodes = nodes,
          .tp = 8,
          .pp = 1};
}

ComparedStep compared(const StepPlace& at, const std::string& size, double published,
                      double predicted) {
  return {.id = size + " " + std::to_string(predicted),
          .family = "one",
          .size = size,
          .place = at,
          .published_s = published,
          .predicted_s = predicted};
}

/// Four steps of one class, off by 10 % too long, 10 % too short, exactly right and 25 % too long;
/// one of another machine, twice too long.
ValidatedRecord made_record() {
  StepPlace other = place(kB, 1);
  other.instance = "trn1.2xlarge";
  other.lora = 1;
  return make_validated_record(
      {compared(place(7 * kB, 4), "1-10B", 10, 11), compared(place(8 * kB, 16), "1-10B", 10, 9),
       compared(place(7 * kB, 32), "1-10B", 10, 10), compared(place(8 * kB, 8), "1-10B", 10, 12.5),
       compared(other, "<1B", 1, 2)});
}

TEST(Validity, TheRecordHoldsWhatTheStepsSpanAndHowFarOffTheyAre) {
  const ValidatedRecord record = made_record();
  ASSERT_EQ(record.groups.size(), 2U);
  const ValidatedGroup& group = record.groups[0];
  EXPECT_EQ(group.parameters, (Span{7 * kB, 8 * kB}));
  EXPECT_EQ(group.nodes, (Span{4, 32}));
  EXPECT_EQ(group.lora, (Span{0, 0}));
  EXPECT_EQ(record.steps.size(), 5U);
  EXPECT_NEAR(record.steps[1].factor(), 10.0 / 9, 1e-12);
  EXPECT_EQ(record.worst_factor(), 2);
  EXPECT_EQ(record.all.parameters, (Span{kB, 8 * kB}));
}

TEST(Validity, TheFileReadsBack) {
  const ValidatedRecord record = made_record();
  const std::string text = to_yaml(record);
  const ValidatedRecord again = parse_validated_record(text, "made.yaml");
  EXPECT_EQ(to_yaml(again), text);
  EXPECT_EQ(again.steps, record.steps);
  EXPECT_EQ(again.groups, record.groups);
}

TEST(Validity, IdentifiersOfTheFileMayHoldAnything) {
  ValidatedRecord record = made_record();
  record.steps[0].id = "a \"quoted\", {mapped}: # name\n\x1b[31m";
  EXPECT_EQ(parse_validated_record(to_yaml(record), "made.yaml").steps[0].id, record.steps[0].id);
}

/// Twelve steps of 4 to 15 nodes, each off by 1 % more than the one before; one of another machine,
/// twice too long.
ValidatedRecord many_steps() {
  std::vector<ComparedStep> steps;
  for (int i = 1; i <= 12; ++i)
    steps.push_back(compared(place(8 * kB, 3 + i), "1-10B", 100, 100 + i));
  StepPlace other = place(8 * kB, 4);
  other.instance = "trn1.2xlarge";
  steps.insert(steps.begin(), compared(other, "1-10B", 100, 200));
  return make_validated_record(steps);
}

TEST(Validity, TheNearestStepsAreThoseOfTheMachineFirst) {
  const ValidatedRecord record = many_steps();
  const auto nearest = nearest_steps(record, place(8 * kB, 4));
  ASSERT_EQ(nearest.size(), kNearestSteps);
  for (std::size_t i = 0; i < nearest.size(); ++i)
    EXPECT_EQ(nearest[i], &record.steps[i + 1]) << "by their numbers of nodes";
  const auto other = nearest_steps(record, record.steps[0].place);
  EXPECT_EQ(other[0], &record.steps[0]);
  EXPECT_EQ(other[1], &record.steps[1]);
}

TEST(Validity, InsideTheWorstOfTheNineNearestGivesTheRange) {
  const Validity validity = judge_validity(many_steps(), place(8 * kB, 4));
  EXPECT_THAT(validity.reasons, IsEmpty());
  EXPECT_NEAR(validity.factor, 1.09, 1e-12);
  EXPECT_THAT(validity.basis, HasSubstr("nine of ten runs are expected within a factor 1.09"));
}

TEST(Validity, FewerStepsSayWhatTheyAre) {
  const Validity validity = judge_validity(made_record(), place(15 * kB / 2, 10));
  EXPECT_FALSE(validity.exploratory());
  EXPECT_EQ(validity.factor, 2);
  EXPECT_THAT(validity.basis, HasSubstr("the worst of 5 measured steps"));
}

TEST(Validity, RangesHoldNineTimesInTen) {
  std::mt19937 random(7);
  std::normal_distribution<double> error(0, 0.1);
  std::size_t steps = 0, within = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<ComparedStep> measured;
    for (int i = 0; i < 20; ++i) {
      measured.push_back(compared(place(8 * kB, 4), "1-10B", 10, 10 * std::exp(error(random))));
      measured.back().family = std::to_string(i);
    }
    std::ranges::shuffle(measured, random);
    const CrossValidation result = cross_validate(make_validated_record(measured));
    EXPECT_EQ(result.validated, 20U);
    EXPECT_EQ(result.within, result.validated_within);
    steps += result.steps;
    within += result.within;
  }
  EXPECT_NEAR(static_cast<double>(within) / static_cast<double>(steps), 0.9, 0.02);
}

TEST(Validity, CrossValidationLeavesOutTheFamily) {
  std::vector<ComparedStep> steps = many_steps().steps;
  steps[0].family = "another";
  const CrossValidation result = cross_validate(make_validated_record(steps));
  EXPECT_EQ(result.steps, 13U);
  EXPECT_EQ(result.validated, 0U) << "no family has steps of the machine but one";
  EXPECT_EQ(result.within, 12U);
}

TEST(Validity, OutsideItSaysWhyAndWidensWithTheDistance) {
  const ValidatedRecord record = made_record();
  const Validity nodes = judge_validity(record, place(8 * kB, 128));
  EXPECT_THAT(nodes.reasons, ElementsAre("nodes 128 (measured: 4 to 32)"));
  EXPECT_NEAR(nodes.factor, 2 * 1.1 * 1.1, 1e-9);  // two doublings beyond 32
  const Validity both = judge_validity(record, place(32 * kB, 64));
  EXPECT_THAT(both.reasons, ElementsAre("parameters 32 B (measured: 7 B to 8 B)",
                                        "nodes 64 (measured: 4 to 32)"));
  EXPECT_NEAR(both.factor, 2 * std::pow(1.1, 3), 1e-9);
  StepPlace lora = place(8 * kB, 4);
  lora.lora = 1;
  EXPECT_THAT(judge_validity(record, lora).reasons, ElementsAre("LoRA 1 (measured: 0)"));
}

TEST(Validity, AnotherMachineOrOtherNumbersAreExploratory) {
  const ValidatedRecord record = made_record();
  StepPlace trn3 = place(8 * kB, 4);
  trn3.instance = "trn3.48xlarge";
  EXPECT_THAT(judge_validity(record, trn3).reasons,
              ElementsAre("no measured step of trn3.48xlarge"));
  StepPlace changed = place(8 * kB, 4);
  changed.unlike = {"another hardware number: core.dma.engine_rate=1 GB/s"};
  const Validity validity = judge_validity(record, changed);
  EXPECT_THAT(validity.reasons, ElementsAre(changed.unlike[0]));
  EXPECT_NEAR(validity.factor, 2.2, 1e-9);
}

TEST(Validity, WithoutARecordNothingIsKnown) {
  const Validity validity = judge_validity(std::nullopt, place(8 * kB, 4));
  EXPECT_TRUE(validity.exploratory());
  EXPECT_FALSE(to_json(validity, 10).contains("step_time_range_ms"));
}

TEST(Validity, ReportsSayRangeEvidenceAndWhatIsExploratory) {
  nlohmann::json report = made_report(
      nlohmann::json::array({row("forward", "", "mm", "compute", 4'000'000'000)}));  // 4 ms
  EXPECT_THAT(print_run_report(report), HasSubstr("Range: unknown"));
  report["validity"] = to_json(judge_validity(made_record(), place(8 * kB, 128)), 4);
  check_run_report(report, "made");
  const std::string text = print_run_report(report);
  EXPECT_THAT(text, HasSubstr("Range 1.653 to 9.68 ms, evidence: estimated; "));
  EXPECT_THAT(text, HasSubstr("exploratory: nodes 128 (measured: 4 to 32)\n"));
  EXPECT_EQ(range_text(report), "1.653 to 9.68 ms, exploratory");
  report["validity"] = to_json(judge_validity(made_record(), place(8 * kB, 8)), 4);
  EXPECT_THAT(print_run_report(report), ::testing::Not(HasSubstr("exploratory")));
  report["validity"]["factor"] = 0.5;
  EXPECT_THROW(check_run_report(report, "made"), ConfigError);
}

TEST(Validity, BadRecordsAreNamed) {
  const std::string text = to_yaml(made_record());
  const auto error_of = [](const std::string& broken) -> std::string {
    try {
      (void)parse_validated_record(broken, "made.yaml");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto with = [&text](const std::string& from, const std::string& to) {
    return std::string(text).replace(text.find(from), from.size(), to);
  };
  EXPECT_THAT(error_of(with("trellis.validated/2", "trellis.validated/9")),
              HasSubstr("made.yaml:3:schema: expected trellis.validated/2"));
  EXPECT_THAT(error_of(with("nodes: 4", "nodes: -4")), HasSubstr("nodes: must be at least 1"));
  EXPECT_THAT(error_of(with("published_s: 10", "published_s: 0")),
              HasSubstr("published_s: must be greater than 0"));
  EXPECT_THAT(error_of(with("family:", "fammily:")), HasSubstr("family"));
}

}  // namespace
}  // namespace trellis::analysis
