#pragma once

#include <CLI/CLI.hpp>

#include "analysis/validate/ci_reports.h"
#include "cli/options/not_empty.h"

namespace trellis::cli {

inline void add_ci_options(CLI::App& verb, analysis::CiFiles& files) {
  verb.add_option("--junit", files.junit,
                  "also as JUnit XML, which continuous integration lists as tests")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb.add_option("--sarif", files.sarif,
                  "also as SARIF 2.1.0, which code hosts show next to the lines")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
}

}  // namespace trellis::cli
