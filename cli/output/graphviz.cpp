#include "cli/output/graphviz.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "base/output_error.h"

extern char** environ;

namespace trellis::cli {
namespace {

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

File temporary() {
  File file(std::tmpfile(), &std::fclose);
  if (!file)
    throw Error(ExitCode::kInternal, "no temporary file for the drawing: " +
                                         std::error_code(errno, std::generic_category()).message());
  return file;
}

std::string content(std::FILE* file) {
  std::rewind(file);
  std::string text;
  std::array<char, 1 << 16> block{};
  for (std::size_t n = 0; (n = std::fread(block.data(), 1, block.size(), file)) > 0;)
    text.append(block.data(), n);
  return text;
}

/// Runs `dot -Tsvg` from one file into another; a separate program, so that no verb pays for
/// loading Graphviz.
std::string draw_svg(const std::filesystem::path& file, const std::string& graph) {
  const File in = temporary();
  const File out = temporary();
  if (std::fwrite(graph.data(), 1, graph.size(), in.get()) != graph.size() ||
      std::fflush(in.get()) != 0)
    throw OutputError("the drawing's temporary file", errno);
  std::rewind(in.get());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(in.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(out.get()), STDOUT_FILENO);
  std::array<std::string, 2> words = {"dot", "-Tsvg"};
  std::array<char*, 3> arguments = {words[0].data(), words[1].data(), nullptr};
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, "dot", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (failed == 0) ::waitpid(child, &status, 0);
  if (failed != 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 127)) {
    throw ConfigError("--topology " + file.string() +
                      ": an SVG is drawn by Graphviz's program dot, which is not installed here: "
                      "install the package graphviz (scripts/setup does), or write a .dot file");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error(ExitCode::kInternal, "dot refused the drawing; its message is above");
  return content(out.get());
}

}  // namespace

std::string graph_content(const std::filesystem::path& file, const std::string& graph) {
  const std::string extension = file.extension().string();
  if (extension != ".dot" && extension != ".svg") {
    throw ConfigError("--topology " + file.string() +
                      ": expected a file name that ends in .svg or .dot, got \"" + extension +
                      "\"");
  }
  return extension == ".dot" ? graph : draw_svg(file, graph);
}

}  // namespace trellis::cli
