#include <iostream>
#include <map>

#include "tests/device/aten/neuron_fixture.h"
#include "tests/fuzz/fuzz_run.h"
#include "tests/fuzz/generator.h"

/// Random programs of operators with and without data: after every statement the same sizes,
/// strides, types, aliasing and bytes. Longer runs and single programs: by environment, as in
/// ops_test.cpp.
namespace trellis::fuzz {
namespace {

using device::testing::kShapeOnly;

/// Read a number and shape their result by it, so they follow shape-only mode's policy for numbers
/// (1, true) instead of the data.
const std::vector<std::string> kShapedByANumber = {"aten::one_hot", "aten::narrow", "aten::item",
                                                   "aten::equal"};

bool changes_arguments(const Statement& statement) {
  return statement.kind == Statement::Kind::kCall &&
         c10::Dispatcher::singleton()
             .findSchemaOrThrow(statement.op.name.c_str(), statement.op.overload_name.c_str())
             .schema()
             .is_mutable();
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

struct Counts {
  std::int64_t programs = 0, statements = 0, refused = 0;
  std::map<std::string, std::string> without_shape;  ///< operator → what was said
};

class ShapesTest : public device::testing::NeuronTest {
 protected:
  static std::int64_t bytes(int rank) { return device::testing::recorder(rank).memory().current(); }

  /// Stops at the first thing that has no equal: an error that data cause, after which the two may
  /// differ rightly.
  static std::optional<std::string> run_one(std::uint64_t seed, Counts& counts) {
    use(kShapeOnly);
    use(0);
    Machine data(device::testing::neuron(0), seed),
        shapes(device::testing::neuron(kShapeOnly), seed);
    const std::int64_t before = bytes(0), before_shapes = bytes(kShapeOnly);
    Generator generator(seed, data);
    std::string text;
    for (int i = 0; i < kStatements; ++i) {
      const Statement statement = generator.next();
      text += "  " + to_text(statement) + "\n";
      if (verbose()) std::cerr << to_text(statement) << std::endl;
      if (std::find(kShapedByANumber.begin(), kShapedByANumber.end(), statement.op.name) !=
          kShapedByANumber.end())
        continue;
      use(0);
      const Outcome expected = data.run(statement);
      if (!expected.error.empty() && changes_arguments(statement)) break;
      if (!expected.error.empty() || expected.skipped) continue;
      use(kShapeOnly);
      const Outcome got = shapes.run(statement);
      ++counts.statements;
      if (contains(got.error, "depends on data")) {
        ++counts.refused;
        if (changes_arguments(statement)) break;
        data.forget(statement);
        continue;
      }
      if (contains(got.error, "has no shape function")) {
        counts.without_shape.emplace(c10::toString(statement.op), got.error);
        break;
      }
      if (!got.error.empty()) return text + "shape-only: " + got.error;
      if (const auto found = layout_difference(data, shapes)) return text + *found;
      if (bytes(0) - before != bytes(kShapeOnly) - before_shapes) {
        return c10::str(text, "charged with data ", bytes(0) - before, " bytes, without ",
                        bytes(kShapeOnly) - before_shapes);
      }
    }
    ++counts.programs;
    return std::nullopt;
  }
};

TEST_F(ShapesTest, ProgramsHaveTheSameLayoutsAndBytesWithoutData) {
  const Quiet quiet;
  Counts counts;
  const std::int64_t failures = for_each_seed(200, [&](std::uint64_t seed) {
    const auto found = run_one(seed, counts);
    if (found) ADD_FAILURE() << "seed " << seed << "\n" << *found;
    return !found;
  });
  for (const auto& [op, said] : counts.without_shape) ADD_FAILURE() << op << ": " << said;
  std::cout << counts.programs << " programs, " << counts.statements << " statements, of which "
            << counts.refused << " depend on data" << std::endl;
  EXPECT_GT(counts.statements, 10 * failures);
}

}  // namespace
}  // namespace trellis::fuzz
