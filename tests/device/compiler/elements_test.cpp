#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "tests/device/compiler/graph_fixture.h"
#include "tests/device/compiler/numbers.h"

namespace trellis::device::testing {
namespace {

constexpr DType kInt = DType::kInt64;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Whole numbers from 0 to below `limit`.
Values below(std::int64_t count, std::int64_t limit, unsigned seed) {
  std::mt19937 engine(seed);
  Values numbers;
  for (std::int64_t i = 0; i < count; ++i)
    numbers.push_back(static_cast<double>(engine() % static_cast<unsigned>(limit)));
  return numbers;
}

/// As a router picks: of each row's `limit` columns k different ones.
Values picks(std::int64_t rows, std::int64_t limit, std::int64_t k) {
  std::mt19937 engine(7);
  std::vector<double> columns(at(limit));
  std::iota(columns.begin(), columns.end(), 0.0);
  Values all;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::shuffle(columns.begin(), columns.end(), engine);
    all.insert(all.end(), columns.begin(), columns.begin() + k);
  }
  return all;
}

// ── running sums ──

void check_cumsum(std::int64_t lines, std::int64_t columns, std::int64_t dim, DType in, DType out) {
  GraphFixture g;
  const auto x = g.input({lines, columns}, in), y = g.output({lines, columns}, out);
  g.node("cumsum", {x}, {y}, "dim=" + std::to_string(dim));
  const Values numbers = in == kInt ? below(lines * columns, 3, 5) : g.random(x);
  g.set(x, numbers);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  Values want = numbers;
  for (std::int64_t i = 0; i < lines * columns; ++i) {
    const bool first = dim == 0 ? i < columns : i % columns == 0;
    if (!first) want[at(i)] += want[at(dim == 0 ? i - columns : i - 1)];
  }
  g.expect(y, [&](std::int64_t i) { return want[at(i)]; }, in == kInt ? 0 : 1e-5);
}

TEST(Cumsum, AlongRows) {
  check_cumsum(5, 64, 1, kF, kF);
  check_cumsum(300, 40, 1, kInt, kInt);
  check_cumsum(2, 5000, 1, kInt, kInt);  // more than a tile
}
TEST(Cumsum, DownTheTokensOfARouter) {
  check_cumsum(1000, 8, 0, kInt, kInt);
  check_cumsum(128, 600, 0, kF, kF);  // more than a bank
  check_cumsum(5, 3, 0, kF, kF);
}
TEST(Cumsum, OfOneList) {
  GraphFixture g;
  const auto x = g.input({64}, kInt), y = g.output({64}, kInt);
  g.node("cumsum", {x}, {y}, "dim=0");
  const Values numbers = below(64, 100, 3);
  g.set(x, numbers);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  g.expect(y, [&](std::int64_t i) {
    return std::accumulate(numbers.begin(), numbers.begin() + i + 1, 0.0);
  });
}

// ── gather and scatter ──

TEST(Elements, GatherSeveralOfEachRow) {
  GraphFixture g;
  const auto x = g.input({300, 9}), index = g.input({300, 4}, kInt), y = g.output({300, 4});
  g.node("gather", {x, index}, {y}, "dim=1 sparse_grad=0");
  const Values table = g.random(x), places = below(1200, 9, 1);
  g.set(index, places);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  g.expect(y, [&](std::int64_t i) {
    return table[at(i / 4 * 9 + static_cast<std::int64_t>(places[at(i)]))];
  });
}

TEST(Elements, GatherDownColumnsAndFromAList) {
  GraphFixture g;
  const auto x = g.input({20, 6}), index = g.input({3, 6}, kInt), y = g.output({3, 6});
  const auto list = g.input({50}), of_list = g.input({200}, kInt), z = g.output({200});
  g.node("gather", {x, index}, {y}, "dim=0");
  g.node("gather", {list, of_list}, {z}, "dim=0");
  const Values table = g.random(x), places = below(18, 20, 2), numbers = g.random(list),
               chosen = below(200, 50, 3);
  g.set(index, places);
  g.set(of_list, chosen);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  g.expect(y, [&](std::int64_t i) {
    return table[at(static_cast<std::int64_t>(places[at(i)]) * 6 + i % 6)];
  });
  g.expect(z,
           [&](std::int64_t i) { return numbers[at(static_cast<std::int64_t>(chosen[at(i)]))]; });
}

TEST(Elements, ScatterAddOfSeveralToEachRow) {
  GraphFixture g;
  const auto x = g.input({200, 16}), index = g.input({200, 3}, kInt), source = g.input({200, 3}),
             y = g.output({200, 16});
  g.node("scatter_add", {x, index, source}, {y}, "dim=1");
  Values want = g.random(x);
  const Values places = below(600, 16, 4), added = g.random(source);
  g.set(index, places);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  for (std::int64_t i = 0; i < 600; ++i)
    want[at(i / 3 * 16 + static_cast<std::int64_t>(places[at(i)]))] += added[at(i)];
  g.expect(y, [&](std::int64_t i) { return want[at(i)]; });
}

/// zeros.scatter(1, picks, 1): a one-hot row for each pick of a router.
TEST(Elements, ScatterOfANumberMarksPicks) {
  for (const auto& [rows, experts, k] : {std::tuple{3000, 8, 2}, {130, 64, 6}, {5, 300, 1}}) {
    GraphFixture g;
    const auto x = g.input({rows, experts}, kInt), index = g.input({rows, k}, kInt),
               y = g.output({rows, experts}, kInt);
    g.node("scatter.value", {x, index}, {y}, "dim=1 value=1");
    Values want(at(std::int64_t{rows} * experts));
    g.set(x, want);
    const Values places = picks(rows, experts, k);
    g.set(index, places);
    g.run();
    EXPECT_TRUE(g.compiled().estimated.empty());
    for (std::size_t i = 0; i < places.size(); ++i)
      want[i / at(k) * at(experts) + at(static_cast<std::int64_t>(places[i]))] = 1;
    g.expect(y, [&](std::int64_t i) { return want[at(i)]; }, 0);
  }
}

/// In place, over what is no number, twice to the same place: the last one stays.
TEST(Elements, ScatterReplaces) {
  GraphFixture g;
  const auto y = g.input({150, 10}), index = g.input({100, 3}, kInt), source = g.input({120, 4});
  g.node("scatter_", {y, index, source}, {y}, "dim=-1");
  Values want = g.random(y);
  want[3] = std::numeric_limits<double>::infinity();
  g.set(y, want);
  Values places = below(300, 10, 6);
  places[0] = places[2] = 3;
  const Values values = g.random(source);
  g.set(index, places);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  for (std::int64_t i = 0; i < 300; ++i)
    want[at(i / 3 * 10 + static_cast<std::int64_t>(places[at(i)]))] = values[at(i / 3 * 4 + i % 3)];
  g.expect(y, [&](std::int64_t i) { return want[at(i)]; });
}

/// The inverse of a permutation, as dispatch makes it: elements are transferred.
TEST(Elements, ScatterIntoAList) {
  constexpr std::int64_t kPicks = 700, kSlots = 1001;
  GraphFixture g;
  const auto x = g.input({kSlots}, kInt), index = g.input({kPicks}, kInt),
             source = g.input({kPicks}, kInt), y = g.output({kSlots}, kInt);
  g.node("scatter.src", {x, index, source}, {y}, "dim=0");
  Values want(at(kSlots), kPicks), numbers(at(kPicks));
  g.set(x, want);
  const Values places = picks(1, kSlots, kPicks);
  std::iota(numbers.begin(), numbers.end(), 0.0);
  g.set(index, places);
  g.set(source, numbers);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  for (std::int64_t i = 0; i < kPicks; ++i)
    want[at(static_cast<std::int64_t>(places[at(i)]))] = static_cast<double>(i);
  g.expect(y, [&](std::int64_t i) { return want[at(i)]; }, 0);
}

TEST(Elements, NothingAtAll) {
  GraphFixture g;
  const auto x = g.input({4, 8}), none = g.input({4, 0}, kInt), y = g.output({4, 8}),
             z = g.output({4, 0}), sums = g.output({4, 0}, kInt);
  g.node("scatter.value", {x, none}, {y}, "dim=1 value=1");
  g.node("gather", {x, none}, {z}, "dim=1");
  g.node("cumsum", {none}, {sums}, "dim=1");
  const Values numbers = g.random(x);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  g.expect(y, [&](std::int64_t i) { return numbers[at(i)]; });
}

TEST(Elements, ScatterThatReducesIsEstimated) {
  GraphFixture g;
  const auto x = g.input({4, 8}), index = g.input({4, 2}, kInt), source = g.input({4, 2}),
             y = g.output({4, 8});
  g.node("scatter.reduce", {x, index, source}, {y}, "dim=1 reduce=multiply");
  EXPECT_EQ(compile(g.graph(), g.core()).estimated, std::vector<std::string>{"scatter"});
}

}  // namespace
}  // namespace trellis::device::testing
