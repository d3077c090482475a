#include "sim/config/load_software.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/nearest.h"
#include "sim/config/overlay.h"
#include "sim/config/parameter_reader.h"
#include "sim/config/system_config.h"

namespace trellis::sim {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStackKey = "stack";

fs::path software_directory() { return config_directory() / "software"; }

std::vector<SoftwareChange> read_changes(const YamlMap& release) {
  std::vector<SoftwareChange> changes;
  for (const YamlMap& entry : release.list_of_maps("changed")) {
    changes.push_back({entry.required<std::string>("what"), entry.required<std::string>("source"),
                       entry.required<std::string>("effect")});
    entry.reject_unknown();
  }
  return changes;
}

/// All but the numbers.
SoftwareStack read_stack(const YamlMap& root, const fs::path& file) {
  SoftwareStack stack;
  stack.name = root.required<std::string>(kStackKey);
  if (stack.name != file.stem())
    root.problem(kStackKey, "is " + stack.name + ", the file is named " + file.filename().string());
  stack.what = root.required<std::string>("what");
  stack.is_xla = root.required<bool>("xla");
  stack.default_release = root.required<std::string>("default");
  const YamlMap releases = root.map("releases");
  for (const std::string& name : releases.keys())
    stack.releases.push_back({name, read_changes(releases.map(name))});
  if (std::ranges::find(stack.releases, stack.default_release, &SoftwareRelease::name) ==
      stack.releases.end())
    root.problem("default", "is none of the releases");
  return stack;
}

std::vector<SoftwareStack> read_stacks(const fs::path& folder) {
  std::vector<SoftwareStack> stacks;
  if (!fs::is_directory(folder)) return stacks;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    const YamlDocument document = YamlDocument::load(entry.path());
    if (!document.root().has(kStackKey)) continue;  // what software takes of memory
    stacks.push_back(read_stack(document.root(), entry.path()));
    document.problems().throw_if_any();
  }
  std::ranges::sort(stacks, {}, &SoftwareStack::name);
  return stacks;
}

struct Choice {
  std::string stack, release;  ///< "": the default one
};

Choice split(const std::string& software) {
  const std::size_t at = software.find('@');
  if (at == std::string::npos) return {software, ""};
  return {software.substr(0, at), software.substr(at + 1)};
}

[[noreturn]] void refuse(const std::string& got, const std::vector<std::string>& known,
                         const std::string& what) {
  const std::string near = nearest_name(got, known);
  throw ConfigError(fmt::format("unknown {} `{}`{}; expected {}", what, got,
                                near.empty() ? "" : fmt::format(", did you mean `{}`?", near),
                                fmt::join(known, ", ")));
}

/// The numbers of every release hold until a later one has others.
class Numbers {
 public:
  Numbers(const YamlMap& root, const std::string& release, std::vector<Parameter>& parameters,
          Overlay& overlay)
      : maps_{root.map("host")}, parameters_(&parameters), overlay_(&overlay) {
    const YamlMap releases = root.map("releases");
    for (const std::string& name : releases.keys()) {
      maps_.push_back(releases.map(name).map("host"));
      if (name == release) wanted_ = maps_.size();
    }
  }

  template <typename T>
  T read(const std::string& key) {
    std::size_t chosen = 0;
    for (std::size_t i = 1; i < wanted_; ++i) chosen = maps_[i].has(key) ? i : chosen;
    T value{};
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      if (i == chosen) {
        value = ParameterReader(maps_[i], kSoftwarePrefix, parameters_, overlay_).read<T>(key);
      } else if (maps_[i].has(key)) {
        ParameterReader(maps_[i], kSoftwarePrefix, nullptr).read<T>(key);
      }
    }
    return value;
  }
  void reject_unknown() const {
    for (const YamlMap& map : maps_) map.reject_unknown();
  }

 private:
  std::vector<YamlMap> maps_;  ///< of all releases, then by release
  std::size_t wanted_ = 1;     ///< those before it hold
  std::vector<Parameter>* parameters_;
  Overlay* overlay_;
};

}  // namespace

const std::vector<SoftwareStack>& software_stacks() {
  static std::mutex mutex;
  static std::map<fs::path, std::vector<SoftwareStack>> read;  // configurations ask often
  const fs::path folder = software_directory();
  const std::lock_guard lock(mutex);
  const auto known = read.find(folder);
  return known != read.end() ? known->second
                             : read.emplace(folder, read_stacks(folder)).first->second;
}

SoftwareStack software_stack(const std::string& software) {
  if (software == kNoSoftware) return {};
  const Choice choice = split(software);
  std::vector<std::string> names = {kNoSoftware};
  for (const SoftwareStack& each : software_stacks()) {
    names.push_back(each.name);
    if (each.name != choice.stack) continue;
    std::vector<std::string> releases;
    for (const SoftwareRelease& release : each.releases) releases.push_back(release.name);
    if (software.find('@') != std::string::npos &&
        std::ranges::find(releases, choice.release) == releases.end())
      refuse(choice.release, releases, "release of " + each.name);
    return each;
  }
  refuse(choice.stack, names, "software");
}

SoftwareConfig load_software(const std::string& software, std::vector<Parameter>& parameters,
                             Overlay& overlay) {
  SoftwareConfig c;
  const SoftwareStack stack = software_stack(software);
  c.stack = stack.name;
  if (stack.name == kNoSoftware) return c;
  const std::string release = split(software).release;
  c.release = release.empty() ? stack.default_release : release;
  const fs::path file = software_directory() / (stack.name + ".yaml");
  const YamlDocument document = YamlDocument::load(file);
  Numbers r(document.root(), c.release, parameters, overlay);
  c.trace_time = r.read<Picoseconds>("trace_time");
  c.launch_time = r.read<Picoseconds>("launch_time");
  c.executions_in_flight = std::max(1, r.read<int>("executions_in_flight"));
  c.reads_per_micro_batch = r.read<int>("reads_per_micro_batch");
  c.reads_per_step = r.read<int>("reads_per_step");
  c.step_overhead = r.read<Picoseconds>("step_overhead");
  c.execution_stretch = r.read<double>("execution_stretch");
  r.reject_unknown();
  document.problems().throw_if_any();
  return c;
}

}  // namespace trellis::sim
