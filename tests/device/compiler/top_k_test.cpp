#include <algorithm>
#include <numeric>

#include "tests/device/compiler/graph_fixture.h"
#include "tests/device/compiler/numbers.h"

namespace trellis::device::testing {
namespace {

std::string top(std::int64_t k, const std::string& rest = "dim=-1 largest=1 sorted=1") {
  return "k=" + std::to_string(k) + " " + rest;
}

/// The k largest of a row, descending, or the k least, ascending; of equal ones the first.
std::vector<std::int64_t> largest(const Values& x, std::int64_t first, std::int64_t n,
                                  std::int64_t k, bool least = false) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](std::int64_t a, std::int64_t b) {
                      const double xa = x[static_cast<std::size_t>(first + a)],
                                   xb = x[static_cast<std::size_t>(first + b)];
                      return xa != xb ? (xa > xb) != least : a < b;
                    });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

/// Rows of n numbers of 65 different values, so that many are equal; the rows are at a distance of
/// `stride`.
void check_search(const std::string& op, const std::string& scalars, bool least, std::int64_t rows,
                  std::int64_t n, std::int64_t k, DType dtype = kF, std::int64_t stride = 0) {
  GraphFixture g;
  const std::int64_t pitch = stride > 0 ? stride : n;
  const auto whole = g.input({rows, pitch}, dtype), x = g.view(whole, {rows, n}, {pitch, 1});
  const auto values = g.output({rows, k}, dtype), indices = g.output({rows, k}, DType::kInt64);
  g.node(op, {x}, {values, indices}, scalars);
  const Values numbers = g.random(whole);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  const Values found = g.result(values), places = g.result(indices);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto want = largest(numbers, r * pitch, n, k, least);
    for (std::int64_t i = 0; i < k; ++i) {
      ASSERT_EQ(places[static_cast<std::size_t>(r * k + i)], want[static_cast<std::size_t>(i)])
          << "row " << r << ", place " << i;
      ASSERT_EQ(found[static_cast<std::size_t>(r * k + i)],
                numbers[static_cast<std::size_t>(r * pitch + want[static_cast<std::size_t>(i)])]);
    }
  }
}

void check_top_k(std::int64_t rows, std::int64_t n, std::int64_t k, DType dtype = kF,
                 std::int64_t stride = 0) {
  check_search("topk", top(k), false, rows, n, k, dtype, stride);
}

TEST(TopK, ARouter) { check_top_k(300, 64, 2, kB); }
TEST(TopK, AllOfEight) { check_top_k(5, 8, 8); }
TEST(TopK, MoreThanEight) { check_top_k(130, 64, 21); }
TEST(TopK, AllOfMoreThanEight) { check_top_k(3, 19, 19, kB); }
TEST(TopK, LongestRows) { check_top_k(2, 16384, 9); }
TEST(TopK, BlocksOfRows) { check_top_k(17000, 16, 3, kB); }
TEST(TopK, RowsWithGaps) { check_top_k(1100, 24, 10, kF, 31); }

TEST(TopK, TheLeast) { check_search("topk", top(3, "dim=-1 largest=0"), true, 140, 40, 3); }
TEST(TopK, ShortRows) {
  check_top_k(300, 4, 2, kB);
  check_top_k(1, 1, 1);
}

TEST(Sort, Ascending) {
  check_search("sort", "dim=-1 descending=0", true, 130, 64, 64);
  check_search("sort.stable", "stable=1 dim=1 descending=0", true, 3, 100, 100, kB);
}
TEST(Sort, Descending) { check_search("sort", "dim=-1 descending=1", false, 2, 333, 333); }
TEST(Sort, ShortRowsWithGaps) { check_search("sort", "dim=-1", true, 200, 5, 5, kF, 9); }

TEST(TopK, OneVectorAndThreeDimensions) {
  GraphFixture g;
  const auto line = g.input({40}), cube = g.input({3, 50, 12});
  const auto a = g.output({5}), ai = g.output({5}, DType::kInt64), b = g.output({3, 50, 4}),
             bi = g.output({3, 50, 4}, DType::kInt64);
  g.node("topk", {line}, {a, ai}, top(5));
  g.node("topk", {cube}, {b, bi}, top(4, "dim=2 largest=1 sorted=0"));
  const Values va = g.random(line), vb = g.random(cube);
  g.run();
  EXPECT_TRUE(g.compiled().estimated.empty());
  g.expect(ai, [&](std::int64_t i) {
    return static_cast<double>(largest(va, 0, 40, 5)[static_cast<std::size_t>(i)]);
  });
  g.expect(bi, [&](std::int64_t i) {
    return static_cast<double>(largest(vb, i / 4 * 12, 12, 4)[static_cast<std::size_t>(i % 4)]);
  });
}

/// The forms that the search of eight cannot do are costed by passes.
TEST(TopK, OtherFormsAreEstimated) {
  struct Form {
    std::vector<std::int64_t> sizes, results;
    std::string scalars;
    DType dtype;
  };
  const std::vector<Form> forms{{{2, 16385}, {2, 2}, top(2), kF},
                                {{16, 4}, {2, 4}, top(2, "dim=0"), kF},
                                {{4, 16}, {4, 2}, top(2), DType::kInt32}};
  for (const Form& form : forms) {
    GraphFixture g;
    const auto x = g.input(form.sizes, form.dtype), values = g.output(form.results, form.dtype),
               indices = g.output(form.results, DType::kInt64);
    g.node("topk", {x}, {values, indices}, form.scalars);
    EXPECT_EQ(compile(g.graph(), g.core()).estimated, std::vector<std::string>{"topk"})
        << form.scalars;
  }
}

TEST(Sort, LongRowsAreEstimated) {
  GraphFixture g;
  const auto x = g.input({2, 2049}), values = g.output({2, 2049}),
             indices = g.output({2, 2049}, DType::kInt64);
  g.node("sort", {x}, {values, indices}, "dim=-1");
  EXPECT_EQ(compile(g.graph(), g.core()).estimated, std::vector<std::string>{"sort"});
}

}  // namespace
}  // namespace trellis::device::testing
