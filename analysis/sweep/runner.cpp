#include "analysis/sweep/runner.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/sweep/child_processes.h"
#include "analysis/sweep/estimator.h"
#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/number_text.h"
#include "base/process/parallel_for.h"
#include "traces/report/step_view.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

void apply_all(const std::vector<json>& results, const std::string& where,
               std::vector<SweepRow>& rows) {
  for (const json& result : results) {
    const auto row =
        std::lower_bound(rows.begin(), rows.end(), result.at("index").get<std::size_t>(),
                         [](const SweepRow& r, std::size_t index) { return r.index < index; });
    if (row == rows.end() || row->index != result.at("index").get<std::size_t>() ||
        to_string(row->candidate) != result.at("layout").get<std::string>()) {
      throw ConfigError(fmt::format(
          "{}: candidate {} ({}) is not one of this sweep: remove the journal", where,
          result.at("index").dump(), terminal_line(result.at("layout").get<std::string>())));
    }
    apply_result(result, *row);
  }
}

/// Open rows by their bounds, and which of them is next.
class Queue {
 public:
  Queue(std::vector<SweepRow>& rows, std::size_t top) : rows_(rows), top_(top) {
    for (SweepRow& row : rows) {
      if (row.status == SweepStatus::kOpen) add(row);
    }
  }

  void add(SweepRow& row) { open_.emplace(row.bound_ps, &row); }
  /// None: no row that is here can be among the best.
  SweepRow* next() {
    while (!open_.empty()) {
      const auto [bound, row] = *open_.begin();
      open_.erase(open_.begin());
      const auto limit = limit_of(row->candidate.nodes);
      if (!limit || bound <= *limit) return row;
    }
    return nullptr;
  }
  void result_is_new() { limits_.clear(); }
  [[nodiscard]] std::size_t left() const { return open_.size(); }

 private:
  std::optional<std::int64_t> limit_of(int nodes) {
    const auto known = limits_.find(nodes);
    if (known != limits_.end()) return known->second;
    return limits_[nodes] = time_to_beat(rows_, nodes, top_);
  }

  std::vector<SweepRow>& rows_;
  std::size_t top_;
  std::set<std::pair<std::int64_t, SweepRow*>> open_;  ///< rows are in the order of their places
  std::map<int, std::optional<std::int64_t>> limits_;
};

/// Simulates rows in child processes, in the order of their bounds; with an estimator those that
/// its estimates leave.
class Simulation {
 public:
  Simulation(const SweepSpace& space, std::vector<SweepRow>& rows, SweepJournal* journal,
             Estimator* estimator, const fs::path& scratch)
      : space_(space), rows_(rows), journal_(journal), estimator_(estimator), children_(scratch) {}

  void run(Queue& queue, std::size_t jobs) {
    Activity activity("simulating layouts, those of the lowest bounds first");
    for (;;) {
      while (children_.running() < jobs && !ChildProcesses::stop_requested()) {
        if (!start_next(queue)) break;
      }
      if (children_.running() == 0 && !ChildProcesses::stop_requested()) return;
      auto result = children_.running() == 0 ? std::nullopt : children_.wait();
      if (!result) interrupted();
      if (result->key >= rows_.size()) {
        take_answer(std::move(*result), queue);
      } else {
        finish(*result, queue);
      }
      activity.count(static_cast<std::int64_t>(done_));
    }
  }

 private:
  /// False: nothing is left, or what is left waits for what runs.
  bool start_next(Queue& queue) {
    if (estimator_ == nullptr) {
      SweepRow* row = queue.next();
      if (row != nullptr) start(*row);
      return row != nullptr;
    }
    for (;;) {
      if (auto question = estimator_->next_question()) {
        children_.start(rows_.size() + question->key, question->step);
        return true;
      }
      SweepRow* row = queue.next();
      if (row == nullptr) return false;
      switch (estimator_->advance(*row)) {
        case Estimator::Step::kWaits: break;
        case Estimator::Step::kRaised: queue.add(*row); break;
        case Estimator::Step::kNothing: start(*row); return true;
      }
    }
  }

  void take_answer(ChildProcesses::Result result, Queue& queue) {
    result.key -= rows_.size();
    for (SweepRow* row : estimator_->answer(result)) queue.add(*row);
  }

  void start(const SweepRow& row) {
    children_.start(static_cast<std::size_t>(&row - rows_.data()),
                    {{.config_file = space_.request.config,
                      .overrides = space_.overrides(row.candidate),
                      .instance = space_.request.instance,
                      .nodes = row.candidate.nodes}});
  }

  void finish(const ChildProcesses::Result& result, Queue& queue) {
    SweepRow& row = rows_[result.key];
    row.simulated = true;
    switch (static_cast<ExitCode>(result.exit_code)) {
      case ExitCode::kOk: take(row, read_simulation(result.out)); break;
      case ExitCode::kDoesNotFit:
        row.status = SweepStatus::kOom;
        row.reason = result.error();
        break;
      case ExitCode::kConfig:
        row.status = SweepStatus::kIllegal;
        row.reason = result.error();
        break;
      default:
        throw Error(static_cast<ExitCode>(result.exit_code < 128 ? result.exit_code : 1),
                    fmt::format("the simulation of {} ended with exit code {}: {}",
                                to_string(row.candidate), result.exit_code, result.error()));
    }
    if (journal_ != nullptr) journal_->append(result_json(row));
    queue.result_is_new();
    ++done_;
    log_info(fmt::format("{:>4} done, {} left at most: {} on {} node{}: {}", done_,
                         queue.left() + children_.running(), to_string(row.candidate),
                         row.candidate.nodes, row.candidate.nodes == 1 ? "" : "s",
                         row.step ? milliseconds_text(row.step->step_time_ps) : name(row.status)));
  }

  static void take(SweepRow& row, SimulatedStep step) {
    row.status = step.does_not_fit.empty() ? SweepStatus::kOk : SweepStatus::kOom;
    row.reason = step.does_not_fit;
    if (row.status == SweepStatus::kOk) row.step = std::move(step);
  }

  [[noreturn]] void interrupted() const {
    throw Error(
        ExitCode::kInterrupted,
        journal_ == nullptr
            ? fmt::format("interrupted after {} simulations; nothing is kept without --out DIR",
                          done_)
            : fmt::format(
                  "interrupted after {} simulations; they are kept, the same command goes on",
                  done_));
  }

  const SweepSpace& space_;
  std::vector<SweepRow>& rows_;
  SweepJournal* journal_;
  Estimator* estimator_;
  ChildProcesses children_;
  std::size_t done_ = 0;
};

}  // namespace

SimulatedStep read_simulation(const std::string& text) {
  const json report = json::parse(text);
  const json& simulated = report.at("simulated");
  const StepView view = view_step(simulated);
  SimulatedStep step;
  step.step_time_ps = view.step_time_ps;
  step.tokens_per_s = report.at("tokens_per_s");
  step.mfu = report.at("mfu");
  step.evidence = simulated.at("evidence");
  if (const json validity = report.value("validity", json::object()); validity.contains("factor")) {
    step.range_factor = validity.at("factor");
    step.exploratory = validity.at("status") == "exploratory";
  }
  for (const json& rank : report.at("memory").at("ranks"))
    step.peak_bytes = std::max(step.peak_bytes, rank.at("peak_bytes").get<std::int64_t>());
  if (const json software = report.at("memory").value("software", json()); !software.is_null()) {
    step.peak_bytes = software.at("total_bytes");
    if (software.at("verdict") == "does_not_fit") {
      step.does_not_fit =
          fmt::format("{} on a device takes an estimated {} (trellis memory); a core has {}",
                      software.at("software").get<std::string>(), human_bytes(step.peak_bytes),
                      human_bytes(software.at("capacity_bytes")));
    }
  }
  for (const NamedTime& part : view.parts) {
    if (part.ps <= step.bottleneck_ps) continue;
    step.bottleneck = part.name;
    step.bottleneck_ps = part.ps;
  }
  return step;
}

SweepResult run_sweep(const SweepRequest& request, const RunOptions& options) {
  SweepResult result{open_space(request), request.top, options.shard, {}};
  const std::size_t jobs = options.jobs > 0 ? static_cast<std::size_t>(options.jobs) : host_cores();
  std::vector<SweepRow> all = judge(result.space, static_cast<int>(jobs));
  std::optional<SweepJournal> journal;
  if (options.out)
    journal.emplace(*options.out, result.space, options.shard, facts_of(result.space, all));
  for (SweepRow& row : all) {
    if (options.shard.has(row.index)) result.rows.push_back(std::move(row));
  }
  if (journal)
    apply_all(journal->results(), (*options.out / "journal.jsonl").string(), result.rows);
  const fs::path scratch =
      options.out ? *options.out / "running" : fs::temp_directory_path() / "trellis_sweep";
  std::optional<Estimator> estimator;
  if (request.fast) estimator.emplace(result.space, result.rows);
  Queue queue(result.rows, result.top);
  Simulation(result.space, result.rows, journal ? &*journal : nullptr,
             estimator ? &*estimator : nullptr, scratch)
      .run(queue, jobs);
  if (estimator) estimator->forget_needless(result.top);
  (void)settle(result.rows, result.top);
  return result;
}

SweepResult merge_sweep(const std::vector<fs::path>& folders) {
  std::vector<JournalFile> journals;
  for (const fs::path& folder : folders) journals.push_back(read_sweep_journal(folder));
  const SweepRequest request = request_of(journals.front());
  SweepResult result{open_space(request), request.top, {}, {}};
  result.rows = judge(result.space, 0);
  apply_all(merge_journals(journals, facts_of(result.space, result.rows)),
            journals.front().file.string(), result.rows);
  const std::size_t shards = parse_shard(journals.front().head.at("shard")).count;
  if (const std::size_t open = settle(result.rows, result.top); open > 0) {
    const auto first =
        std::find_if(result.rows.begin(), result.rows.end(),
                     [](const SweepRow& row) { return row.status == SweepStatus::kOpen; });
    throw ConfigError(
        fmt::format("{} candidates have no result yet, the first of them {} in shard {}/{}: run "
                    "the unfinished shards again with their command, they go on",
                    open, to_string(first->candidate), first->index % shards + 1, shards));
  }
  return result;
}

}  // namespace trellis::analysis
