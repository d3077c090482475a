#include "analysis/export/come_back.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "analysis/import/schema_keys.h"

namespace trellis::analysis {
namespace {

bool matches(std::string_view pattern, std::string_view key) {
  return pattern.ends_with('*') ? key.starts_with(pattern.substr(0, pattern.size() - 1))
                                : key == pattern;
}

/// Keys of which a model of another source has none.
bool is_of_source(const std::string& key) {
  return key == "model_source" || key == "model.model_type" || key == "model.qkv_linear" ||
         key == "model.fuse_qkv" || resolved_name(key) != key;
}

/// Values of the result by resolved name.
class Again {
 public:
  /// Keys that no row decides keep their values of before, so that the result is legal when it was.
  Again(const ImportedConfig& imported, const ResolvedSettings& before,
        const Counterparts& counterparts)
      : settings_(settings_of(imported)) {
    for (const Setting& setting : settings_) said_[resolved_name(setting.key)] = setting.value;
    std::vector<Setting> whole = settings_;
    for (const SourceKey& key : before.all()) {
      if (!says(key.key) && !counterparts.has(key.key) && !is_of_source(key.key))
        whole.push_back({key.key, key.value});
    }
    resolved_ = ResolvedSettings::of_settings(whole);
  }
  [[nodiscard]] bool says(const std::string& key) const { return said_.contains(key); }
  /// True if value() is more than a guess: no legal result, no defaults.
  [[nodiscard]] bool knows(const std::string& key) const { return resolved_ || says(key); }
  /// The value that the key would have; "null" when nothing decides it.
  [[nodiscard]] std::string value(const std::string& key) const {
    if (resolved_ && !resolved_->yaml(key).empty()) return resolved_->yaml(key);
    const auto found = said_.find(key);
    return found == said_.end() ? "null" : found->second;
  }

 private:
  std::vector<Setting> settings_;  ///< that the importer gives
  std::optional<ResolvedSettings> resolved_;
  std::map<std::string, std::string> said_;
};

/// Equal up to the rounding of a product or a quotient.
bool equal_numbers(const std::string& one, const std::string& other) {
  double a = 0, b = 0;
  const auto read = [](const std::string& text, double& number) {
    return std::from_chars(text.data(), text.data() + text.size(), number).ptr ==
           text.data() + text.size();
  };
  return read(one, a) && read(other, b) && std::abs(a - b) <= 1e-12 * std::abs(a);
}

bool same(const std::string& one, const std::string& other) {
  const std::vector<std::string> ones = elements(one), others = elements(other);
  return std::ranges::equal(ones, others, [](const std::string& a, const std::string& b) {
    return a == b || trainer::is_neutral(a, b) || equal_numbers(a, b);
  });
}

/// Where nothing is said, a switch is off, and a number of parts or copies none or 1.
bool is_off(const std::string& value) {
  return std::ranges::any_of(std::array{"null", "false", "0", "1"},
                             [&](const char* off) { return same(value, off); });
}

std::string shown(const std::string& value) {
  if (value.starts_with('[') || value.starts_with('{')) return value;
  const std::string text = scalar_text(value);
  return text.empty() ? "null" : text;
}

class Judge {
 public:
  Judge(const ResolvedSettings& before, const ImportedConfig& again, const Counterparts& names)
      : before_(before), again_(again, before, names), names_(names) {}

  [[nodiscard]] std::vector<LeftOut> result() {
    for (const SourceKey& key : before_.given()) judge_given(key);
    for (const SourceKey& key : before_.all()) judge_default(key);
    return std::move(left_out_);
  }

 private:
  [[nodiscard]] bool is_form(std::string_view key) const {
    return std::ranges::any_of(names_.form,
                               [&](std::string_view pattern) { return matches(pattern, key); });
  }
  [[nodiscard]] bool has(const std::string& key) const {
    if (std::ranges::find(names_.none, key) != names_.none.end()) return false;
    return again_.says(key) || names_.has(key);
  }

  [[nodiscard]] std::string why_not(const std::string& key) const {
    if (std::string why = names_.why(key); !why.empty()) return why;
    const SchemaKey known = schema_key(key);
    const bool without_effect =
        known.group != nullptr && known.group->use == trainer::KeyUse::kIgnored;
    return names_.program + (without_effect ? " has no such setting, and it has no effect here"
                                            : " has no such setting");
  }

  /// A key without an effect here is written, but not kept when it is read.
  [[nodiscard]] bool comes_back(const std::string& key, const std::string& before,
                                const std::string& after) const {
    const SchemaKey known = schema_key(key);
    const bool without_effect =
        known.group != nullptr && known.group->use == trainer::KeyUse::kIgnored;
    return same(before, after) || (is_off(before) && same(after, "null")) ||
           (without_effect && names_.has(key));
  }

  void judge_given(const SourceKey& given) {
    const std::string key = resolved_name(given.key);
    seen_.insert(key);
    if (is_form(key)) return;
    const std::string value =
        before_.yaml(key).empty() ? given.value : before_.yaml(key);  // defaults fill what is null
    if (!has(key)) {
      // An explicit "none" is what a program without the setting does.
      if (!same(value, "null"))
        left_out_.push_back({given.key, given.value, given.where, why_not(key)});
    } else if (const std::string after = again_.value(key); !comes_back(key, value, after)) {
      left_out_.push_back({given.key, given.value, given.where, differs(key, after)});
    }
  }

  /// Leaves out a key that the file does not set and whose default the other program decides in
  /// another way.
  void judge_default(const SourceKey& resolved) {
    const std::string key = resolved_name(resolved.key);
    if (!seen_.insert(key).second || is_form(key) || !has(key) || !again_.knows(key)) return;
    if (const std::string after = again_.value(key); !comes_back(key, resolved.value, after))
      left_out_.push_back({key, shown(resolved.value), "", differs(key, after)});
  }

  [[nodiscard]] std::string differs(const std::string& key, const std::string& after) const {
    const std::string why = names_.why(key);
    return fmt::format("{} would have {}{}{}", names_.program, shown(after),
                       why.empty() ? "" : ": ", why);
  }

  const ResolvedSettings& before_;
  Again again_;
  const Counterparts& names_;
  std::set<std::string> seen_;
  std::vector<LeftOut> left_out_;
};

}  // namespace

std::vector<LeftOut> left_out(const ResolvedSettings& before, const ImportedConfig& again,
                              const Counterparts& counterparts) {
  return Judge(before, again, counterparts).result();
}

}  // namespace trellis::analysis
