#include "traces/report/report_page.h"

#include "base/error.h"
#include "base/escape.h"
#include "traces/report/page_files.h"
#include "traces/report/report_summary.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;

void replace(std::string& page, const std::string& mark, const std::string& by) {
  page.replace(page.find(mark), mark.size(), by);
}

}  // namespace

std::string html_page(const json& document, std::string_view script) {
  std::string page(kPageHtml);
  replace(page, "@CSS@", std::string(kPageCss));
  replace(page, "@SCRIPT@", std::string(kPageBase) + std::string(script));
  replace(page, "@DOCUMENT@",
          json_in_script(document.dump()));  // last: its texts may hold anything
  return page;
}

std::string report_page(const ReportFile& run, const json& schedule) {
  json document = {{"report", run.report}, {"summary", to_json(summarize(run))}};
  document["report"].erase("portability");
  if (!schedule.is_null()) document["schedule"] = schedule;
  const std::filesystem::path timeline = run.path.parent_path() / "memory_timeline.json";
  if (std::filesystem::exists(timeline)) {
    json memory = read_json(timeline, "memory timeline");
    if (!memory.is_object() || memory.value("schema", json()) != "trellis.memory_timeline/1" ||
        !memory.contains("events")) {
      throw ConfigError(timeline.string() +
                        ": expected schema \"trellis.memory_timeline/1\" with its events");
    }
    document["memory_timeline"] = std::move(memory);
  }
  return html_page(document, kPageScript);
}

}  // namespace trellis::analysis
