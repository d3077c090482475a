#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "analysis/import/imported_config.h"
#include "base/error.h"

/// The parts of import_hugging_face. Internal to analysis/import.
namespace trellis::analysis::hugging_face {

struct JsonKey {
  std::string name;
  nlohmann::json value;
  std::string where;  ///< "file:12"
};

/// A file that is a JSON object, with its keys in the order of the file.
class JsonObject {
 public:
  /// Throws ConfigError "FILE: … expected EXPECTED", also for a key that is there twice.
  static JsonObject read(const std::string& file, const std::string& expected);
  /// The same for a text that is in no file. `file`: in place of its name.
  static JsonObject parse(const std::string& text, const std::string& file,
                          const std::string& expected);
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::vector<JsonKey>& keys() const { return keys_; }
  /// Null when the key is absent or null: transformers has the same default for both.
  [[nodiscard]] const nlohmann::json* find(std::string_view name) const;

 private:
  std::string file_;
  std::vector<JsonKey> keys_;
};

/// A problem for each argument that has two names, an older one and today's, with other values.
void refuse_contradictions(const JsonObject& arguments, Problems& problems);

/// "config.hidden_size". Values of names that end in "_token" may be secrets: they are not
/// repeated.
[[nodiscard]] SourceKey source_of(const std::string& prefix, const JsonKey& key);

/// A text as YAML on one line; quoted where it could be taken for something else.
[[nodiscard]] std::string yaml_text(const std::string& text);
[[nodiscard]] std::string yaml_number(double number);

/// Unclassified, with the nearest of `known`.
[[nodiscard]] ImportedKey unknown(SourceKey source, const std::string& name,
                                  const std::vector<std::string>& known);
/// A value as one of `neutral` ("false|null|0"), which an empty text, list or object is as null.
[[nodiscard]] bool is_neutral_value(const nlohmann::json& value, std::string_view neutral);

/// How keys are treated whose values need no arithmetic.
enum class RowUse { kBoolean, kInteger, kNumber, kIgnored, kNeutral };
struct Row {
  std::string_view keys;  ///< separated by spaces
  RowUse use;             ///< the first three: mapped to the setting `text`, if of this type
  std::string_view text;  ///< kIgnored: why; kNeutral: advice
  std::string_view neutral = "";  ///< kNeutral: separated by '|'
};
[[nodiscard]] const std::vector<Row>& model_rows();
[[nodiscard]] const std::vector<Row>& argument_rows();
[[nodiscard]] std::vector<std::string> words_of(std::string_view text);
/// The row that names `key`, or null.
[[nodiscard]] const Row* find_row(const std::vector<Row>& rows, std::string_view key);
[[nodiscard]] std::vector<std::string> keys_of(const std::vector<Row>& rows);

/// TrainingArguments by type. A value of a wrong type is a problem once, and reads as absent.
class Arguments {
 public:
  Arguments(const JsonObject* object, Problems& problems) : object_(object), problems_(&problems) {}
  [[nodiscard]] bool has(std::string_view name) const;  ///< present and not null
  [[nodiscard]] std::optional<double> number(std::string_view name) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name) const;
  /// An integer of at least 1 and below 2³¹.
  [[nodiscard]] std::optional<std::int64_t> positive(std::string_view name) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view name) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const;
  /// The first of several names of one argument that is there.
  [[nodiscard]] std::string first_of(std::string_view names) const;
  [[nodiscard]] const nlohmann::json* find(std::string_view name) const;
  [[nodiscard]] bool empty() const { return object_ == nullptr; }

 private:
  void problem(std::string_view name, const std::string& expected) const;
  const JsonObject* object_;
  Problems* problems_;
  mutable std::set<std::string> bad_;  ///< names whose problem is reported
};

/// Properties of the model on which arguments depend.
struct ModelFacts {
  std::string type;  ///< "llama"
  std::optional<int> kv_heads, max_positions;
  bool has_sequence = true;  ///< no: the length follows from the image
};

/// Ranks and batches.
struct Layout {
  std::int64_t tp = 1, pp = 1, world = 32, nodes = 1, devices = 32, dp = 32;
  std::int64_t micro_batch = 8, accumulation = 1, global_batch = 256;
  bool neuron = false;  ///< arguments of optimum-neuron
  std::string how;      ///< how global_batch was computed
  std::string problem;  ///< why there is no such layout
};
[[nodiscard]] Layout layout_of(const Arguments& args);

/// Result of one argument, or of several together.
struct Schedule {
  std::vector<Setting> type, kwargs, warmup;  ///< by the key that asks for them
  std::string note, problem;                  ///< of lr_scheduler_type
  std::string kwargs_problem, warmup_ignored;
};
struct Optimizer {
  std::vector<Setting> settings;
  bool has_betas = false, has_eps = false;
  std::string problem;
};
/// `max_steps`: −1: as many as the epochs have.
[[nodiscard]] Schedule schedule_of(const Arguments& args, std::int64_t max_steps);
[[nodiscard]] Optimizer optimizer_of(const Arguments& args);

struct Context {
  const Arguments& args;
  const ModelFacts& model;
  Layout layout;
  std::int64_t max_steps = -1;
  Schedule schedule;
  Optimizer optimizer;
};
[[nodiscard]] Context context_of(const Arguments& args, const ModelFacts& model);
/// "fp32", "autocast", or the manual switches.
[[nodiscard]] std::vector<Setting> precision_of(const Context& context);

/// Appends the keys of config.json and what they imply.
[[nodiscard]] ModelFacts import_model(const JsonObject& config, ImportedConfig& imported,
                                      Problems& problems);
void import_arguments(const JsonObject& object, const Context& context, ImportedConfig& imported);
/// Adds transformers' defaults that a legal file needs and that no key asked for.
void add_implied(const Context& context, ImportedConfig& imported);

}  // namespace trellis::analysis::hugging_face
