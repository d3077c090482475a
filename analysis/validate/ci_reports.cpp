#include "analysis/validate/ci_reports.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/escape.h"
#include "base/files/atomic_file.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

/// The first line: a message; all of them are the details.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string junit_problems(const Check& check) {
  const char* element = check.judged ? "failure" : "error";
  const std::string message = check.problems.size() == 1
                                  ? first_line(check.problems[0].text)
                                  : fmt::format("{} problems", check.problems.size());
  std::string details;
  for (const Problem& problem : check.problems) details += problem.text + "\n";
  return fmt::format("      <{0} message=\"{1}\">{2}</{0}>\n", element, xml_text(message),
                     xml_text(details));
}

/// Files of a repository are named relative to it, as the command was given; an absolute path is a
/// file: address.
std::string uri_of(const std::string& file) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
  std::string uri = std::filesystem::path(file).is_absolute() ? "file://" : "";
  for (const char c : file)
    uri += std::string_view(kPlain).find(c) != std::string_view::npos
               ? std::string(1, c)
               : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return uri;
}

json sarif_result(const Problem& problem, const std::string& checked) {
  const bool in_file = !problem.file.empty() && problem.file != "command line";
  json place = {{"artifactLocation", {{"uri", uri_of(in_file ? problem.file : checked)}}}};
  if (in_file && problem.line > 0) place["region"] = {{"startLine", problem.line}};
  return {{"ruleId", problem.key.empty() ? "file" : problem.key},
          {"level", "error"},
          {"message", {{"text", problem.text}}},
          {"locations", json::array({{{"physicalLocation", std::move(place)}}})},
          {"properties", problem_json(problem)}};
}

}  // namespace

std::string junit_xml(const std::string& suite, const std::vector<Check>& checks) {
  const auto failed = [&](bool judged) {
    return std::ranges::count_if(checks, [&](const Check& check) {
      return !check.problems.empty() && check.judged == judged;
    });
  };
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  text += fmt::format("  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\">\n",
                      xml_text(suite), checks.size(), failed(true), failed(false));
  for (const Check& check : checks) {
    text += fmt::format("    <testcase classname=\"{}\" name=\"{}\"", xml_text(suite),
                        xml_text(check.name));
    text += check.problems.empty() ? "/>\n" : ">\n" + junit_problems(check) + "    </testcase>\n";
  }
  return text + "  </testsuite>\n</testsuites>\n";
}

json sarif_log(const std::string& tool, const std::vector<Check>& checks) {
  json results = json::array(), rules = json::array();
  std::vector<std::string> known;
  for (const Check& check : checks) {
    for (const Problem& problem : check.problems) {
      results.push_back(sarif_result(problem, check.name));
      const std::string rule = results.back().at("ruleId");
      if (std::ranges::find(known, rule) != known.end()) continue;
      known.push_back(rule);
      rules.push_back({{"id", rule}});
    }
  }
  json driver = {{"name", tool}, {"rules", std::move(rules)}};
  return {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
          {"version", "2.1.0"},
          {"runs", json::array({{{"tool", {{"driver", std::move(driver)}}},
                                 {"results", std::move(results)}}})}};
}

json problem_json(const Problem& problem) {
  json fields = {{"text", problem.text}};
  if (!problem.file.empty()) fields["file"] = problem.file;
  if (problem.line > 0) fields["line"] = problem.line;
  if (!problem.key.empty()) fields["key"] = problem.key;
  if (!problem.expected.empty()) fields["expected"] = problem.expected;
  if (!problem.got.empty()) fields["got"] = problem.got;
  return fields;
}

void CiFiles::write(const std::string& tool, const std::vector<Check>& checks) const {
  if (!junit.empty()) write_file_atomically(junit, junit_xml(tool, checks));
  if (!sarif.empty())
    write_file_atomically(
        sarif, sarif_log(tool, checks).dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace trellis::analysis
