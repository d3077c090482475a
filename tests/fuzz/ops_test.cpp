#include <iostream>
#include <map>

#include <c10/util/Exception.h>

#include "tests/device/aten/neuron_fixture.h"
#include "tests/fuzz/fuzz_run.h"
#include "tests/fuzz/generator.h"

/// Random programs of operators on the CPU and on `neuron`: after every statement everything that
/// lives is equal bit for bit.
///
/// More, or other ones: TRELLIS_FUZZ_SEED=n TRELLIS_FUZZ_SECONDS=600 bin/fuzz_ops_test
/// One again:           TRELLIS_FUZZ_SEED=<the seed that a failure prints> TRELLIS_FUZZ_PROGRAMS=1
/// bin/fuzz_ops_test
namespace trellis::fuzz {
namespace {

struct Counts {
  std::int64_t programs = 0, statements = 0, errors = 0, backward = 0;
  std::map<std::string, std::int64_t> calls;  ///< that raised no error, by operator
};

/// One program's two machines, in step.
class Pair {
 public:
  explicit Pair(std::uint64_t seed)
      : cpu(at::kCPU, seed), neuron(device::testing::neuron(0), seed) {}
  std::optional<std::string> run(const Statement& statement) {
    const Outcome expected = cpu.run(statement), got = neuron.run(statement);
    outcome = expected;
    // The device has types that the CPU's kernels lack (family wider of scripts/conformance); what
    // follows such a call has no counterpart on the CPU.
    has_counterpart = expected.error.find("not implemented for") == std::string::npos;
    if (!has_counterpart) return std::nullopt;
    if (!(expected == got)) return "expected: " + to_text(expected) + "\n     got: " + to_text(got);
    return difference(cpu, neuron);
  }
  Machine cpu, neuron;
  Outcome outcome;
  bool has_counterpart = true;
};

/// The first difference when the statements are run again.
std::optional<std::string> replay(const Program& program) {
  Pair pair(program.seed);
  for (const Statement& statement : program.statements) {
    if (const auto found = pair.run(statement)) return found;
    if (!pair.has_counterpart) break;
  }
  return std::nullopt;
}

/// Leaves out what can be left out, last statement first, as long as the machines still differ.
Program shrink(Program program) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::size_t i = program.statements.size(); i-- > 0;) {
      Program without = program;
      without.statements.erase(without.statements.begin() + static_cast<std::ptrdiff_t>(i));
      if (!replay(without)) continue;
      program = std::move(without);
      smaller = true;
    }
  }
  return program;
}

std::optional<std::string> run_one(std::uint64_t seed, Counts& counts) {
  Pair pair(seed);
  Generator generator(seed, pair.cpu);
  Program program{seed, {}};
  for (int i = 0; i < kStatements; ++i) {
    program.statements.push_back(generator.next());
    if (verbose()) std::cerr << to_text(program.statements.back()) << std::endl;
    const auto found = pair.run(program.statements.back());
    ++counts.statements;
    counts.errors += pair.outcome.error.empty() ? 0 : 1;
    counts.backward +=
        program.statements.back().kind == Statement::Kind::kBackward && pair.outcome.error.empty()
            ? 1
            : 0;
    if (pair.outcome.error.empty()) ++counts.calls[program.statements.back().op.name];
    if (!pair.has_counterpart) break;
    if (!found) continue;
    const Program small = shrink(program);
    return c10::str(*found, "\nshortest program that differs:\n", to_text(small),
                    replay(small).value_or("(differs in the whole program only)"),
                    "\nrun again: TRELLIS_FUZZ_SEED=", seed,
                    " TRELLIS_FUZZ_PROGRAMS=1 bin/fuzz_ops_test");
  }
  ++counts.programs;
  return std::nullopt;
}

class FuzzTest : public device::testing::NeuronTest {};

TEST_F(FuzzTest, KnowsEveryOperatorInItsTable) {
  EXPECT_EQ(unknown_operators(), std::vector<std::string>());
}

TEST_F(FuzzTest, ProgramsAreEqualBitForBitOnCpuAndNeuron) {
  const Quiet quiet;
  Counts counts;
  const std::int64_t failures = for_each_seed(300, [&](std::uint64_t seed) {
    use(0);
    const auto found = run_one(seed, counts);
    if (found) ADD_FAILURE() << *found;
    return !found;
  });
  if (verbose()) {
    for (const auto& [op, calls] : counts.calls) std::cout << calls << " " << op << "\n";
  }
  std::cout << counts.calls.size() << " operators, " << counts.programs << " programs, "
            << counts.statements << " statements, of which " << counts.errors
            << " raised an error and " << counts.backward << " differentiated" << std::endl;
  EXPECT_GT(counts.statements, 10 * failures);
}

}  // namespace
}  // namespace trellis::fuzz
