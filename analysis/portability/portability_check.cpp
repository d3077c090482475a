#include "analysis/portability/portability_check.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/number_text.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using Align = TextTable::Align;

constexpr std::size_t kMostPlaces = 3;

json notes_json(const std::vector<OperatorNote>& notes) {
  json rows = json::array();
  for (const OperatorNote& note : notes) {
    rows.push_back({{"operator", note.op},
                    {"dtype", note.dtype},
                    {"count", note.count},
                    {"there", note.there},
                    {"places", note.places}});
  }
  return rows;
}

std::string places_text(const std::vector<std::string>& places) {
  std::string text;
  for (std::size_t i = 0; i < std::min(places.size(), kMostPlaces); ++i)
    text += (i == 0 ? "" : ", ") + places[i];
  return text + (places.size() > kMostPlaces ? ", …" : "");
}

std::string notes_text(const std::string& title, const std::vector<OperatorNote>& notes) {
  if (notes.empty()) return "";
  TextTable table({{"operator", Align::kLeft},
                   {"type", Align::kLeft},
                   {"times"},
                   {"there", Align::kLeft},
                   {"where", Align::kLeft}});
  for (const OperatorNote& note : notes)
    table.add({note.op, note.dtype, thousands(note.count), note.there, places_text(note.places)});
  return "\n" + title + "\n" + table.text();
}

std::vector<OperatorNote> notes_of(const json& rows, const std::string& there) {
  std::vector<OperatorNote> notes;
  for (const json& row : rows) {
    notes.push_back(
        {row.at("operator"), "", 0, there, row.at("places").get<std::vector<std::string>>()});
  }
  return notes;
}

}  // namespace

bool PortabilityCheck::works() const {
  return lacking.empty() &&
         std::ranges::all_of(requirements, [](const Requirement& each) { return each.met; });
}

PortabilityCheck check_for_device(const json& operators, const json& found) {
  PortabilityCheck check{.target = found.at("device"),
                         .about = "a device of LibTorch in this process"};
  check.operators = static_cast<std::int64_t>(operators.at("operators").size());
  check.lacking = notes_of(found.at("lacking"), "no kernel");
  check.other = notes_of(found.at("falls_back"), "handed to its fallback, mostly the CPU");
  return check;
}

json to_json(const PortabilityCheck& check) {
  json requirements = json::array();
  for (const Requirement& each : check.requirements)
    requirements.push_back(
        {{"what", each.what}, {"needed", each.needed}, {"got", each.got}, {"met", each.met}});
  return {{"schema", "trellis.portability_check/1"},
          {"target", check.target},
          {"about", check.about},
          {"works", check.works()},
          {"operators", check.operators},
          {"requirements", std::move(requirements)},
          {"lacking", notes_json(check.lacking)},
          {"other", notes_json(check.other)}};
}

std::string portability_text(const PortabilityCheck& check) {
  std::string text = fmt::format("{}: {}\n", check.target, check.about);
  if (!check.requirements.empty()) {
    TextTable table({{"requirement", Align::kLeft},
                     {"needed", Align::kLeft},
                     {"here", Align::kLeft},
                     {"", Align::kLeft}});
    for (const Requirement& each : check.requirements)
      table.add({each.what, each.needed, each.got, each.met ? "ok" : "NOT MET"});
    text += table.text();
  }
  text += notes_text("Operators that it does not have", check.lacking) +
          notes_text("Operators that it treats otherwise; the run goes on", check.other);
  return text + fmt::format("\n{} operators by type; {} lacking, {} treated otherwise: {}\n",
                            check.operators, check.lacking.size(), check.other.size(),
                            check.works() ? "the run works there" : "the run does NOT work there");
}

std::string operators_text(const json& operators) {
  TextTable table({{"operator", Align::kLeft},
                   {"type", Align::kLeft},
                   {"times"},
                   {"on Trainium", Align::kLeft},
                   {"where", Align::kLeft}});
  for (const json& row : operators.at("operators")) {
    table.add({row.at("operator"), row.at("dtype"), thousands(row.at("count")), row.at("on_device"),
               places_text(row.at("places"))});
  }
  return table.text();
}

}  // namespace trellis::analysis
