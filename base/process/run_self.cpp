#include "base/process/run_self.h"

#include <array>
#include <cstdio>
#include <memory>
#include <mutex>

#include "base/activity.h"
#include "base/error.h"
#include "base/process/child_process.h"
#include "base/process/parallel_for.h"

namespace trellis {
namespace {

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

File temporary_file(const std::string& verb) {
  File file(std::tmpfile(), &std::fclose);
  if (!file)
    throw Error(ExitCode::kInternal, "no temporary file for the output of trellis " + verb);
  return file;
}

std::string text_of(std::FILE* file) {
  std::rewind(file);
  std::string text;
  std::array<char, 1 << 16> block{};
  for (std::size_t n = 0; (n = std::fread(block.data(), 1, block.size(), file)) > 0;)
    text.append(block.data(), n);
  return text;
}

/// The exit code. `err`: −1: this program's own.
int run_child(const std::vector<std::string>& arguments, std::FILE* out, int err) {
  const int exit_code = wait_for(
      start_child({.arguments = arguments, .out = ::fileno(out), .err = err, .alone = true}));
  if (exit_code > 128 && exit_code != static_cast<int>(ExitCode::kInterrupted)) {
    throw Error(ExitCode::kInternal, "trellis " + arguments.front() + " was ended by signal " +
                                         std::to_string(exit_code - 128));
  }
  return exit_code;
}

}  // namespace

std::string run_self(const std::vector<std::string>& arguments) {
  const File out = temporary_file(arguments.front());
  const Activity silent("");
  const int exit_code = run_child(arguments, out.get(), -1);
  if (exit_code != 0)
    throw Error(static_cast<ExitCode>(exit_code),
                "trellis " + arguments.front() + " failed; its message is above");
  return text_of(out.get());
}

void run_selves(const std::vector<std::vector<std::string>>& children, std::size_t at_once,
                const std::function<void(std::size_t child, const ChildResult& result)>& done) {
  std::mutex mutex;  // guards calls of `done`
  parallel_for(children.size(), at_once, [&](std::size_t child) {
    const File out = temporary_file(children[child].front()),
               err = temporary_file(children[child].front());
    ChildResult result;
    result.exit_code = run_child(children[child], out.get(), ::fileno(err.get()));
    result.out = text_of(out.get());
    result.err = text_of(err.get());
    const std::lock_guard lock(mutex);
    done(child, result);
  });
}

}  // namespace trellis
