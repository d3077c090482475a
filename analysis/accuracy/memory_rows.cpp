#include "analysis/accuracy/memory_rows.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/published_rows.h"
#include "base/process/parallel_for.h"
#include "base/process/run_self.h"
#include "base/yaml/yaml.h"
#include "traces/report/text_table.h"
#include "traces/report/validity.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

MemoryRow read_row(const YamlMap& row) {
  MemoryRow out;
  out.id = row.required<std::string>("id");
  out.source = row.required<std::string>("source");
  out.config = (published_directory() / row.required<std::string>("config")).string();
  out.instance = row.required<std::string>("instance");
  out.overrides = row.get<std::vector<std::string>>("overrides", {});
  out.nodes = row.get<int>("nodes", 1);
  out.fits = row.required<bool>("fits");
  out.functionalization = row.get<bool>("functionalization", false);
  out.published_gib = row.get<double>("gib_per_core", 0);
  if (out.nodes < 1) row.problem("nodes", fmt::format("expected at least 1, got {}", out.nodes));
  if (out.published_gib < 0) row.problem("gib_per_core", "must be positive");
  row.reject_unknown();
  return out;
}

std::vector<std::string> arguments(const MemoryRow& row) {
  std::vector<std::string> words = {"memory", row.config};
  words.insert(words.end(), row.overrides.begin(), row.overrides.end());
  words.insert(words.end(), {"--instance", row.instance, "--nodes", std::to_string(row.nodes),
                             "--no-changes", "--json", "--threads", "1"});
  if (row.functionalization) words.emplace_back("--functionalization");
  return words;
}

MemoryAnswer answer_of(const ChildResult& child) {
  MemoryAnswer answer;
  const json plan = json::parse(child.out, nullptr, false);
  if (!plan.is_object()) {
    const std::size_t begin = child.err.rfind("error: ");
    answer.error = fmt::format("exit code {}: {}", child.exit_code,
                               begin == std::string::npos
                                   ? child.err.substr(0, child.err.find('\n'))
                                   : child.err.substr(begin, child.err.find('\n', begin) - begin));
    return answer;
  }
  answer.verdict = plan.at("verdict").get<std::string>();
  answer.needed_gib = plan.at("needed_bytes").get<double>() / (1 << 30);
  answer.capacity_gib = plan.at("capacity_bytes").get<double>() / (1 << 30);
  return answer;
}

/// 0: wrong, 1: could not be run, 2: right.
int rank_of(const MemoryRow& row, const MemoryAnswer& answer) {
  return !answer.error.empty() ? 1 : answer.fits() == row.fits ? 2 : 0;
}

constexpr const char* kWords[] = {"WRONG", "not run", "right"};

std::vector<std::size_t> order_of(const std::vector<MemoryRow>& rows,
                                  const std::vector<MemoryAnswer>& answers) {
  std::vector<std::size_t> order(rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return rank_of(rows[i], answers[i]); });
  return order;
}

}  // namespace

std::vector<MemoryRow> read_memory_rows() {
  const YamlDocument document = YamlDocument::load(published_directory() / "memory.yaml");
  const YamlMap root = document.root();
  std::vector<MemoryRow> rows;
  std::set<std::string> ids;
  for (const YamlMap& row : root.list_of_maps("rows")) {
    rows.push_back(read_row(row));
    if (!ids.insert(rows.back().id).second)
      row.problem("id", "\"" + rows.back().id + "\" is there twice");
  }
  if (rows.empty()) root.problem("rows", "is missing or empty");
  root.reject_unknown();
  document.problems().throw_if_any();
  return rows;
}

std::vector<MemoryAnswer> answer_memory_rows(
    const std::vector<MemoryRow>& rows,
    const std::function<void(const MemoryRow&, const MemoryAnswer&)>& done) {
  std::vector<MemoryAnswer> answers(rows.size());
  std::vector<std::vector<std::string>> children;
  for (const MemoryRow& row : rows) children.push_back(arguments(row));
  run_selves(children, host_cores(), [&](std::size_t child, const ChildResult& result) {
    answers[child] = answer_of(result);
    done(rows[child], answers[child]);
  });
  return answers;
}

std::string memory_accuracy_text(const std::vector<MemoryRow>& rows,
                                 const std::vector<MemoryAnswer>& answers) {
  using Align = TextTable::Align;
  TextTable table({{"verdict", Align::kLeft},
                   {"row", Align::kLeft},
                   {"published", Align::kLeft},
                   {"published GiB", Align::kRight},
                   {"model", Align::kLeft},
                   {"model GiB", Align::kRight},
                   {"off", Align::kRight},
                   {"of GiB", Align::kRight}});
  std::size_t right = 0, run = 0;
  std::string errors;
  for (const std::size_t i : order_of(rows, answers)) {
    const MemoryRow& row = rows[i];
    const MemoryAnswer& answer = answers[i];
    const int rank = rank_of(row, answer);
    right += rank == 2 ? 1 : 0;
    run += rank == 1 ? 0 : 1;
    if (rank == 1) errors += fmt::format("  {}: {}\n", row.id, answer.error);
    const bool both = row.published_gib > 0 && rank != 1;
    const std::string published =
        row.published_gib > 0 ? fmt::format("{:.2f}", row.published_gib) : "-";
    const std::string off =
        both ? fmt::format("{:+.1f}%", 100 * (answer.needed_gib / row.published_gib - 1)) : "-";
    table.add({kWords[rank], row.id, row.fits ? "fits" : "out of memory", published,
               rank == 1 ? "-" : answer.verdict,
               rank == 1 ? "-" : fmt::format("{:.2f}", answer.needed_gib), off,
               rank == 1 ? "-" : fmt::format("{:.2f}", answer.capacity_gib)});
  }
  return "Published runs that fitted or were out of memory, compared with `trellis memory`: GiB "
         "per "
         "logical core, for the software that the run was of\n" +
         table.text() +
         fmt::format("{} of {} verdicts are right; {} rows could not be run\n", right, run,
                     rows.size() - run) +
         errors;
}

json memory_accuracy_json(const std::vector<MemoryRow>& rows,
                          const std::vector<MemoryAnswer>& answers) {
  json list = json::array();
  for (const std::size_t i : order_of(rows, answers)) {
    json row = {{"id", rows[i].id},
                {"source", rows[i].source},
                {"published_fits", rows[i].fits},
                {"result", kWords[rank_of(rows[i], answers[i])]}};
    if (rows[i].published_gib > 0) row["published_gib_per_core"] = rows[i].published_gib;
    if (answers[i].error.empty()) {
      row.update({{"verdict", answers[i].verdict},
                  {"needed_gib", answers[i].needed_gib},
                  {"capacity_gib", answers[i].capacity_gib}});
    } else {
      row["error"] = answers[i].error;
    }
    list.push_back(std::move(row));
  }
  return {
      {"schema", "trellis.accuracy_memory/1"}, {"subject", "memory"}, {"rows", std::move(list)}};
}

}  // namespace trellis::analysis
