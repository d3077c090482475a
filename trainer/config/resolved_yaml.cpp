#include "trainer/config/resolved_yaml.h"

#include <cmath>

#include <fmt/format.h>

#include "trainer/config/resolved_model.h"
#include "trainer/config/sections.h"
#include "trainer/config/yaml_writer.h"

namespace trellis::trainer {
namespace {

std::string prefix_list(const std::vector<DataPrefix>& prefixes) {
  std::string list;
  for (const DataPrefix& prefix : prefixes) {
    list += (list.empty() ? "" : ", ") +
            fmt::format("{}, {}", prefix.weight, YamlWriter::quoted(prefix.path));
  }
  return "[" + list + "]";
}

void write_megatron_data(YamlWriter& out, const DataSection& section) {
  if (section.data_prefix_by_split.empty()) {
    out.raw("data_prefix", prefix_list(section.data_prefix));
    out.text("splits_string", fmt::format("{},{},{}", section.splits.at(0), section.splits.at(1),
                                          section.splits.at(2)));
    return;
  }
  out.open("data_prefix");
  for (const auto& [split, prefixes] : section.data_prefix_by_split)
    out.raw(split, prefix_list(prefixes));
  out.close();
}

void write_data(YamlWriter& out, const DataSection& section, const YamlMap& source) {
  out.open("data");
  out.integer("micro_batch_size", section.micro_batch_size);
  out.integer("global_batch_size", section.global_batch_size);
  out.text_or_null("train_dir", section.train_dir);
  out.text_or_null("val_dir", section.val_dir);
  out.text_or_null("test_dir", section.test_dir);
  if (section.kind == DataKind::kMegatron) write_megatron_data(out, section);
  out.text_or_null("index_mapping_dir", section.index_mapping_dir);
  out.text("dataloader_type", section.cyclic ? "cyclic" : "single");
  out.boolean("drop_last", section.drop_last);
  out.boolean("validation_drop_last", section.validation_drop_last);
  out.boolean("reset_position_ids", section.reset_position_ids);
  out.boolean("eod_mask_loss", section.eod_mask_loss);
  out.boolean("no_seqlen_plus_one_input_tokens", section.no_seqlen_plus_one_input_tokens);
  out.integer("num_workers", section.num_workers);
  if (section.kind == DataKind::kAlignment) {
    if (section.records.dev_choose_samples > 0)
      out.integer("dev_choose_samples", section.records.dev_choose_samples);
    out.boolean("shuffle", section.records.shuffle);
  }
  // With a tokenizer, an hf model's train_dir would be text.
  if (section.kind != DataKind::kHfDataset)
    write_tokenizer(out, section.tokenizer, source.map("tokenizer"));
  out.keep(source, "data");
  out.close();
}

void write_precision(YamlWriter& out, const PrecisionSection& section) {
  out.open("precision");
  out.text("type", section.type);
  out.text("parallel_layers_reduce_dtype", section.parallel_layers_reduce_dtype);
  if (section.type == "manual") {
    out.boolean("master_weights", section.master_weights);
    out.boolean("fp32_grad_acc", section.fp32_grad_acc);
    out.text("xla_use_bf16", section.floats_bf16 ? "1" : "0");
    out.text("xla_downcast_bf16", section.weights_bf16 && !section.floats_bf16 ? "1" : "0");
    out.text("neuron_rt_stochastic_rounding_en", section.stochastic_rounding ? "1" : "0");
  }
  out.close();
}

}  // namespace

std::string to_resolved_yaml(const RunConfig& config, const YamlMap& source) {
  YamlWriter out;
  out.text("name", config.name);
  out.text("model_source", config.model_source);
  if (config.software != "none") out.text("software", config.software);
  if (!config.machine.instance.empty()) out.text("instance", config.machine.instance);
  out.integer("seed", config.seed);
  if (config.bucket_size_collectives_mb > 0)
    out.integer("bucket_size_collectives", config.bucket_size_collectives_mb);
  out.keep(source, "");
  write_trainer(out, config.trainer, source.map("trainer"));
  write_exp_manager(out, config.exp_manager, source.map("exp_manager"));
  write_distributed_strategy(out, config.distributed_strategy);
  write_data(out, config.data, source.map("data"));
  write_model(out, config, source.map("model"));
  write_precision(out, config.precision);
  return out.result();
}

}  // namespace trellis::trainer
