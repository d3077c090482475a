#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "traces/report/report_file.h"

namespace trellis::analysis {

/// One page that needs no network: the document as JSON (element #document), and page/base.js with
/// a `script` after it that draws it.
[[nodiscard]] std::string html_page(const nlohmann::json& document, std::string_view script);

/// A run as one page that needs no network: timeline of the schedule, breakdown, attribution,
/// memory, links, sortable tables. The page holds the report as JSON (element #document) and a
/// script that draws it (page/). `schedule`: trellis.schedule/1, or null. memory_timeline.json
/// next to the report is shown too. Throws ConfigError when nothing was simulated.
[[nodiscard]] std::string report_page(const ReportFile& run, const nlohmann::json& schedule);

}  // namespace trellis::analysis
