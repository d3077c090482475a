#include "analysis/schedule/schedule_drawing.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "traces/report/text_table.h"
#include "traces/report/validity.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;
using trainer::PassSlot;
using trainer::PipelineShape;
using trainer::ScheduleTiming;

char chunk_letter(int chunk) { return static_cast<char>('a' + chunk % 26); }

std::string label_of(const PassSlot& slot, const PipelineShape& shape) {
  std::string label = std::to_string(slot.task.microbatch);
  if (shape.num_chunks > 1) label += chunk_letter(slot.task.chunk);
  return label;
}

std::string amount_text(const SchedulePlan& plan, std::int64_t amount, std::int64_t end) {
  return plan.in_time ? milliseconds_text(amount)
                      : share_text(static_cast<double>(amount), static_cast<double>(end));
}

/// A stretch of the step, and how many columns show it.
struct Window {
  std::int64_t from = 0, to = 0;
  int columns = 0;
};

/// The whole step; when a micro-batch would have fewer than eight columns, its beginning and its
/// end, where the bubble is.
std::vector<Window> windows_of(const ScheduleTiming& timing, int width) {
  constexpr double kColumnsPerPair = 8;
  const double pair = static_cast<double>(timing.busy(0)) /
                      (timing.shape.num_microbatches * timing.shape.num_chunks);
  if (static_cast<double>(timing.end) / pair * kColumnsPerPair <= width)
    return {{0, timing.end, width}};
  const int columns = (width - 3) / 2;
  const auto length = static_cast<std::int64_t>(columns * pair / kColumnsPerPair);
  if (2 * length >= timing.end) return {{0, timing.end, width}};
  return {{0, length, columns}, {timing.end - length, timing.end, columns}};
}

/// One rank's passes in a window. Labels are where a pass begins.
std::string draw(const ScheduleTiming& timing, int rank, const Window& window) {
  std::string line(static_cast<std::size_t>(window.columns), '.');
  const auto column = [&](std::int64_t at) {
    const double share = static_cast<double>(std::clamp(at, window.from, window.to) - window.from) /
                         static_cast<double>(window.to - window.from);
    return static_cast<std::size_t>(std::llround(share * window.columns));
  };
  for (const PassSlot& slot : timing.ranks[static_cast<std::size_t>(rank)]) {
    const std::size_t first = column(slot.start), end = column(slot.end);
    const std::string label = label_of(slot, timing.shape);
    for (std::size_t i = first; i < end; ++i) line[i] = slot.task.is_forward() ? '>' : '<';
    if (slot.start >= window.from && label.size() < end - first)
      line.replace(first, label.size(), label);
  }
  return line;
}

std::string layers_text(const SchedulePlan& plan, int rank) {
  if (plan.layers.empty()) return "-";
  std::string text;
  for (int chunk = 0; chunk < plan.shape.num_chunks; ++chunk) {
    const auto& range = plan.layers[static_cast<std::size_t>(plan.shape.stage(rank, chunk))];
    text += fmt::format("{}{}–{}", chunk > 0 ? ", " : "", range.first, range.end - 1);
  }
  return text;
}

/// Costs of a rank's chunks together, of one micro-batch.
trainer::PassCost of_rank(const SchedulePlan& plan, int rank) {
  trainer::PassCost sum{0, 0};
  for (int chunk = 0; chunk < plan.shape.num_chunks; ++chunk) {
    const trainer::PassCost& cost =
        plan.costs[static_cast<std::size_t>(plan.shape.stage(rank, chunk))];
    sum.forward += cost.forward;
    sum.backward += cost.backward;
  }
  return sum;
}

/// Text of a pass's time. If the plan has no unit of time, it is in mean forwards of a rank.
std::string pass_text(const SchedulePlan& plan, std::int64_t amount) {
  if (plan.in_time) return milliseconds_text(amount);
  std::int64_t sum = 0;
  for (const trainer::PassCost& cost : plan.costs) sum += cost.forward;
  return fmt::format("{:.3f}",
                     static_cast<double>(amount) * plan.shape.num_ranks / static_cast<double>(sum));
}

std::string ranks_text(const SchedulePlan& plan, const ScheduleTiming& timing) {
  using Align = TextTable::Align;
  TextTable table({{"rank"},
                   {"layers", Align::kLeft},
                   {"forward"},
                   {"backward"},
                   {"busy"},
                   {"idle"},
                   {"idle"},
                   {plan.shape.num_chunks > 1 ? "in flight, (micro-batch, chunk)"
                                              : "micro-batches in flight"}});
  for (int rank = 0; rank < plan.shape.num_ranks; ++rank) {
    const trainer::PassCost cost = of_rank(plan, rank);
    const std::int64_t idle = timing.end - timing.busy(rank);
    table.add({std::to_string(rank), layers_text(plan, rank), pass_text(plan, cost.forward),
               pass_text(plan, cost.backward), amount_text(plan, timing.busy(rank), timing.end),
               amount_text(plan, idle, timing.end),
               share_text(static_cast<double>(idle), static_cast<double>(timing.end)),
               std::to_string(timing.peak_in_flight(rank))});
  }
  return table.text();
}

std::string formula_text(const PipelineShape& shape) {
  return fmt::format("(PP − 1) / ({}micro-batches + PP − 1) = {} / {} = {:.2f} %",
                     shape.num_chunks > 1 ? "VPP · " : "", shape.num_ranks - 1,
                     shape.num_chunks * shape.num_microbatches + shape.num_ranks - 1,
                     100 * trainer::uniform_bubble(shape));
}

}  // namespace

BalancedPlan balanced(const SchedulePlan& plan, const ScheduleTiming& timing) {
  if (!plan.layer_costs)
    throw ConfigError(
        "--balance: cuts of which model? Expected a configuration: trellis schedule CFG --balance");
  BalancedPlan better{
      with_layers(plan, trainer::balance_layers(*plan.layer_costs, plan.shape.num_stages())),
      {},
      false};
  better.timing = trainer::time_schedule(plan.shape, better.plan.costs);
  better.moved = better.timing.end < timing.end;
  if (!better.moved) better = {plan, timing, false};
  return better;
}

std::string pipeline_cuts(const SchedulePlan& plan) {
  std::string text = "[";
  for (std::size_t i = 0; i + 1 < plan.layers.size(); ++i)
    text += fmt::format("{}{}.{}", i > 0 ? ", " : "", plan.layer_prefix, plan.layers[i].end - 1);
  return text + "]";
}

std::string timeline_text(const ScheduleTiming& timing, int width) {
  std::string text;
  for (int rank = 0; rank < timing.shape.num_ranks; ++rank) {
    std::string line;
    for (const Window& window : windows_of(timing, width))
      line += (line.empty() ? "" : " … ") + draw(timing, rank, window);
    text += fmt::format("  rank {:<3} {}\n", rank, line);
  }
  return text;
}

std::string schedule_text(const SchedulePlan& plan, const ScheduleTiming& timing, int width) {
  const PipelineShape& shape = plan.shape;
  std::string text = fmt::format(
      "{}: PP {}{}, {} micro-batches; costs: {}; a backward is {:.2f} forwards\n\n",
      shape.num_ranks == 1   ? "No pipeline"
      : shape.num_chunks > 1 ? "Interleaved 1F1B"
                             : "1F1B",
      shape.num_ranks, shape.num_chunks > 1 ? fmt::format(" × VPP {}", shape.num_chunks) : "",
      shape.num_microbatches, terminal_line(plan.costs_from), plan.backward_ratio);
  text += timeline_text(timing, width);
  const std::vector<Window> windows = windows_of(timing, width);
  text += fmt::format(
      "  3> forward of micro-batch 3, 3< backward{}, . idle{}{}\n\n",
      shape.num_chunks > 1 ? ", letters: virtual stages" : "",
      windows.size() > 1 ? "; only the beginning and the end of the step" : "",
      plan.in_time
          ? fmt::format("; a column is {}",
                        milliseconds_text((windows[0].to - windows[0].from) / windows[0].columns))
          : "; forward and backward below: in mean forwards of a rank");
  text += ranks_text(plan, timing) + "\n";
  text += fmt::format("Bubble {:.2f} % of all ranks' time; equal stages: {}\n",
                      100 * timing.bubble(), formula_text(shape));
  if (plan.in_time) text += fmt::format("All passes: {}\n", milliseconds_text(timing.end));
  if (plan.in_time)
    text += "The times' step is " + (plan.validity.is_null() ? "of a report that knows no range\n"
                                                             : validity_line(plan.validity));
  if (plan.measured_step_ps) {
    const std::int64_t drawn = timing.end + plan.outside_passes_ps;
    text += fmt::format("With DP communication and optimizer {}; the report's step: {} ({})\n",
                        milliseconds_text(drawn), milliseconds_text(*plan.measured_step_ps),
                        change_in_percent(*plan.measured_step_ps, drawn));
  }
  return text;
}

std::string balance_text(const SchedulePlan& plan, const ScheduleTiming& timing,
                         const BalancedPlan& better) {
  if (!better.moved) return "Balance: no other cuts make the passes shorter with these costs\n";
  std::string text = fmt::format(
      "Balance: the passes take {:.2f} % less with\n  model.pipeline_cuts: {}\n",
      100 * (1 - static_cast<double>(better.timing.end) / static_cast<double>(timing.end)),
      pipeline_cuts(better.plan));
  if (plan.in_time)
    text += fmt::format("  {} → {}\n", milliseconds_text(timing.end),
                        milliseconds_text(better.timing.end));
  return text + ranks_text(better.plan, better.timing) +
         fmt::format("Bubble {:.2f} %\n", 100 * better.timing.bubble());
}

std::string schedule_svg(const SchedulePlan& plan, const ScheduleTiming& timing) {
  constexpr int kLeft = 70, kTop = 34, kRow = 26, kWidth = 1400;
  const int height = kTop + kRow * plan.shape.num_ranks + 30;
  const double scale =
      static_cast<double>(kWidth) / static_cast<double>(std::max<std::int64_t>(timing.end, 1));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"11\">\n",
      kLeft + kWidth + 20, height);
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += fmt::format(
      "<text x=\"{}\" y=\"18\" font-size=\"13\">PP {} · VPP {} · {} micro-batches, {}: bubble "
      "{:.2f} %</text>\n",
      kLeft, plan.shape.num_ranks, plan.shape.num_chunks, plan.shape.num_microbatches,
      plan.in_time ? milliseconds_text(timing.end) : "relative costs", 100 * timing.bubble());
  for (int rank = 0; rank < plan.shape.num_ranks; ++rank) {
    const int y = kTop + rank * kRow;
    svg += fmt::format(
        "<text x=\"8\" y=\"{}\">rank {}</text>\n<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
        "fill=\"#eeeeee\"/>\n",
        y + 15, rank, kLeft, y, kWidth, kRow - 4);
    for (const PassSlot& slot : timing.ranks[static_cast<std::size_t>(rank)]) {
      const double x = kLeft + static_cast<double>(slot.start) * scale,
                   w = static_cast<double>(slot.end - slot.start) * scale;
      const std::string label = label_of(slot, plan.shape);
      // A virtual stage is a shade: the later, the darker.
      const int light = 72 - 40 * slot.task.chunk / std::max(1, plan.shape.num_chunks);
      svg += fmt::format(
          "<g><title>{} {}</title><rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" "
          "fill=\"hsl({},55%,{}%)\" stroke=\"white\" stroke-width=\"0.5\"/>",
          slot.task.is_forward() ? "forward" : "backward", label, x, y, w, kRow - 4,
          slot.task.is_forward() ? 210 : 130, light);
      if (w > 7.0 * static_cast<double>(label.size()))
        svg += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                           x + w / 2, y + 15, label);
      svg += "</g>\n";
    }
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\" fill=\"#555555\">blue: forward, green: backward, grey: idle; costs: "
      "{}</text>\n</svg>\n",
      kLeft, height - 10, plan.in_time ? "times of a run" : xml_text(plan.costs_from));
  return svg;
}

json schedule_json(const SchedulePlan& plan, const ScheduleTiming& timing) {
  const PipelineShape& shape = plan.shape;
  json ranks = json::array();
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    json slots = json::array();
    for (const PassSlot& slot : timing.ranks[static_cast<std::size_t>(rank)]) {
      slots.push_back({{"pass", slot.task.is_forward() ? "forward" : "backward"},
                       {"microbatch", slot.task.microbatch},
                       {"chunk", slot.task.chunk},
                       {"start", slot.start},
                       {"end", slot.end}});
    }
    json layers = json::array();
    for (int chunk = 0; chunk < (plan.layers.empty() ? 0 : shape.num_chunks); ++chunk) {
      const auto& range = plan.layers[static_cast<std::size_t>(shape.stage(rank, chunk))];
      layers.push_back({range.first, range.end});
    }
    ranks.push_back({{"rank", rank},
                     {"layers", std::move(layers)},
                     {"busy", timing.busy(rank)},
                     {"idle", timing.end - timing.busy(rank)},
                     {"peak_in_flight", timing.peak_in_flight(rank)},
                     {"slots", std::move(slots)}});
  }
  json document = {{"schema", "trellis.schedule/1"},
                   {"pipeline_model_parallel_size", shape.num_ranks},
                   {"virtual_pipeline_model_parallel_size", shape.num_chunks},
                   {"num_microbatches", shape.num_microbatches},
                   {"costs_from", plan.costs_from},
                   {"unit", plan.in_time ? "ps" : "relative"},
                   {"backward_ratio", plan.backward_ratio},
                   {"end", timing.end},
                   {"bubble", timing.bubble()},
                   {"bubble_of_equal_stages", trainer::uniform_bubble(shape)},
                   {"ranks", std::move(ranks)}};
  if (!plan.layers.empty()) document["pipeline_cuts"] = pipeline_cuts(plan);
  if (plan.in_time) document["validity"] = plan.validity;
  if (plan.measured_step_ps) document["measured_step_ps"] = *plan.measured_step_ps;
  return document;
}

}  // namespace trellis::analysis
