#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "analysis/export/come_back.h"
#include "analysis/export/megatron_words.h"
#include "analysis/import/key_words.h"
#include "analysis/import/megatron_table.h"
#include "analysis/import/shell_words.h"
#include "analysis/import/sources.h"
#include "base/escape.h"
#include "trainer/config/families/model_family.h"

namespace trellis::analysis {
namespace {

constexpr std::size_t kColumns = 100;

/// A row that moves one key, in the other direction. The first of several names is today's.
MegatronValues moved(const MegatronRow& row, std::string_view name,
                     const ResolvedSettings& settings) {
  if (!megatron_moves(name, settings)) return std::nullopt;
  if (row.values == MegatronRow::Values::kNone) {
    if (settings.is(row.target, row.note)) return std::vector<std::string>{};
    return std::nullopt;
  }
  std::string value = settings.text(row.target);
  if (value.empty()) value = megatron_needs(name);
  if (value.empty()) return std::nullopt;
  return std::vector<std::string>{value};
}

class Script {
 public:
  explicit Script(const ResolvedSettings& settings) : settings_(settings) {}

  std::string text() {
    // With tensor or context parallelism Megatron-LM refuses to start without it.
    text_ = "#!/usr/bin/env bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun";
    column_ = 8;
    add(launcher_rows());
    word("pretrain_gpt.py");
    add(megatron_mapped_rows());
    if (settings_.config().data.kind != trainer::DataKind::kMegatron) argument("mock-data", {});
    return text_ + "\n";
  }

 private:
  void add(std::span<const MegatronRow> rows) {
    for (const MegatronRow& row : rows) {
      bool first = true;
      for_each_word(row.names, [&](std::string_view name) {
        MegatronValues values;
        if (row.does == MegatronRow::Does::kMoves) {
          if (first) values = moved(row, name, settings_);
          first = false;
        } else if (const MegatronWord* rule = megatron_word(name);
                   rule != nullptr && rule->values != nullptr) {
          values = rule->values(settings_);
        }
        if (values) argument(name, *values);
      });
    }
  }

  /// On one line with its values.
  void argument(std::string_view name, const std::vector<std::string>& values) {
    std::string text = "--" + std::string(name);
    if (name == "nproc-per-node") std::ranges::replace(text.begin() + 2, text.end(), '-', '_');
    for (const std::string& value : values) text += " " + shell_word(value);
    word(text);
  }

  void word(const std::string& text) {
    const bool fits = column_ + 1 + text.size() + 2 <= kColumns;
    text_ += fits ? " " + text : " \\\n  " + text;
    column_ = fits ? column_ + 1 + text.size() : 2 + text.size();
  }

  const ResolvedSettings& settings_;
  std::string text_;
  std::size_t column_ = 0;
};

bool has_argument(std::string_view key) {
  const auto moves = [&](const MegatronRow& row) {
    return row.does == MegatronRow::Does::kMoves && row.target == key;
  };
  return std::ranges::any_of(megatron_mapped_rows(), moves) || megatron_word_decides(key);
}

std::string why(std::string_view key) {
  if (key.starts_with("data.t") && key.ends_with("_dir"))
    return "Megatron-LM reads .bin/.idx, which `trellis data preprocess` writes; --mock-data takes "
           "their place";
  if (key == "exp_manager.resume_from_checkpoint")
    return "`trellis checkpoint convert --to megatron` writes what --load reads";
  if (key == "distributed_strategy.kv_replicator" || key == "model.qkv_linear")
    return "Megatron-LM copies key/value heads by itself where tensor-parallel ranks outnumber "
           "them";
  return "";
}

/// The import refuses all arguments for stages of different sizes, so none is written.
void add_uneven_stages(const ResolvedSettings& settings, std::vector<LeftOut>& left_out) {
  constexpr const char* kStages = "distributed_strategy.pipeline_model_parallel_size";
  const trainer::RunConfig& config = settings.config();
  const int stages = config.pp() * config.vpp();
  if (config.model.num_layers % stages == 0) return;
  const auto given = std::ranges::find(settings.given(), kStages, &SourceKey::key);
  left_out.push_back(
      {kStages, settings.text(kStages), given == settings.given().end() ? "" : given->where,
       fmt::format("Megatron-LM does not start: {} layers cannot be divided evenly among {} stages",
                   config.model.num_layers, stages)});
}

}  // namespace

ExportedConfig export_megatron(const std::string& file, const std::vector<std::string>& overrides) {
  const ResolvedSettings settings = ResolvedSettings::of_file(file, overrides);
  ExportedConfig exported{.text = Script(settings).text(), .left_out = {}};
  // The places follow from others where the file has none.
  std::vector<std::string_view> form = {"model_source", "model.model_config",
                                        "exp_manager.checkpoint_callback_params.dirpath",
                                        "exp_manager.explicit_log_dir"};
  for (const trainer::ModelFamily* family : trainer::families())
    if (family->in_megatron && settings.is("model.model_type", family->type))
      form.emplace_back("model.model_type");
  ShellReader reader;
  exported.left_out =
      left_out(settings, import_megatron_text(exported.text, "result", reader),
               {.program = "Megatron-LM", .has = has_argument, .why = why, .form = form});
  add_uneven_stages(settings, exported.left_out);
  return exported;
}

}  // namespace trellis::analysis
