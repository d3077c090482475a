#include "base/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace trellis {
namespace {

/// Levenshtein distance, one row of the table at a time. Above `most`: any number above it.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t most) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > most) return most + 1;
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substitution = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substitution, row[j] + 1, row[j + 1] + 1});
    }
    if (*std::ranges::min_element(row) > most) return most + 1;  // later rows are no smaller
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::size_t best = 1 + name.size() / 3;
  std::string nearest;
  bool found = false;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate, best);
    if (distance < best || (distance == best && !found)) {
      best = distance;
      nearest = candidate;
      found = true;
    }
  }
  return nearest;
}

}  // namespace trellis
