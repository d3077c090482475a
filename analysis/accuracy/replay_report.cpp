#include "analysis/accuracy/replay_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

namespace trellis::analysis {
namespace {

using nlohmann::json;
using ReplayedParts = std::vector<const ReplayedPart*>;

const char* transfers_word(Transfers transfers) {
  return transfers == Transfers::kTraced ? "traced" : "modelled";
}

std::vector<std::pair<std::string, ReplayedParts>> by_track(
    const std::vector<ReplayedPart>& parts) {
  std::vector<std::pair<std::string, ReplayedParts>> groups;
  for (const auto& part : parts) {
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& group) { return group.first == part.track; });
    if (found == groups.end()) found = groups.insert(groups.end(), {part.track, {}});
    found->second.push_back(&part);
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

template <typename Error>
Summary summary_of(const ReplayedParts& parts, Error error) {
  std::vector<double> errors;
  for (const auto* part : parts) errors.push_back(error(*part));
  return summarize(std::move(errors));
}

double start_error(const ReplayedPart& part) { return part.error(); }
double end_error(const ReplayedPart& part) { return part.end_error(); }

const ReplayedPart& worst_of(const ReplayedParts& parts) {
  return **std::max_element(parts.begin(), parts.end(), [](const auto* a, const auto* b) {
    return std::abs(a->error()) < std::abs(b->error());
  });
}

ReplayedParts all_of(const std::vector<ReplayedPart>& parts) {
  ReplayedParts all;
  for (const auto& part : parts) all.push_back(&part);
  return all;
}

void add_row(std::string& out, const std::string& name, const ReplayedParts& parts) {
  const Summary s = summary_of(parts, start_error);
  const ReplayedPart& worst = worst_of(parts);
  out += fmt::format("  {:<18}{:>6}{:>10.3f}{:>9.3f}{:>+9.3f}  {} pc {}\n", name, parts.size(),
                     s.median, s.p90, worst.error(), worst.name, worst.pc);
}

std::string instructions_text(const Replay& replay) {
  std::string out = fmt::format("\n  {:<18}{:>6}{:>10}{:>9}{:>9}  {}\n", "start of", "n",
                                "median µs", "p90", "worst", "which");
  for (const auto& [track, parts] : by_track(replay.instructions)) add_row(out, track, parts);
  add_row(out, "all instructions", all_of(replay.instructions));
  return out;
}

std::string queues_text(const Replay& replay) {
  if (replay.queues.empty()) return "";
  std::string out =
      fmt::format("\n  {:<18}{:>6}{:>24}{:>24}\n  {:<24}{:>24}{:>24}\n", "data of", "n", "first µs",
                  "last µs", "", "median p90 worst", "median p90 worst");
  for (const auto& [track, parts] : by_track(replay.queues)) {
    const Summary first = summary_of(parts, start_error), last = summary_of(parts, end_error);
    out +=
        fmt::format("  {:<18}{:>6}{:>24}{:>24}\n", track, parts.size(),
                    replay.transfers == Transfers::kTraced
                        ? std::string("as traced")
                        : fmt::format("{:.3f} {:.3f} {:.3f}", first.median, first.p90, first.worst),
                    fmt::format("{:.3f} {:.3f} {:.3f}", last.median, last.p90, last.worst));
  }
  return out;
}

std::string left_text(const Replay& replay) {
  if (replay.left.key.empty())
    return fmt::format(
        "\nleft: {:.3f} µs an instruction in the mean; no constant alone explains a "
        "tenth of it\n",
        replay.mean_error());
  return fmt::format(
      "\nleft: {:.3f} µs an instruction in the mean; {} explains most of it: {} "
      "instead of {} leaves {:.0f} % less\n",
      replay.mean_error(), replay.left.key, replay.left.better, replay.left.value,
      100 * replay.left.explains);
}

std::string constants_text(const Replay& replay) {
  if (replay.constants.empty())
    return fmt::format("\nconstants: those of {}; none of them was read off instruction traces\n",
                       replay.instance);
  std::string out = fmt::format(
      "\nconstants: those of {}; {} were read off instruction traces (those of its file's section "
      "instruction_traces\nhold for replays only):\n",
      replay.instance, replay.constants.size());
  for (const auto& p : replay.constants) out += fmt::format("  {} = {}\n", p.key, p.value);
  return out;
}

std::string file_name(const Replay& r) { return std::filesystem::path(r.file).filename().string(); }

json summary_json(const Summary& s) {
  return {{"n", s.rows}, {"median_us", s.median}, {"p90_us", s.p90}, {"worst_us", s.worst}};
}

json parts_json(const std::vector<ReplayedPart>& parts) {
  json list = json::array();
  for (const auto& p : parts) {
    list.push_back({{"opcode", p.name},
                    {"track", p.track},
                    {"pc", p.pc},
                    {"real_start_us", p.real_start},
                    {"real_end_us", p.real_end},
                    {"simulated_start_us", p.model_start},
                    {"simulated_end_us", p.model_end}});
  }
  return list;
}

json head_json(const Replay& r) {
  json engines = json::object(), queues = json::object();
  for (const auto& [track, parts] : by_track(r.instructions))
    engines[track] = summary_json(summary_of(parts, start_error));
  for (const auto& [track, parts] : by_track(r.queues))
    queues[track] = {{"first_data", summary_json(summary_of(parts, start_error))},
                     {"last_data", summary_json(summary_of(parts, end_error))}};
  json out = {{"id", file_name(r)},
              {"file", r.file},
              {"error", r.span_error()},
              {"instance", r.instance},
              {"transfers", transfers_word(r.transfers)},
              {"real_span_us", r.real_span},
              {"simulated_span_us", r.model_span},
              {"start_error", summary_json(r.starts())},
              {"start_error_by_engine", engines},
              {"transfers_by_queue", queues}};
  if (!r.left.key.empty())
    out["explains_most"] = {{"key", r.left.key},
                            {"value", r.left.value},
                            {"better", r.left.better},
                            {"share", r.left.explains}};
  return out;
}

Picoseconds picoseconds(double us) {
  return Picoseconds(std::max<std::int64_t>(0, std::llround(us * 1e6)));
}

/// One of the two traces. Loads of weights run while products do: they have their own track.
void add_trace(traces::Timeline& timeline, const Replay& replay, bool real) {
  const auto process =
      timeline.add_process(real ? "device (as traced)" : "simulated", real ? 0 : 1);
  std::map<std::string, traces::TrackId> tracks;
  const auto add = [&](const ReplayedPart& part, const std::string& track, int order) {
    const double start = real ? part.real_start : part.model_start;
    const double end = std::max(start, real ? part.real_end : part.model_end);
    auto found = tracks.find(track);
    if (found == tracks.end())
      found = tracks.emplace(track, timeline.add_track(process, track, order)).first;
    const std::vector<traces::Arg> args = {{"pc", part.pc},
                                           {"simulated_minus_traced_us", part.error()}};
    timeline.slice(found->second, part.name, real ? "traced" : "simulated", picoseconds(start),
                   picoseconds(end) - picoseconds(start), args);
  };
  for (const auto& part : replay.instructions)
    add(part, part.name == "LDWEIGHTS" ? "tensor weights" : part.track, 0);
  for (const auto& part : replay.queues) add(part, part.track, 1);
  if (!real || replay.clock.empty()) return;
  const auto clock = timeline.add_counter(process, "array clock", "percent");
  for (const auto& state : replay.clock)
    timeline.counter(clock, picoseconds(static_cast<double>(state.start - replay.begin) * 1e-3),
                     100 * state.share / state.of);
}

}  // namespace

std::string replay_text(const Replay& r) {
  std::string out = fmt::format(
      "{} on one core of {} ({})\ntransfers {}: span {:.2f} µs on the device, {:.2f} simulated "
      "({:+.2f} %)\n",
      file_name(r), r.instance, r.versions, transfers_word(r.transfers), r.real_span, r.model_span,
      100 * r.span_error());
  out += instructions_text(r) + queues_text(r) + left_text(r) + constants_text(r);
  if (!r.notes.empty()) out += "\nnot expressed:\n";
  for (const auto& note : r.notes) out += "  " + note + "\n";
  return out;
}

json replay_json(const Replay& r) {
  json out = head_json(r);
  out["schema"] = "trellis.replay/1";
  out["instructions"] = parts_json(r.instructions);
  out["queues"] = parts_json(r.queues);
  json constants = json::object();
  for (const auto& p : r.constants) constants[p.key] = {{"value", p.value}, {"source", p.source}};
  out["constants"] = constants;
  out["not_expressed"] = r.notes;
  return out;
}

traces::Timeline replay_timeline(const Replay& replay) {
  traces::Timeline timeline;
  add_trace(timeline, replay, true);
  add_trace(timeline, replay, false);
  return timeline;
}

std::string replays_text(const std::vector<Replay>& replays) {
  std::vector<const Replay*> sorted;
  for (const auto& r : replays) sorted.push_back(&r);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::abs(a->span_error()) > std::abs(b->span_error());
  });
  std::string out = fmt::format("{:<28}{:<10}{:>9}{:>9}{:>8}{:>7}  {:<22}  {}\n", "profile",
                                "transfers", "device µs", "here µs", "error", "n",
                                "start: median p90 worst", "explains most of what is left");
  for (const Replay* r : sorted) {
    const Summary s = r->starts();
    out += fmt::format(
        "{:<28}{:<10}{:>9.2f}{:>9.2f}{:>+7.2f}%{:>7}  {:<22}  {}\n", file_name(*r),
        transfers_word(r->transfers), r->real_span, r->model_span, 100 * r->span_error(), s.rows,
        fmt::format("{:.3f} {:.3f} {:.3f} µs", s.median, s.p90, s.worst),
        r->left.key.empty() ? std::string("no constant alone")
                            : fmt::format("{} {} → {} (−{:.0f} %)", r->left.key, r->left.value,
                                          r->left.better, 100 * r->left.explains));
  }
  std::vector<double> spans;
  std::size_t constants = 0;
  for (const auto& r : replays) {
    spans.push_back(r.span_error());
    constants = std::max(constants, r.constants.size());
  }
  const Summary s = summarize(spans);
  return out + fmt::format(
                   "\n{} replays: span error median {:.2f} %, worst {:.2f} %; {} constants "
                   "were read off instruction traces, all others are the machine's\n",
                   s.rows, 100 * s.median, 100 * s.worst, constants);
}

json replays_json(const std::vector<Replay>& replays) {
  json rows = json::array();
  std::vector<double> spans;
  for (const auto& r : replays) {
    rows.push_back(head_json(r));
    spans.push_back(r.span_error());
  }
  const Summary s = summarize(spans);
  return {{"schema", "trellis.accuracy/1"},
          {"subject", "instructions"},
          {"rows", rows},
          {"span_error", {{"median", s.median}, {"worst", s.worst}}}};
}

}  // namespace trellis::analysis
