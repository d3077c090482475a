#pragma once

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "tests/fuzz/fuzz_clock.h"
#include "tests/support/temporary_directory.h"

/// Good files with changed bytes, and what every reader owes them: data or a ConfigError that names
/// the file, soon.
namespace trellis::fuzz {

/// Limit for one input, in seconds of the thread's processor: a loaded machine does not change it.
/// Sanitizers slow programs down several times.
inline constexpr double kMostSeconds = 2;
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
inline double slowdown() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 10;
#else
  return 1;
#endif
}

/// A part of changed texts that tries to look like a line of the program.
inline constexpr const char* kForged = "forged: all is well";

/// Why a text is not fit for a terminal; "" when it is.
inline std::string unfit(const std::string& text) {
  if (terminal_text(text) != text) return "control characters: " + terminal_line(text);
  for (std::size_t at = text.find(kForged); at != std::string::npos;
       at = text.find(kForged, at + 1)) {
    if (at == 0 || text[at - 1] == '\n') return "a forged line: " + terminal_line(text);
  }
  return "";
}

/// Changes that break formats: single bits, extreme numbers, cuts, repeated and moved parts.
inline std::string mutate(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](std::size_t limit) {
    return limit == 0 ? 0 : static_cast<std::size_t>(random() % limit);
  };
  for (std::size_t changes = 1 + below(4); changes > 0 && !bytes.empty(); --changes) {
    const std::size_t place = below(bytes.size());
    const std::size_t length = std::min(bytes.size() - place, 1 + below(16));
    switch (random() % 6) {
      case 0: bytes[place] = static_cast<char>(bytes[place] ^ (1 << random() % 8)); break;
      case 1: bytes[place] = static_cast<char>(random()); break;
      case 2:
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(place), length,
                    random() % 2 == 0 ? '\xFF' : '\0');
        break;
      case 3: bytes.resize(place); break;
      case 4: bytes.insert(below(bytes.size()), bytes.substr(place, length)); break;
      default: bytes.erase(place, length); break;
    }
  }
  return bytes;
}

inline void put(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

using Mutate = std::function<std::string(std::string, std::mt19937_64&)>;

/// Runs `read` on changed copies of the files, one changed at a time.
inline void fuzz_files(const std::vector<std::filesystem::path>& files,
                       const std::function<void()>& read, const Mutate& change = &mutate) {
  set_log_level(LogLevel::kError);  // index maps that do not fit are made again, with a warning
  std::vector<std::string> good;
  for (const auto& file : files) good.push_back(read_all(file));
  ASSERT_NO_THROW(read());
  std::int64_t refused = 0, programs = 0;
  const std::int64_t failures = for_each_seed(400, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t which = random() % files.size();
    put(files[which], change(good[which], random));
    const double start = thread_seconds();
    std::string fault;
    try {
      read();
    } catch (const ConfigError& error) {
      ++refused;
      fault = unfit(error.what());
    } catch (const std::exception& error) {
      fault = error.what();
    }
    if (const double seconds = thread_seconds() - start; seconds > kMostSeconds * slowdown())
      fault = "took " + std::to_string(seconds) + " s";
    if (!fault.empty()) ADD_FAILURE() << "seed " << seed << ", " << files[which] << ": " << fault;
    ++programs;
    for (std::size_t i = 0; i < files.size(); ++i) put(files[i], good[i]);
    return fault.empty();
  });
  std::cout << programs << " files, " << refused << " refused" << std::endl;
  EXPECT_EQ(failures, 0);
  EXPECT_GT(refused, programs / 20) << "most changes went unnoticed: is the file read at all?";
}

}  // namespace trellis::fuzz
