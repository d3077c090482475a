#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/number_text.h"
#include "traces/report/memory_plan.h"
#include "traces/report/software_memory.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using Align = TextTable::Align;

constexpr std::array<const char*, 6> kCategories{"parameter",  "gradient",  "optimizer_state",
                                                 "activation", "temporary", "input"};
constexpr double kGiB = 1 << 30;
constexpr std::size_t kLiveRows = 8;

std::int64_t bytes(const json& object, const std::string& key) {
  return object.at(key).get<std::int64_t>();
}
std::string mib(std::int64_t n) { return significant(static_cast<double>(n) / (1 << 20)); }
std::string gib(std::int64_t n) { return fmt::format("{:.2f} GiB", static_cast<double>(n) / kGiB); }
std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string head(const json& run) {
  const auto number = [&](const char* key) { return run.at(key).get<int>(); };
  std::string text = fmt::format(
      "{}: {} parameters on {} × {}, {} ranks (TP {} × PP {} × DP {}",
      run.at("name").get<std::string>(), thousands(run.at("parameters").get<std::int64_t>()),
      number("nodes"), run.at("instance").get<std::string>(), number("world_size"),
      number("tensor_model_parallel_size"), number("pipeline_model_parallel_size"),
      number("data_parallel_size"));
  if (number("virtual_pipeline_model_parallel_size") > 1)
    text += fmt::format(", {} virtual stages", number("virtual_pipeline_model_parallel_size"));
  text += fmt::format(")\n{} micro-batches of {} × {} tokens, {}{}{}, recompute {}\n",
                      number("num_microbatches"), number("micro_batch_size"),
                      number("sequence_length"), run.at("precision").get<std::string>(),
                      run.at("fsdp").get<bool>()    ? ", fully sharded"
                      : run.at("zero1").get<bool>() ? ", ZeRO-1"
                                                    : "",
                      run.at("sequence_parallel").get<bool>() ? ", sequence parallel" : "",
                      run.at("recompute").get<std::string>());
  return text;
}

std::int64_t beyond(const json& plan) {
  std::int64_t sum = 0;
  for (const json& row : plan.at("beyond_allocator")) sum += bytes(row, "bytes_per_core");
  return sum;
}

const json& worst(const json& plan) {
  return *std::ranges::find_if(
      plan.at("ranks"), [&](const json& rank) { return rank.at("rank") == plan.at("worst_rank"); });
}

/// The verdict of published software, and what its estimate is made of.
std::string software_verdict_text(const json& plan, const std::string& of,
                                  const std::string& where) {
  const json& software = plan.at("software");
  const std::string verdict = plan.at("verdict").get<std::string>(),
                    name = software.at("software").get<std::string>();
  const std::int64_t headroom = bytes(plan, "headroom_bytes"),
                     held = bytes(software, "scratch_of_this_trainer_bytes");
  const std::string judged = verdict == "fits"    ? "FITS"
                             : verdict == "tight" ? "FITS, TIGHT"
                                                  : "DOES NOT FIT";
  std::string text = fmt::format("Verdict for {} on a device, estimated: {}: {}, {} {}, {} on {}\n",
                                 name, judged, of, headroom < 0 ? "too much by" : "headroom",
                                 gib(std::abs(headroom)), headroom < 0 ? "most" : "least", where);
  if (verdict == "tight")
    text += fmt::format(
        "  the headroom is less than {:.0f} % of the core, by which the estimate is off on "
        "published runs that fit: a device may refuse this run\n",
        100 * software.at("relative_error").get<double>());
  text += fmt::format(
      "  = {} of inputs and outputs (weights, gradients, states, data) + {} of scratch",
      gib(bytes(software, "inputs_outputs_bytes")), gib(bytes(software, "scratch_bytes")));
  if (held > 0)
    text += fmt::format(
        " ({:.2f} × the {} that this trainer's operators hold)",
        static_cast<double>(bytes(software, "scratch_bytes")) / static_cast<double>(held),
        gib(held));
  if (bytes(software, "unaliased_gradient_bytes") > 0)
    text += fmt::format(" + {} of gradients that functionalization does not alias",
                        gib(bytes(software, "unaliased_gradient_bytes")));
  if (bytes(software, "cut_bytes") > 0)
    text += fmt::format(" + {} of tensors between loss and derivative, which are two graphs there",
                        gib(bytes(software, "cut_bytes")));
  text += fmt::format(" + {} of the runtime\n", gib(bytes(software, "runtime_bytes")));
  const auto allocator = std::ranges::max_element(
      plan.at("ranks"), {}, [](const json& rank) { return bytes(rank, "peak_reserved_bytes"); });
  return text + fmt::format("  this trainer itself takes {}\n",
                            gib(bytes(*allocator, "peak_reserved_bytes")));
}

std::string verdict_text(const json& plan) {
  const std::string verdict = plan.at("verdict").get<std::string>();
  const std::int64_t headroom = bytes(plan, "headroom_bytes");
  const int per_chip = plan.at("run").at("logical_cores_per_chip").get<int>();
  const std::string where =
      fmt::format("rank {} (pipeline rank {}) in phase {}", bytes(plan, "worst_rank"),
                  worst(plan).at("pipeline_rank").get<int>(),
                  or_dash(plan.at("worst_phase").get<std::string>()));
  const std::string of = fmt::format(
      "{} of {} per logical core ({} per chip: {} of {})", gib(bytes(plan, "needed_bytes")),
      gib(bytes(plan, "capacity_bytes")), per_chip, gib(per_chip * bytes(plan, "needed_bytes")),
      gib(per_chip * bytes(plan, "capacity_bytes")));
  const std::string share =
      fmt::format("{:.1f} %", 100 * std::abs(plan.at("headroom_share").get<double>()));
  if (plan.contains("software")) return software_verdict_text(plan, of, where);
  if (verdict == "does_not_fit") {
    std::string text = fmt::format("Verdict: DOES NOT FIT: {}, {} too much, most on {}\n", of,
                                   gib(-headroom), where);
    if (headroom >= 0)
      text = fmt::format(
          "Verdict: DOES NOT FIT: {}, in pieces that are too small: the allocator refused one on "
          "{}\n",
          of, where);
    const json& refusal = worst(plan).at("first_refusal");
    return text +
           fmt::format(
               "  the first tensor that is refused: {} in phase {}, layer {}, with {} allocated\n",
               human_bytes(bytes(refusal, "bytes")),
               or_dash(refusal.at("phase").get<std::string>()),
               or_dash(refusal.at("layer").get<std::string>()),
               gib(bytes(refusal, "allocated_before")));
  }
  std::string text =
      fmt::format("Verdict: {}: {}, headroom {} ({}), least on {}\n",
                  verdict == "fits" ? "FITS" : "FITS, TIGHT", of, gib(headroom), share, where);
  if (verdict == "tight")
    text += fmt::format(
        "  the headroom is less than the {} that the runtime is estimated to take in addition "
        "(below): "
        "a device may refuse this run\n",
        gib(beyond(plan)));
  return text;
}

/// Ranks that take the same in every phase.
struct RankClass {
  const json* first;
  std::int64_t count;
};

std::vector<RankClass> classes_of(const json& ranks) {
  std::vector<RankClass> classes;
  for (const json& rank : ranks) {
    const auto same = std::ranges::find_if(classes, [&](const RankClass& c) {
      return c.first->at("phases") == rank.at("phases") && c.first->at("fits") == rank.at("fits");
    });
    if (same == classes.end()) {
      classes.push_back({&rank, bytes(rank, "represents")});
    } else {
      same->count += bytes(rank, "represents");
    }
  }
  return classes;
}

std::string phases_text(const json& plan) {
  std::vector<TextTable::Column> columns{{"rank", Align::kLeft}, {"phase", Align::kLeft}};
  for (const char* category : kCategories) columns.push_back({category, Align::kRight});
  columns.push_back({"allocated", Align::kRight});
  columns.push_back({"reserved", Align::kRight});
  TextTable table(columns);
  for (const RankClass& each : classes_of(plan.at("ranks"))) {
    const json& rank = *each.first;
    bool first = true;
    for (const json& phase : rank.at("phases")) {
      std::string label = first ? fmt::format("{} ×{}{}", bytes(rank, "rank"), each.count,
                                              rank.at("fits").get<bool>() ? "" : " does not fit")
                                : "";
      const std::string name = phase.at("phase").get<std::string>();
      std::vector<std::string> cells{std::move(label), name.empty() ? "between phases" : name};
      for (const char* category : kCategories)
        cells.push_back(mib(bytes(phase.at("at_peak"), std::string(category) + "_bytes")));
      cells.push_back(mib(bytes(phase, "peak_bytes")));
      cells.push_back(mib(bytes(phase, "peak_reserved_bytes")));
      table.add(std::move(cells));
      first = false;
    }
  }
  return "\nPeak of each phase on one logical core, MiB (first of equal ranks, and their "
         "number)\n" +
         table.text();
}

std::string live_text(const json& plan) {
  const json& rank = worst(plan);
  const json& rows = rank.at("live_at_peak");
  TextTable table({{"MiB", Align::kRight},
                   {"share", Align::kRight},
                   {"tensors", Align::kRight},
                   {"category", Align::kLeft},
                   {"component", Align::kLeft},
                   {"made in", Align::kLeft}});
  std::int64_t rest = bytes(rank, "peak_bytes");
  for (std::size_t i = 0; i < std::min(rows.size(), kLiveRows); ++i) {
    const json& row = rows[i];
    rest -= bytes(row, "bytes");
    table.add({mib(bytes(row, "bytes")),
               share_text(static_cast<double>(bytes(row, "bytes")),
                          static_cast<double>(bytes(rank, "peak_bytes"))),
               std::to_string(bytes(row, "tensors")), row.at("category").get<std::string>(),
               or_dash(row.at("component").get<std::string>()),
               or_dash(row.at("phase").get<std::string>())});
  }
  std::string text =
      fmt::format("\nWhat lives at the peak of rank {}\n{}", bytes(rank, "rank"), table.text());
  if (rows.size() > kLiveRows)
    text += fmt::format("  and {} more sorts, {}\n", rows.size() - kLiveRows, human_bytes(rest));
  return text;
}

std::string list(const json& lines) {
  std::string text;
  for (const json& line : lines) text += (text.empty() ? "" : "; ") + line.get<std::string>();
  return text;
}

std::string not_counted_text(const json& plan) {
  std::string text = plan.contains("software") ? "\nThe runtime's own, in the verdict\n"
                                               : "\nAlso, not in the verdict\n";
  for (const json& row : plan.at("beyond_allocator")) {
    text += fmt::format("  {}: {} per core ({})\n", row.at("what").get<std::string>(),
                        gib(bytes(row, "bytes_per_core")), row.at("evidence").get<std::string>());
  }
  text += "    source: " + plan.at("beyond_allocator").at(0).at("source").get<std::string>() +
          "\n  not modelled: " + list(plan.at("not_modelled")) + "\n";
  return text;
}

std::string host_text(const json& host) {
  const std::string verdict = host.at("verdict").get<std::string>();
  const std::int64_t capacity = bytes(host, "capacity_bytes"),
                     counted = bytes(host, "counted_bytes"),
                     processes = bytes(host, "processes_bytes");
  std::string text =
      fmt::format("\nVerdict for the host memory of a node: {}: {} counted + {} estimated of {}\n",
                  verdict == "fits"    ? "FITS"
                  : verdict == "tight" ? "FITS, TIGHT"
                                       : "DOES NOT FIT",
                  gib(counted), gib(processes), gib(capacity));
  if (verdict == "does_not_fit")
    text +=
        "  what is counted alone is more than the host has: lower trainer.sequential_move_factor, "
        "data.global_batch_size or trainer.devices\n";
  text += fmt::format(
      "  counted: the larger of weights of {} ranks that are built at once, {}, and samples in "
      "memory, {} ({})\n",
      bytes(host, "ranks_that_build_at_once"), gib(bytes(host, "weights_while_building_bytes")),
      gib(bytes(host, "batches_bytes")), host.at("evidence").get<std::string>());
  text += fmt::format("  estimated: processes and runtime {} ({})\n", gib(processes),
                      host.at("processes_source").get<std::string>());
  return text + "  not modelled: " + list(host.at("not_modelled")) + "\n";
}

std::string change_result(const json& change) {
  const std::string status = change.at("status").get<std::string>();
  if (status == "fits" || status == "tight") {
    return fmt::format("{} of {}, headroom {}{}", gib(bytes(change, "needed_bytes")),
                       gib(bytes(change, "capacity_bytes")), gib(bytes(change, "headroom_bytes")),
                       status == "tight" ? ", tight" : "");
  }
  if (status == "does_not_fit")
    return fmt::format("{} of {}: not enough", gib(bytes(change, "needed_bytes")),
                       gib(bytes(change, "capacity_bytes")));
  return status + ": " + change.at("reason").get<std::string>();
}

std::string changes_text(const json& plan, bool all) {
  if (!plan.contains("changes")) return "";
  TextTable table({{"then it takes", Align::kLeft}, {"change", Align::kLeft}});
  std::string not_enough;
  for (const json& change : plan.at("changes")) {
    const std::string status = change.at("status").get<std::string>();
    if (all || status == "fits" || status == "tight") {
      table.add({change_result(change), change.at("arguments").get<std::string>()});
    } else if (status == "does_not_fit") {
      not_enough += (not_enough.empty() ? "" : "; ") + change.at("arguments").get<std::string>();
    }
  }
  std::string text =
      table.empty()
          ? "\nNo change that was tried fits.\n"
          : "\nChanges, each checked by a separate run, the smallest first\n" + table.text();
  if (!not_enough.empty()) text += "  not enough: " + not_enough + "\n";
  return text;
}

}  // namespace

std::string memory_plan_text(const json& raw, bool all) {
  const json plan = one_line_texts(raw);
  return head(plan.at("run")) + verdict_text(plan) + phases_text(plan) + live_text(plan) +
         not_counted_text(plan) + host_text(plan.at("host")) + changes_text(plan, all);
}

}  // namespace trellis::analysis
