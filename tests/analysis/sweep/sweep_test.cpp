#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "analysis/sweep/bounds.h"
#include "analysis/sweep/estimate.h"
#include "analysis/sweep/estimator.h"
#include "analysis/sweep/journal.h"
#include "analysis/sweep/ranking.h"
#include "analysis/sweep/space.h"
#include "base/error.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/config/schedule/schedule_timing.h"

namespace trellis::analysis {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kMegatron = std::string(TRELLIS_SOURCE_DIR) + "/examples/quickstart.yaml";
const std::string kHf = std::string(TRELLIS_SOURCE_DIR) + "/examples/verify_llama.yaml";

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Space space_of(int ranks, std::int64_t batch, int layers) {
  Space space;
  space.ranks_per_node = ranks;
  space.global_batch_size = batch;
  space.num_layers = layers;
  return space;
}

bool legal(const std::string& file, const Candidate& c, const Space& space,
           std::vector<std::string> overrides) {
  for (std::string& text : overrides_of(c, space.ranks_per_node, space.global_batch_size))
    overrides.push_back(std::move(text));
  return trainer::check_run_config(file, overrides).problems.empty();
}

/// Every combination in a box against the validation: the legal ones are enumerated, each once.
void expect_all_legal_enumerated(const std::string& file, const Space& space,
                                 const std::vector<std::string>& overrides,
                                 const std::vector<int>& factors, const std::vector<int>& sizes) {
  const std::vector<Candidate> found = enumerate(space);
  const std::set<Candidate> set(found.begin(), found.end());
  ASSERT_EQ(set.size(), found.size()) << "a candidate is there twice";
  std::size_t count = 0;
  for (const int tp : factors) {
    for (const int pp : factors) {
      for (int vpp = 1; vpp <= 3; ++vpp) {
        for (const int mbs : sizes) {
          for (const int bits : {0, 1, 2, 3}) {
            for (const int kv : {1, 2, 3, 4}) {
              Candidate c{{.tp = tp,
                           .pp = pp,
                           .vpp = vpp,
                           .dp = std::max(1, space.ranks_per_node / tp / pp),
                           .sequence_parallel = (bits & 1) != 0,
                           .zero1 = (bits & 2) != 0,
                           .kv_replicator = kv}};
              c.micro_batch_size = mbs;
              if (set.contains(c) || !legal(file, c, space, overrides)) continue;
              ADD_FAILURE() << to_string(c) << " is legal, but not enumerated";
            }
          }
        }
      }
    }
  }
  for (const Candidate& c : found) count += legal(file, c, space, overrides) ? 1 : 0;
  EXPECT_GE(count, 20U);
  EXPECT_LT(count, found.size()) << "nothing is illegal: the rules were not asked";
}

TEST(SweepEnumeration, HasEveryLegalLayoutOfEightRanksOnce) {
  expect_all_legal_enumerated(kHf, space_of(8, 2, 4), {}, {1, 2, 3, 4, 8}, {1, 2, 3});
}

TEST(SweepEnumeration, HasEveryLegalLayoutOfThirtyTwoRanksOnce) {
  expect_all_legal_enumerated(
      kMegatron, space_of(32, 16, 4),
      {"model.num_attention_heads=8", "model.num_kv_heads=4", "model.ffn_hidden_size=512"},
      {1, 2, 4, 8}, {1, 2, 3, 8});
}

TEST(SweepEnumeration, ContextAndExpertParallelismWhereTheModelHasThem) {
  Space space = space_of(8, 8, 4);
  const std::vector<Candidate> plain = enumerate(space);
  for (const Candidate& c : plain) EXPECT_TRUE(c.cp == 1 && c.ep == 1) << to_string(c);
  space.ring_attention = true;
  space.num_experts = 6;
  std::vector<Candidate> without;
  std::set<std::pair<int, int>> seen;
  for (const Candidate& c : enumerate(space)) {
    EXPECT_EQ(c.tp * c.pp * c.cp * c.dp, 8) << to_string(c);
    EXPECT_EQ(c.cp * c.dp % c.ep, 0) << to_string(c);
    EXPECT_EQ(6 % c.ep, 0) << to_string(c);
    seen.insert({c.cp, c.ep});
    if (c.cp == 1 && c.ep == 1) without.push_back(c);
  }
  EXPECT_EQ(without, plain);
  EXPECT_EQ(seen, (std::set<std::pair<int, int>>{
                      {1, 1}, {1, 2}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}, {8, 2}}));
  restrict_axis(space.only, "cp=4");
  restrict_axis(space.only, "ep=2");
  for (const Candidate& c : enumerate(space)) EXPECT_TRUE(c.cp == 4 && c.ep == 2);
  EXPECT_EQ(to_string(Candidate{{.dp = 2, .zero1 = false, .ep = 2, .cp = 4}}), "DP2 CP4 EP2 MBS1");
}

TEST(SweepEnumeration, OrderAndRestrictions) {
  Space space = space_of(8, 4, 4);
  const std::vector<Candidate> all = enumerate(space);
  EXPECT_EQ(all.front(), (Candidate{{.dp = 8, .zero1 = false}}));
  restrict_axis(space.only, "tp=4,2");
  restrict_axis(space.only, "recompute=full");
  std::vector<Candidate> expected;
  std::copy_if(all.begin(), all.end(), std::back_inserter(expected), [](const Candidate& c) {
    return (c.tp == 2 || c.tp == 4) && c.recompute == trainer::Recompute::kFull;
  });
  EXPECT_EQ(enumerate(space), expected);
  EXPECT_FALSE(expected.empty());
}

TEST(SweepEnumeration, BadRestrictions) {
  AxisValues only;
  EXPECT_THAT(error_of([&] { restrict_axis(only, "tpp=2"); }),
              HasSubstr("no axis is called `tpp`, did you mean `tp`?"));
  EXPECT_THAT(error_of([&] { restrict_axis(only, "tp"); }),
              HasSubstr("which values? Expected tp=whole numbers from 1 on"));
  EXPECT_THAT(error_of([&] { restrict_axis(only, "tp=2,x"); }),
              HasSubstr("\"x\": expected whole numbers from 1 on"));
  EXPECT_THAT(error_of([&] { restrict_axis(only, "recompute=some"); }),
              HasSubstr("expected none, selective or full"));
  EXPECT_THAT(error_of([&] { restrict_axis(only, "sp=1"); }), HasSubstr("expected true or false"));
  restrict_axis(only, "tp=2");
  EXPECT_THAT(error_of([&] { restrict_axis(only, "tp=4"); }), HasSubstr("restricted twice"));
}

TEST(SweepSpace, BadRequests) {
  SweepRequest request;
  request.config = kMegatron;
  request.chips = 24;
  EXPECT_THAT(error_of([&] { (void)open_space(request); }),
              HasSubstr("--chips 24: a trn1.32xlarge has 16 chips, expected fewer or a multiple of "
                        "them: 16 or 32"));
  request.nodes = {1};
  EXPECT_THAT(error_of([&] { (void)open_space(request); }),
              HasSubstr("--nodes and --chips say the same twice"));
  request.chips = 0;
  request.only = {"tp=3"};
  EXPECT_THAT(error_of([&] { (void)open_space(request); }),
              HasSubstr("--only and --fix leave no candidate: 32 ranks per node"));
  request.only = {};
  request.overrides = {"distributed_strategy.zero1=false"};
  EXPECT_THAT(error_of([&] { (void)open_space(request); }),
              HasSubstr("the sweep sets distributed_strategy.zero1 itself"));
  request.overrides = {};
  request.fix = {"tpp"};
  EXPECT_THAT(error_of([&] { (void)open_space(request); }), HasSubstr("no axis is called `tpp`"));
}

TEST(SweepSpace, JudgesEveryCandidateAsTheValidationDoes) {
  for (const std::string& file : {kHf, kMegatron}) {
    SweepRequest request;
    request.config = file;
    request.chips = 4;
    request.only = {"vpp=1,2", "mbs=1,2"};
    const SweepSpace space = open_space(request);
    std::size_t illegal = 0;
    for (const SweepRow& row : judge(space, 2)) {
      const trainer::RunCheck check =
          trainer::check_run_config(file, space.overrides(row.candidate));
      illegal += check.problems.empty() ? 0 : 1;
      EXPECT_EQ(row.candidate, space.candidates.at(row.index));
      EXPECT_EQ(row.status == SweepStatus::kIllegal, !check.problems.empty())
          << to_string(row.candidate) << ": " << row.reason;
      if (check.problems.empty()) {
        EXPECT_EQ(row.bound_bytes, bound_memory(check.config)) << to_string(row.candidate);
      } else {
        EXPECT_EQ(row.reason, check.problems.front()) << to_string(row.candidate);
      }
    }
    EXPECT_GT(illegal, 0U);
    EXPECT_LT(illegal, space.candidates.size());
  }
}

TEST(SweepBounds, ActivationsAreThoseOfAsManyChunksAsTheScheduleHolds) {
  for (const auto& [m, pp, vpp] : std::vector<std::tuple<int, int, int>>{{1, 1, 1},
                                                                         {2, 4, 1},
                                                                         {8, 4, 1},
                                                                         {40, 4, 1},
                                                                         {8, 4, 2},
                                                                         {4, 2, 3},
                                                                         {2, 2, 3},
                                                                         {8, 8, 4},
                                                                         {64, 8, 2}}) {
    trainer::RunConfig config;
    config.trainer.devices = pp;
    config.distributed_strategy.pipeline_model_parallel_size = pp;
    config.distributed_strategy.virtual_pipeline_model_parallel_size = vpp;
    config.data.micro_batch_size = 1;
    config.data.global_batch_size = m;
    const std::vector<StageWork> stages(static_cast<std::size_t>(pp * vpp), {.saved_bytes = 10});
    std::vector<StageWork> wide = stages;
    for (StageWork& stage : wide) stage.forward_bytes = 3, stage.backward_bytes = 2;
    std::vector<trainer::PassCost> costs(stages.size(), {1, 2});
    const trainer::ScheduleTiming timing = trainer::time_schedule({m, pp, vpp}, costs);
    for (int p = 0; p < pp; ++p) {
      const int held = timing.peak_in_flight(p);
      EXPECT_EQ(activation_bytes(config, stages, p), 10 * held) << m << " " << pp << " " << vpp;
      EXPECT_EQ(activation_bytes(config, wide, p), 10 * held + 3) << m << " " << pp << " " << vpp;
    }
  }
}

TEST(SweepBounds, NoCoreMultipliesFasterThanItsPeak) {
  const std::string file = std::string(TRELLIS_SOURCE_DIR) + "/benchmarks/cli/gpt_22b.yaml";
  for (const auto& [instance, size] : std::vector<std::pair<std::string, int>>{
           {"trn1.32xlarge", 1}, {"trn2.48xlarge", 1}, {"trn2.48xlarge", 2}}) {
    sim::LoadOptions options;
    options.logical_core_size = size;
    const sim::SystemConfig system = sim::load_system(instance, options);
    CollectiveTimes times(system);
    const trainer::RunConfig config = trainer::load_run_config(file, {});
    const double seconds = static_cast<double>(bound_step(config, system, times).step_ps) * 1e-12;
    const double mfu = config.model_flops_per_step() /
                       (seconds * config.world_size() * system.peak_per_logical_core().value);
    EXPECT_LE(mfu, 1) << instance << " " << size;
    EXPECT_GT(mfu, 0.5) << instance << " " << size;
  }
}

/// A step of one layer whose parts take known times: the first micro-batch 3 s longer in the layer,
/// the update 7 s.
nlohmann::json made_step(int micro_batches) {
  nlohmann::json rows = nlohmann::json::array();
  const auto add = [&](const char* phase, const char* component, int seconds) {
    rows.push_back({{"phase", phase},
                    {"component", component},
                    {"operator", "mm"},
                    {"kind", "compute"},
                    {"time_ps", seconds * 1'000'000'000'000},
                    {"count", 1}});
  };
  add("forward", "model.layers.*.mlp", 2 * micro_batches + 3);
  add("backward", "model.layers.*.mlp", 4 * micro_batches);
  add("forward", "model.embed_tokens", micro_batches);
  add("backward", "lm_head", 5 * micro_batches);
  add("backward", "", micro_batches);
  add("optimizer", "", 7);
  return {{"attribution", {{"rows", rows}}}};
}

TEST(SweepEstimate, PartsOfAProfileAddUpToTheStep) {
  const sim::SystemConfig system = sim::load_system("trn1.32xlarge");
  CollectiveTimes times(system);
  const auto config_of = [&](const std::vector<std::string>& layout) {
    std::vector<std::string> overrides = {
        "trainer.devices=1", "distributed_strategy.tensor_model_parallel_size=1",
        "distributed_strategy.sequence_parallel=false", "data.micro_batch_size=2"};
    overrides.insert(overrides.end(), layout.begin(), layout.end());
    return trainer::load_run_config(kMegatron, overrides);
  };
  const trainer::RunConfig one = config_of({"distributed_strategy.pipeline_model_parallel_size=1"});
  const double parameters = owned_parameters(one, 0);
  EXPECT_EQ(parameters, static_cast<double>(one.num_parameters()));
  const std::optional<StageProfile> profile = read_profile(made_step(2), made_step(3), parameters);
  ASSERT_TRUE(profile.has_value());
  // 8 micro-batches of 4 layers, embedding, head and what no part names; the first micro-batch of 4
  // layers; the update.
  EXPECT_NEAR(static_cast<double>(estimate_step(one, *profile, times)) * 1e-12,
              8 * (4 * 6 + 1 + 5 + 1) + 4 * 3 + 7, 1e-6);
  // Two stages of 2 layers: the schedule of 13+1 and 12+1+5 s with a transfer between them, the
  // slower rank's own additions.
  const trainer::RunConfig two =
      config_of({"distributed_strategy.pipeline_model_parallel_size=2", "trainer.devices=2"});
  const double step = static_cast<double>(estimate_step(two, *profile, times)) * 1e-12;
  EXPECT_GT(step, 8 * 18 + 6);
  EXPECT_LT(step, 8 * 18 + 14 + 6 + 7);
  EXPECT_FALSE(read_profile({{"breakdown", 1}}, made_step(3), parameters).has_value());
}

/// Answers of made steps to all simulations that an estimator asks for; how many there were.
int answer_all(Estimator& estimator, std::vector<SweepRow*>& ready) {
  int count = 0;
  for (; const auto question = estimator.next_question(); ++count) {
    const nlohmann::json report = {{"simulated", made_step(count % 2 == 0 ? 2 : 3)}};
    for (SweepRow* row : estimator.answer({question->key, 0, report.dump(), ""}))
      ready.push_back(row);
  }
  return count;
}

TEST(SweepEstimate, RowsShareProfilesAndLoseWhatTheyDoNotNeed) {
  SweepRequest request;
  request.config = kMegatron;
  request.chips = 1;
  request.only = {"tp=1", "pp=2", "vpp=1", "mbs=2", "zero1=true", "recompute=none,full"};
  const SweepSpace space = open_space(request);
  std::vector<SweepRow> rows = judge(space, 1);
  ASSERT_EQ(rows.size(), 2U);
  SweepRow &none = rows[0], &full = rows[1];
  const std::int64_t closed = full.bound_ps;
  Estimator estimator(space, rows);
  std::vector<SweepRow*> ready;
  EXPECT_EQ(estimator.advance(full), Estimator::Step::kWaits);
  EXPECT_EQ(estimator.advance(none), Estimator::Step::kWaits);
  EXPECT_EQ(answer_all(estimator, ready), 2) << "the passes of `none` bound both";
  EXPECT_EQ(ready, (std::vector<SweepRow*>{&full, &none}));
  EXPECT_EQ(estimator.advance(full), Estimator::Step::kRaised);
  EXPECT_EQ(full.estimate_ps, 0);
  const std::int64_t by_passes = full.bound_ps;
  EXPECT_GT(by_passes, closed);
  EXPECT_EQ(estimator.advance(full), Estimator::Step::kWaits);
  EXPECT_EQ(answer_all(estimator, ready), 2);
  EXPECT_EQ(estimator.advance(full), Estimator::Step::kRaised);
  EXPECT_GT(full.estimate_ps, full.bound_ps);
  EXPECT_EQ(estimator.advance(full), Estimator::Step::kNothing);
  const std::int64_t raised = full.bound_ps;
  EXPECT_GT(raised, by_passes);
  none.status = SweepStatus::kOk;
  none.step = SimulatedStep{.step_time_ps = raised};
  estimator.forget_needless(1);
  EXPECT_EQ(full.bound_ps, raised);
  none.step->step_time_ps = by_passes - 1;
  estimator.forget_needless(1);
  EXPECT_EQ(full.bound_ps, by_passes) << "the estimate came only if it was asked for early";
  EXPECT_EQ(full.estimate_ps, 0);
  none.step->step_time_ps = closed - 1;
  estimator.forget_needless(1);
  EXPECT_EQ(full.bound_ps, closed);
}

SweepRow simulated(std::size_t index, std::int64_t bound, std::int64_t time, std::int64_t bytes) {
  SweepRow row;
  row.index = index;
  row.status = SweepStatus::kOk;
  row.bound_ps = bound;
  row.simulated = true;
  row.step = SimulatedStep{.step_time_ps = time, .peak_bytes = bytes};
  return row;
}

TEST(SweepRows, SettleKeepsTheBestAndSaysWhyTheOthersAreNot) {
  SweepRow open;
  open.bound_ps = 35;
  std::vector<SweepRow> rows = {simulated(0, 10, 20, 5),
                                simulated(1, 15, 30, 9),
                                simulated(2, 18, 31, 10),
                                simulated(3, 25, 32, 1),
                                open,
                                simulated(5, 31, 40, 1)};
  EXPECT_EQ(settle(rows, 2), 0U);
  EXPECT_EQ(rows[0].status, SweepStatus::kOk);
  EXPECT_EQ(rows[1].status, SweepStatus::kOk) << "among the best, though the first beats it";
  EXPECT_EQ(rows[2].status, SweepStatus::kDominated);
  EXPECT_EQ(rows[3].status, SweepStatus::kOk) << "takes less memory than all faster ones";
  EXPECT_EQ(rows[4].status, SweepStatus::kDominated);
  EXPECT_EQ(rows[5].status, SweepStatus::kDominated)
      << "its bound alone exceeds the second best: whether someone simulated it does not matter";
  EXPECT_FALSE(rows[5].step.has_value());
  EXPECT_TRUE(rows[0].pareto && rows[3].pareto);
  EXPECT_FALSE(rows[1].pareto);
}

TEST(SweepRows, SettleCountsWhatIsOpen) {
  SweepRow open;
  open.bound_ps = 5;
  std::vector<SweepRow> rows = {simulated(0, 10, 20, 5), open};
  EXPECT_EQ(settle(rows, 1), 1U);
}

/// A journal of a small sweep, in a separate folder.
class Journals : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trellis_sweep_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    space_.request.config = kMegatron;
    space_.candidates = enumerate(space_of(2, 2, 2));
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string read(const fs::path& file) {
    std::ifstream in(file);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  fs::path folder_;
  SweepSpace space_;
  nlohmann::json facts_ = {{"--gbs", "2"}, {"model.num_layers", "2"}};
};

TEST_F(Journals, IsReadAgain) {
  { SweepJournal(folder_, space_, {}, facts_).append(result_json(simulated(3, 1, 7, 9))); }
  const SweepJournal again(folder_, space_, {}, facts_);
  ASSERT_EQ(again.results().size(), 1U);
  SweepRow row;
  apply_result(again.results()[0], row);
  EXPECT_EQ(row.step, simulated(3, 1, 7, 9).step);
}

TEST_F(Journals, TornLastLineIsCutOff) {
  {
    SweepJournal journal(folder_, space_, {}, facts_);
    journal.append(result_json(simulated(1, 1, 7, 9)));
    journal.append(result_json(simulated(2, 1, 7, 9)));
  }
  const fs::path file = folder_ / "journal.jsonl";
  fs::resize_file(file, fs::file_size(file) - 20);
  SweepJournal again(folder_, space_, {}, facts_);
  EXPECT_EQ(again.results().size(), 1U);
  again.append(result_json(simulated(2, 1, 7, 9)));
  EXPECT_EQ(read_sweep_journal(folder_).results.size(), 2U)
      << "the torn line is gone from the file";
}

TEST_F(Journals, DamageInTheMiddleIsAnError) {
  { SweepJournal(folder_, space_, {}, facts_); }
  std::ofstream(folder_ / "journal.jsonl", std::ios::app) << "{\"index\": \n{}\n";
  EXPECT_THAT(error_of([&] { (void)read_sweep_journal(folder_); }),
              HasSubstr("journal.jsonl:2: no JSON object: the journal is damaged"));
}

TEST_F(Journals, AnotherSweepInTheFolderIsAnError) {
  { SweepJournal(folder_, space_, {}, facts_); }
  nlohmann::json other = facts_;
  other["--gbs"] = "4";
  EXPECT_THAT(error_of([&] { SweepJournal(folder_, space_, {}, other); }),
              HasSubstr("the folder holds another sweep: --gbs: 2 there, 4 here"));
  EXPECT_THAT(error_of([&] { SweepJournal(folder_, space_, {1, 2}, facts_); }),
              HasSubstr("--shard: 1/1 there, 2/2 here"));
}

TEST_F(Journals, MergeKnowsConflictsAndMissingShards) {
  const auto shard = [&](const char* name, Shard part, const SweepRow& row,
                         const nlohmann::json& facts) {
    SweepJournal(folder_ / name, space_, part, facts).append(result_json(row));
    return read_sweep_journal(folder_ / name);
  };
  const JournalFile first = shard("a", {0, 2}, simulated(0, 1, 7, 9), facts_),
                    second = shard("b", {1, 2}, simulated(1, 1, 8, 9), facts_);
  EXPECT_EQ(merge_journals({second, first}, facts_).size(), 2U);
  EXPECT_THAT(error_of([&] { (void)merge_journals({first}, facts_); }),
              HasSubstr("shard 2/2 is missing"));
  const JournalFile conflict = shard("c", {1, 2}, simulated(0, 1, 9, 9), facts_);
  EXPECT_THAT(error_of([&] { (void)merge_journals({first, second, conflict}, facts_); }),
              HasSubstr("disagree about candidate 0"));
  const JournalFile other =
      shard("d", {1, 2}, simulated(1, 1, 8, 9), {{"--gbs", "4"}, {"model.num_layers", "2"}});
  EXPECT_THAT(error_of([&] { (void)merge_journals({first, other}, facts_); }),
              HasSubstr("--gbs: 4 there, 2 here"));
}

TEST(SweepShard, Texts) {
  EXPECT_EQ(parse_shard("2/8").index, 1U);
  EXPECT_EQ(parse_shard("8/8").text(), "8/8");
  for (const char* text : {"0/8", "9/8", "2", "a/b", "2/", "/2"})
    EXPECT_THAT(error_of([&] { (void)parse_shard(text); }),
                HasSubstr("expected i/n with 1 ≤ i ≤ n"));
}

/// Rows of 1, 2 and 4 nodes, each number faster than the last, but by less than its nodes cost.
std::vector<SweepRow> rows_to_rank() {
  std::vector<SweepRow> rows;
  for (const auto& [nodes, tokens_per_s] :
       {std::pair{1, 1000.0}, std::pair{2, 1900.0}, std::pair{4, 3000.0}, std::pair{1, 500.0}}) {
    SweepRow row;
    row.index = rows.size();
    row.candidate.nodes = nodes;
    row.status = SweepStatus::kOk;
    row.step =
        SimulatedStep{static_cast<std::int64_t>(1e15 / tokens_per_s), tokens_per_s, 0.3, 1 << 30};
    rows.push_back(row);
  }
  rows.emplace_back().index = 4;  // not simulated
  return rows;
}

std::vector<std::size_t> order_by(const RankRequest& request) {
  std::vector<std::size_t> order;
  const std::vector<SweepRow> rows = rows_to_rank();
  const auto ranking = read_ranking(request, "trn1.32xlarge").value();
  for (const RankedRow& row : ranked_rows(ranking, rows)) order.push_back(row.row->index);
  return order;
}

const std::string kPrices = std::string(TRELLIS_SOURCE_DIR) + "/examples/prices.yaml";

TEST(SweepRanking, ByTimeByCostAndByDeadline) {
  EXPECT_EQ(order_by({.by = "time", .prices = kPrices}), (std::vector<std::size_t>{2, 1, 0, 3}));
  EXPECT_EQ(order_by({.by = "cost", .prices = kPrices}), (std::vector<std::size_t>{0, 1, 2, 3}));
  // 1 M tokens take 1000, 526, 333 and 2000 s.
  const RankRequest deadline{
      .by = "deadline", .prices = kPrices, .tokens = "1M", .deadline = "600s"};
  EXPECT_EQ(order_by(deadline), (std::vector<std::size_t>{1, 2, 0, 3}))
      << "in time by cost, then late ones by time";
  EXPECT_EQ(order_by({.by = "deadline", .prices = kPrices, .tokens = "1M", .deadline = "10s"}),
            (std::vector<std::size_t>{2, 1, 0, 3}));
}

TEST(SweepRanking, MoneyIsNodesTimesHoursTimesPrice) {
  const Ranking ranking =
      read_ranking({.by = "cost", .prices = kPrices, .paying = "spot", .tokens = "3.6M"},
                   "trn1.32xlarge")
          .value();
  const std::vector<SweepRow> rows = rows_to_rank();
  const RankedRow row = rank_row(ranking, rows[1]);  // 2 nodes, 8.00 an hour
  EXPECT_NEAR(row.cost.value(), 2 * 8.0 / 1.9, 1e-9);
  EXPECT_NEAR(row.run_s.value(), 3600 / 1.9, 1e-9);
  EXPECT_NEAR(row.cost_per_million_tokens * 3.6, row.cost.value(), 1e-9);
}

TEST(SweepRanking, RefusesWhatItCannotRankBy) {
  const auto refusal = [](const RankRequest& request) {
    return error_of([&] { (void)read_ranking(request, "trn1.32xlarge"); });
  };
  EXPECT_THAT(refusal({.by = "cost"}), HasSubstr("--rank-by cost: needs --prices"));
  EXPECT_THAT(refusal({.by = "time", .tokens = "1M"}),
              HasSubstr("--tokens: has an effect with --prices"));
  EXPECT_THAT(refusal({.by = "deadline", .prices = kPrices, .tokens = "1M"}),
              HasSubstr("needs --deadline"));
  EXPECT_THAT(refusal({.by = "deadline", .prices = kPrices, .deadline = "3d"}),
              HasSubstr("needs --tokens"));
  EXPECT_THAT(refusal({.by = "cost", .prices = kPrices, .paying = "cash"}),
              HasSubstr("expected on_demand, reserved, capacity_block, spot"));
  EXPECT_FALSE(read_ranking({}, "trn1.32xlarge").has_value());
}

}  // namespace
}  // namespace trellis::analysis
