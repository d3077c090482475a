#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "trainer/config/lr_scheduler.h"
#include "trainer/config/names.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/config/reader/known_keys.h"
#include "trainer/config/reader/yaml_writer.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

/// Two numbers of a list, as `first` and `second`.
bool read_pair(SectionReader& reader, const std::string& key, const char* example, double& first,
               double& second) {
  const auto values = reader.optional<std::vector<double>>(key);
  if (!values) return false;
  if (values->size() != 2) {
    reader.problem(key,
                   fmt::format("expected two numbers such as {}, got {}", example, values->size()));
    return false;
  }
  first = values->front();
  second = values->back();
  return true;
}

/// Adafactor with relative_step computes its own rate.
double read_lr(SectionReader& reader, const std::string& optimizer) {
  const bool own_rate = optimizer == "adafactor" && reader.get<bool>("relative_step", false);
  if (own_rate && !reader.has_value("lr")) return 0;
  const double lr = reader.required<double>("lr");
  if (reader.good({"lr"}) && lr <= 0)
    reader.problem("lr", fmt::format("must be greater than 0, got {}", lr));
  return lr;
}

void read_betas(SectionReader& reader, OptimSection& section) {
  double first = 0, second = 0;
  if (!read_pair(reader, "betas", "[0.9, 0.95]", first, second)) return;
  for (const double beta : {first, second}) {
    if (beta < 0 || beta >= 1)
      return reader.problem("betas", fmt::format("each must be in [0, 1), got {}", beta));
  }
  section.beta1 = first;
  section.beta2 = second;
}

bool is_boolean_text(const std::string& text) {
  return text == "true" || text == "True" || text == "TRUE" || text == "false" || text == "False" ||
         text == "FALSE";
}

/// One argument as a number: booleans are 0 and 1, words their place.
std::optional<double> read_argument(SectionReader& reader, const std::string& key,
                                    const std::string& owner) {
  if (const std::vector<std::string> words = words_of(owner, key); !words.empty()) {
    const std::string word = reader.one_of(key, words.front(), words);
    if (!reader.good({key.c_str()})) return std::nullopt;
    return static_cast<double>(std::ranges::find(words, word) - words.begin());
  }
  if (!is_boolean_text(reader.raw(key))) return reader.optional<double>(key);
  const auto value = reader.optional<bool>(key);
  return value ? std::optional<double>(*value ? 1 : 0) : std::nullopt;
}

/// The arguments that `infos` lists, from the YAML; lists are stored as name_0 and name_1.
void read_arguments(SectionReader& reader, const std::string& owner,
                    const std::vector<OptimizerArgument>& infos,
                    std::map<std::string, double>& arguments) {
  for (const OptimizerArgument& info : infos) {
    if (info.name.ends_with("_1") || info.name == "capturable") continue;
    if (!info.name.ends_with("_0")) {
      if (reader.has_value(info.name)) {
        if (const auto value = read_argument(reader, info.name, owner))
          arguments[info.name] = *value;
      }
      continue;
    }
    const std::string key = info.name.substr(0, info.name.size() - 2);
    double first = 0, second = 0;
    if (read_pair(reader, key, "[0.5, 1.2]", first, second))
      arguments[key + "_0"] = first, arguments[key + "_1"] = second;
  }
}

/// True if `infos` has an argument that is written as `key`.
bool takes(const std::vector<OptimizerArgument>& infos, const std::string& key) {
  return std::ranges::any_of(infos, [&](const OptimizerArgument& info) {
    return info.name == key || info.name == key + "_0";
  });
}

/// The arguments that any optimizer or schedule of the section `path` has.
std::vector<std::string> argument_keys(const std::string& path) {
  static const std::vector<std::string> kShared = {
      "name",           "lr",           "weight_decay",
      "warmup_steps",   "warmup_ratio", "constant_steps",
      "constant_ratio", "hold_steps",   "hold_ratio",
      "min_lr",         "max_steps"};
  std::vector<std::string> keys;
  for (const KnownKey& known : known_keys_of(path)) {
    const bool shared = std::ranges::find(kShared, known.key) != kShared.end();
    if (known.group->use == KeyUse::kSupported && !shared) keys.push_back(known.key);
  }
  return keys;
}

/// Keys of the section that another optimizer or schedule has.
void refuse_foreign(SectionReader& reader, const std::string& owner,
                    const std::vector<OptimizerArgument>& infos,
                    const std::vector<std::string>& common) {
  std::string own;
  for (const OptimizerArgument& info : infos) {
    if (info.name.ends_with("_1")) continue;
    own += (own.empty() ? "" : ", ") +
           (info.name.ends_with("_0") ? info.name.substr(0, info.name.size() - 2) : info.name);
  }
  for (const std::string& key : argument_keys(reader.path())) {
    if (!reader.has_value(key) || takes(infos, key) ||
        std::ranges::find(common, key) != common.end())
      continue;
    reader.problem(
        key, fmt::format("is no argument of {}; {}", owner,
                         own.empty() ? "it has no own arguments" : "its own arguments: " + own));
  }
}

/// "<what>_steps", or "<what>_ratio" of the run's steps; NeMo takes only one of them.
std::int64_t read_steps(SectionReader& reader, const std::string& what, std::int64_t max_steps) {
  const std::string steps_key = what + "_steps", ratio_key = what + "_ratio";
  const std::int64_t steps = reader.non_negative(steps_key, std::int64_t{0});
  if (!reader.has_value(ratio_key)) return steps;
  const double ratio = reader.fraction(ratio_key, 0);
  if (!reader.good({ratio_key.c_str()})) return 0;
  if (steps > 0)
    reader.problem(ratio_key, fmt::format("excludes {}; remove one of them", steps_key));
  return static_cast<std::int64_t>(ratio * static_cast<double>(max_steps));
}

/// NxDT's GPT example asks for a constant tail that is longer than the run.
void clamp_tail(SectionReader& reader, std::int64_t max_steps, SchedSection& section) {
  const std::int64_t room = std::max<std::int64_t>(0, max_steps - section.warmup_steps);
  if (section.constant_steps <= room || max_steps < 1) return;
  reader.warn(reader.has("constant_steps") ? "constant_steps" : "constant_ratio",
              fmt::format("{} leaves no step to anneal in: {}max_steps {} − warmup_steps {} "
                          "= {} is used, and the rate falls to min_lr after "
                          "the warm-up",
                          section.constant_steps, section.max_steps ? "" : "trainer.", max_steps,
                          section.warmup_steps, room));
  section.constant_steps = room;
}

void report(SectionReader& reader, const std::vector<SectionProblem>& problems) {
  for (const SectionProblem& problem : problems) {
    if (reader.good({problem.key.c_str()})) reader.problem(problem.key, problem.text);
  }
}

std::optional<std::int64_t> read_length(SectionReader& reader) {
  const auto steps = reader.optional<std::int64_t>("max_steps");
  if (!steps || *steps >= 1) return steps;
  if (*steps == -1) return std::nullopt;  // ${trainer.max_steps} of a run that epochs end
  reader.problem("max_steps", fmt::format("must be at least 1, got {}; without it a schedule lasts "
                                          "for trainer.max_steps",
                                          *steps));
  return std::nullopt;
}

/// `run_steps`: of the run, which the schedule lasts for where it has no own max_steps.
SchedSection read_sched(SectionReader& reader, std::int64_t run_steps) {
  SchedSection section;
  section.name = reader.one_of("name", section.name, schedule_names());
  if (!reader.good({"name"})) return section;
  section.max_steps = read_length(reader);
  const std::int64_t max_steps = section.max_steps.value_or(run_steps);
  section.warmup_steps = read_steps(reader, "warmup", max_steps);
  section.constant_steps = read_steps(reader, "constant", max_steps);
  section.hold_steps = read_steps(reader, "hold", max_steps);
  section.min_lr = reader.non_negative("min_lr", default_min_lr(section.name));
  const std::vector<OptimizerArgument> infos = schedule_arguments(section.name);
  read_arguments(reader, section.name, infos, section.arguments);
  refuse_foreign(reader, section.name, infos, {});
  clamp_tail(reader, max_steps, section);
  return section;
}

/// Arguments as their YAML: lists are stored as name_0 and name_1, words as numbers.
void write_arguments(YamlWriter& out, const std::map<std::string, double>& arguments,
                     const std::string& owner) {
  for (const auto& [name, value] : arguments) {
    const std::string stem = name.size() > 2 ? name.substr(0, name.size() - 2) : name;
    if (name.ends_with("_1") && arguments.contains(stem + "_0")) continue;
    if (name.ends_with("_0")) {
      out.raw(stem, fmt::format("[{}, {}]", value, arguments.at(stem + "_1")));
    } else if (const auto words = words_of(owner, name); !words.empty()) {
      out.text(name, words.at(static_cast<std::size_t>(value)));
    } else {
      out.number(name, value);
    }
  }
}

void write_sched(YamlWriter& out, const SchedSection& sched) {
  out.open("sched");
  out.text("name", sched.name);
  out.integer("warmup_steps", sched.warmup_steps);
  out.integer("constant_steps", sched.constant_steps);
  out.integer("hold_steps", sched.hold_steps);
  if (sched.max_steps) out.integer("max_steps", *sched.max_steps);
  out.number("min_lr", sched.min_lr);
  write_arguments(out, sched.arguments, sched.name);
  out.close();
}

}  // namespace

OptimSection read_optim(SectionReader& reader, std::int64_t max_steps) {
  std::vector<std::string> names;
  for (const OptimizerInfo& info : optimizer_table()) names.push_back(info.name);
  const std::string name = reader.one_of("name", "adamw", names);
  const bool known = reader.good({"name"});
  OptimSection section = default_optim_section(known ? name : "adamw");
  const OptimizerInfo& info = *find_optimizer(section.name);
  section.lr = read_lr(reader, section.name);
  section.weight_decay = reader.non_negative("weight_decay", section.weight_decay);
  std::vector<std::string> common;
  if (info.has_betas || !known) common.emplace_back("betas"), read_betas(reader, section);
  if (info.has_eps || !known)
    common.emplace_back("eps"), section.eps = reader.non_negative("eps", *section.eps);
  if (known) {
    read_arguments(reader, section.name, info.arguments, section.arguments);
    refuse_foreign(reader, section.name, info.arguments, common);
  }
  SectionReader sched = reader.section("sched");
  if (sched.has("name")) {
    section.sched = read_sched(sched, max_steps);
  } else if (!sched.empty()) {
    sched.problem("name", fmt::format("this key is required and missing; expected {}",
                                      join_names(schedule_names())));
  }
  const std::int64_t length = schedule_steps(section, max_steps);
  if (section.sched && length == -1) {
    sched.warn(
        "name",
        "has no effect with trainer.max_steps -1: a schedule needs its length, so the learning "
        "rate stays constant, as NxDT's does");
    section.sched.reset();
  }
  report(reader, check_optimizer(section));
  OptimSection judged = section;
  if (!reader.good({"lr"}))
    judged.lr = std::numeric_limits<double>::max();  // no rule may build on a wrong rate
  if (section.sched && sched.good({"name"})) report(sched, check_schedule(judged, length));
  return section;
}

void write_optim(YamlWriter& out, const OptimSection& written) {
  const OptimizerInfo& info = *find_optimizer(written.name);
  const OptimSection section = with_optimizer_defaults(written);
  out.open("optim");
  out.text("name", section.name);
  if (section.lr > 0) out.number("lr", section.lr);
  out.number("weight_decay", section.weight_decay);
  if (info.has_betas) out.raw("betas", fmt::format("[{}, {}]", *section.beta1, *section.beta2));
  if (info.has_eps) out.number("eps", *section.eps);
  write_arguments(out, section.arguments, section.name);
  if (section.sched) write_sched(out, *section.sched);
  out.close();
}

}  // namespace trellis::trainer
