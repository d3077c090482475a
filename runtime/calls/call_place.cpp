#include "runtime/calls/call_place.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <c10/util/StringUtil.h>

#include "runtime/calls/python_stack.h"

namespace trellis::runtime {
namespace {

constexpr std::size_t kMostSourceFrames = 8;

// LibTorch's callbacks are plain functions, and a call has its place on its thread.
const CallSite*& innermost_site() {
  thread_local const CallSite* site = nullptr;
  return site;
}
OpenScopes*& scopes_of_thread() {
  thread_local OpenScopes* scopes = nullptr;
  return scopes;
}

/// "…/site-packages/torch/".
const std::string& library_of_torch() {
  static const std::string folder = [] {
    Dl_info info{};
    const auto* symbol = reinterpret_cast<const void*>(&at::removeCallback);
    if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return std::string("\n");
    const auto package = std::filesystem::path(info.dli_fname).parent_path().parent_path();
    return package.string() + "/";
  }();
  return folder;
}

/// "virtual at::Tensor trellis::trainer::{anonymous}::Copy::backward(Tensors)" → "Copy::backward".
std::string short_name(std::string_view function) {
  function = function.substr(0, function.find('('));
  if (const auto space = function.rfind(' '); space != std::string_view::npos)
    function.remove_prefix(space + 1);
  if (const auto last = function.rfind("::"); last != std::string_view::npos && last > 0) {
    const auto before = function.rfind("::", last - 1);
    if (before != std::string_view::npos) function.remove_prefix(before + 2);
  }
  constexpr std::string_view kNameless = "{anonymous}::";
  if (function.starts_with(kNameless)) function.remove_prefix(kNameless.size());
  return std::string(function);
}

/// Not the user's: PyTorch's, ours, and what is between, such as decorators of
/// typing_extensions and context managers of Python's own library.
bool is_of_a_library(const SourceFrame& frame) {
  const auto has = [&](const char* part) { return frame.file.find(part) != std::string::npos; };
  const bool is_pythons = has("/lib/python3") && !has("-packages/");
  return is_pythons || frame.file.starts_with(library_of_torch()) || has("/trellis_neuron/") ||
         frame.file.ends_with("/typing_extensions.py");
}

}  // namespace

std::string describe(const SourceFrame& frame) {
  return c10::str(frame.file, ":", frame.line, " (", frame.function, ")");
}

std::string describe(const CallPlace& place) {
  std::string text;
  if (!place.scopes.empty()) text += ", in " + place.scopes;
  if (!place.frames.empty()) text += ", at " + describe(place.frames.front());
  return text;
}

CallSite::CallSite(std::source_location where) : where_(where), outer_(innermost_site()) {
  innermost_site() = this;
}

CallSite::~CallSite() { innermost_site() = outer_; }

SourceFrame CallSite::frame() const {
  std::string_view file = where_.file_name();
  constexpr std::string_view kUp = "../";  // from the folder of the build
  while (file.starts_with(kUp)) file.remove_prefix(kUp.size());
  return {short_name(where_.function_name()), std::string(file),
          static_cast<std::int64_t>(where_.line())};
}

void OpenScopes::enter() {
  scopes_of_thread() = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& scope) -> std::unique_ptr<at::ObserverContext> {
            if (scopes_of_thread() != nullptr) scopes_of_thread()->begin(scope.name());
            return nullptr;
          },
          [](const at::RecordFunction& scope, at::ObserverContext*) {
            if (scopes_of_thread() != nullptr) scopes_of_thread()->end(scope.name());
          })
          .scopes({at::RecordScope::USER_SCOPE}));
}

void OpenScopes::leave() {
  at::removeCallback(handle_);
  scopes_of_thread() = nullptr;
  const std::lock_guard lock(mutex_);
  open_.clear();
}

void OpenScopes::begin(const char* name) {
  const std::lock_guard lock(mutex_);
  open_.push_back(name);
}

/// By address: a scope owns its name.
void OpenScopes::end(const char* name) {
  const std::lock_guard lock(mutex_);
  const auto place = std::find(open_.rbegin(), open_.rend(), name);
  if (place != open_.rend()) open_.erase(std::next(place).base());
}

std::string OpenScopes::text() const {
  const std::lock_guard lock(mutex_);
  const auto kind = [](std::string_view name) { return name.substr(0, name.find('=')); };
  std::string text;
  for (std::size_t i = 0; i < open_.size(); ++i) {
    const bool hidden =
        std::any_of(open_.begin() + static_cast<std::ptrdiff_t>(i) + 1, open_.end(),
                    [&](const char* inner) { return kind(inner) == kind(open_[i]); });
    if (!hidden) text += (text.empty() ? "" : " ") + std::string(open_[i]);
  }
  return text;
}

CallPlace current_place() {
  CallPlace place;
  if (const OpenScopes* scopes = scopes_of_thread()) place.scopes = scopes->text();
  if (const CallSite* site = innermost_site()) {
    place.frames = {site->frame()};
    return place;
  }
  std::vector<SourceFrame> stack = python_stack(kMostSourceFrames, is_of_a_library);
  const auto own = std::find_if_not(stack.begin(), stack.end(), is_of_a_library);
  const auto begin = own == stack.end() ? stack.begin() : own;
  const auto count = std::min<std::ptrdiff_t>(kMostSourceFrames, stack.end() - begin);
  place.frames.assign(begin, begin + count);
  return place;
}

}  // namespace trellis::runtime
