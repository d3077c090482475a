#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace trellis::trainer::testing_support {

/// Runs a script of tests/ and reads its lines `key<tab>value value …`; values may be hexadecimal.
inline std::map<std::string, std::vector<double>> read_oracle(const std::string& script) {
  const std::string root = TRELLIS_SOURCE_DIR,
                    command = root + "/.venv/bin/python " + root + "/tests/" + script;
  std::string text;
  std::FILE* pipe = popen(command.c_str(), "r");
  char buffer[1 << 16];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe))
    text.append(buffer, count);
  EXPECT_EQ(pclose(pipe), 0) << command;
  std::map<std::string, std::vector<double>> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    std::istringstream words(line.substr(tab + 1));
    std::vector<double>& list = values[line.substr(0, tab)];
    for (std::string word; words >> word;) list.push_back(std::strtod(word.c_str(), nullptr));
  }
  return values;
}

}  // namespace trellis::trainer::testing_support
