#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file_stream.h"
#include "base/process/child_process.h"
#include "cli/launch/load_trainer.h"
#include "cli/verbs/verbs.h"
#include "trainer/requests/step_request.h"

namespace trellis::cli {
namespace {

/// Redirects output of one descriptor to another while it exists.
class Redirected {
 public:
  /// Throws Error (kInternal) when no descriptor is left.
  Redirected(int descriptor, int to)
      : descriptor_(descriptor), before_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3)) {
    if (before_ < 0 || ::dup2(to, descriptor_) < 0)
      throw Error(ExitCode::kInternal, std::string("no descriptor: ") + std::strerror(errno));
  }
  ~Redirected() {
    ::dup2(before_, descriptor_);
    ::close(before_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  int descriptor_, before_;
};

int answer_one(trainer::StepRunner& runner, const std::string& line) {
  const nlohmann::json question = nlohmann::json::parse(line);
  const OutputFile messages(question.at("err").get<std::string>());
  const Redirected err(STDERR_FILENO, messages.descriptor()),
      out(STDOUT_FILENO, messages.descriptor());
  trainer::RunRequest request;
  request.config_file = question.at("config");
  question.at("overrides").get_to(request.overrides);
  request.instance = question.at("instance");
  request.nodes = question.at("nodes");
  question.at("hardware").get_to(request.hardware);
  request.shape_only = true;
  request.host_threads = 1;
  std::string report;
  const int exit_code = runner.run(
      request, question.at("whole") ? trainer::StepAnswer::kReport : trainer::StepAnswer::kStep,
      report);
  try {
    FileStream file(question.at("out").get<std::string>(), FileStream::Mode::kReplace);
    file << report;
    file.check();
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
  return exit_code;
}

/// Answers until its input ends. Each answer is one byte: the exit code.
void answer_all() {
  const std::unique_ptr<trainer::StepRunner> runner(
      call_trainer(&trainer::TrainerLibrary::step_runner));
  for (std::string line; std::getline(std::cin, line);) {
    const auto exit_code = static_cast<char>(answer_one(*runner, line));
    if (::write(STDOUT_FILENO, &exit_code, 1) != 1) return;  // no one waits for it
  }
}

}  // namespace

void add_answer(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "answer", "for other verbs: simulates the steps that it reads of, one after the other");
  verb->group("");  // no user's
  verb->callback([&exit_code] {
    answer_all();
    exit_code = 0;
  });
}

}  // namespace trellis::cli
