#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

/// One function per verb: adds it to the program. When the user asked for it, it runs while the
/// command line is parsed and leaves the program's exit code in `exit_code`.
namespace trellis::cli {

[[nodiscard]] std::string version_text();
void add_quickstart(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_checkpoint(CLI::App& app, int& exit_code);
void add_train(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code);
void add_simulate(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code);
void add_validate(CLI::App& app, int& exit_code);
void add_import(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_resume_check(CLI::App& app, int& exit_code);
void add_evaluate(CLI::App& app, int& exit_code);
void add_data(CLI::App& app, int& exit_code);
void add_kernel(CLI::App& app, int& exit_code);
void add_kernel_run(CLI::App& kernel, int& exit_code);
void add_isa(CLI::App& app, int& exit_code);
void add_describe(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_diff(CLI::App& app, int& exit_code);
void add_gate(CLI::App& app, int& exit_code);
void add_memory(CLI::App& app, int& exit_code);
void add_cost(CLI::App& app, int& exit_code);
void add_goodput(CLI::App& app, int& exit_code);
void add_portability(CLI::App& app, int& exit_code);
void add_schedule(CLI::App& app, int& exit_code);
void add_sweep(CLI::App& app, int& exit_code);
void add_collectives(CLI::App& app, int& exit_code);
void add_accuracy(CLI::App& app, int& exit_code);
void add_calibrate(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_selfcheck(CLI::App& app, int& exit_code);
void add_answer(CLI::App& app, int& exit_code);

}  // namespace trellis::cli
