#include "trainer/config/resolved_yaml.h"

#include <cmath>

#include <fmt/format.h>

#include "trainer/config/resolved_model.h"
#include "trainer/config/yaml_writer.h"

namespace trellis::trainer {
namespace {

void write_batch_count(YamlWriter& out, std::string_view key,
                       const std::optional<BatchCount>& value) {
  if (!value) return out.raw(key, "null");
  if (value->count) return out.integer(key, *value->count);
  const std::string text = fmt::format("{}", *value->fraction);
  out.raw(key, text.find_first_of(".e") == std::string::npos
                   ? text + ".0"
                   : text);  // an integer would be a count
}

void write_duration(YamlWriter& out, std::string_view key, const std::optional<double>& seconds) {
  if (!seconds) return out.raw(key, "null");
  if (*seconds != std::floor(*seconds))
    return out.raw(key, fmt::format("{{seconds: {}}}", *seconds));
  const auto s = static_cast<std::int64_t>(std::llround(*seconds));
  out.text(key,
           fmt::format("{:02}:{:02}:{:02}:{:02}", s / 86400, s / 3600 % 24, s / 60 % 60, s % 60));
}

void write_norm_type(YamlWriter& out, const std::optional<double>& norm) {
  if (!norm) return;
  std::isinf(*norm) ? out.text("track_grad_norm", "inf") : out.number("track_grad_norm", *norm);
}

void write_trainer(YamlWriter& out, const TrainerSection& section, const YamlMap& source) {
  out.open("trainer");
  out.integer("devices", section.devices);
  out.integer("num_nodes", section.num_nodes);
  out.integer("max_steps", section.max_steps);
  out.integer("max_epochs", section.max_epochs);
  out.integer_or_null("min_epochs", section.min_epochs);
  out.integer_or_null("min_steps", section.min_steps);
  write_duration(out, "max_time", section.max_time_s);
  out.integer("log_every_n_steps", section.log_every_n_steps);
  write_batch_count(out, "val_check_interval", section.val_check_interval);
  out.integer_or_null("check_val_every_n_epoch", section.check_val_every_n_epoch);
  out.integer("num_sanity_val_steps", section.num_sanity_val_steps);
  write_batch_count(out, "limit_train_batches", section.limit_train_batches);
  write_batch_count(out, "limit_val_batches", section.limit_val_batches);
  write_batch_count(out, "limit_test_batches", section.limit_test_batches);
  out.number_or_null("gradient_clip_val", section.gradient_clip_val);
  write_norm_type(out, section.track_grad_norm);
  out.boolean("enable_progress_bar", section.enable_progress_bar);
  out.integer_or_null("lnc", section.lnc);
  out.integer("sequential_move_factor", section.sequential_move_factor);
  out.keep(source, "trainer");
  out.close();
}

void write_callbacks(YamlWriter& out, const ExpManagerSection& section) {
  out.boolean("create_early_stopping_callback", section.early_stopping.has_value());
  if (section.early_stopping) {
    const EarlyStoppingSection& params = *section.early_stopping;
    out.open("early_stopping_callback_params");
    out.text("monitor", params.monitor);
    out.text("mode", params.mode);
    out.number("min_delta", params.min_delta);
    out.integer("patience", params.patience);
    out.boolean("check_finite", params.check_finite);
    out.number_or_null("stopping_threshold", params.stopping_threshold);
    out.number_or_null("divergence_threshold", params.divergence_threshold);
    out.close();
  }
  if (!section.ema) return;
  out.open("ema");
  out.boolean("enable", true);
  out.number("decay", section.ema->decay);
  out.integer("apply_ema_every_n_steps", section.ema->apply_ema_every_n_steps);
  out.integer("start_step", section.ema->start_step);
  out.boolean("evaluate_ema_weights_instead", section.ema->evaluate_ema_weights_instead);
  out.close();
}

void write_checkpoints(YamlWriter& out, const CheckpointSection& section, const YamlMap& source) {
  out.boolean("create_checkpoint_callback", section.create);
  out.boolean("resume_if_exists", section.resume_if_exists);
  out.boolean("resume_ignore_no_checkpoint", section.resume_ignore_no_checkpoint);
  out.text_or_null("resume_from_checkpoint", section.resume_from_checkpoint);
  out.boolean("save_xser", section.save_xser);
  out.boolean("save_bf16", section.save_bf16);
  out.boolean("async_checkpointing", section.async);
  out.open("checkpoint_callback_params");
  out.text_or_null("dirpath", section.dirpath);
  out.text_or_null("filename", section.filename);
  out.text("monitor", section.monitor);
  out.text("mode", section.mode);
  out.integer("save_top_k", section.save_top_k);
  out.boolean("save_last", section.save_last);
  out.boolean("save_weights_only", section.save_weights_only);
  out.boolean("auto_insert_metric_name", section.auto_insert_metric_name);
  out.integer("every_n_epochs", section.every_n_epochs);
  out.integer_or_null("every_n_train_steps", section.every_n_train_steps);
  out.number_or_null("train_time_interval", section.train_time_interval_s);
  out.keep(source.map("checkpoint_callback_params"), "exp_manager.checkpoint_callback_params");
  out.close();
}

void write_exp_manager(YamlWriter& out, const ExpManagerSection& section, const YamlMap& source) {
  out.open("exp_manager");
  out.text_or_null("explicit_log_dir", section.explicit_log_dir);
  out.text("exp_dir", section.exp_dir);
  out.text("name", section.name);
  out.text_or_null("version", section.version);
  out.boolean("use_datetime_version", section.use_datetime_version);
  out.boolean("create_tensorboard_logger", section.create_tensorboard_logger);
  out.boolean("log_step_timing", section.log_step_timing);
  out.boolean("log_parameter_norm", section.log_parameter_norm);
  out.boolean("log_gradient_norm", section.log_gradient_norm);
  out.boolean("log_local_rank_0_only", section.log_local_rank_0_only);
  out.boolean("log_global_rank_0_only", section.log_global_rank_0_only);
  out.texts("files_to_copy", section.files_to_copy);
  write_callbacks(out, section);
  write_checkpoints(out, section.checkpoints, source);
  out.keep(source, "exp_manager");
  out.close();
}

void write_distributed_strategy(YamlWriter& out, const DistributedStrategySection& section) {
  out.open("distributed_strategy");
  out.integer("tensor_model_parallel_size", section.tensor_model_parallel_size);
  out.integer("pipeline_model_parallel_size", section.pipeline_model_parallel_size);
  out.integer("virtual_pipeline_model_parallel_size", section.virtual_pipeline_model_parallel_size);
  out.integer("context_parallel_size", section.context_parallel_size);
  out.integer("expert_model_parallel_size", section.expert_model_parallel_size);
  out.integer("token_shuffle_group_size", section.token_shuffle_group_size);
  out.boolean("zero1", section.zero1);
  out.boolean("sequence_parallel", section.sequence_parallel);
  out.integer("kv_replicator", section.kv_replicator);
  out.close();
}

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

void write_tokenizer(YamlWriter& out, const TokenizerSection& section, const YamlMap& source) {
  out.open("tokenizer");
  out.text("library", section.library);
  out.text_or_null("type", section.type);
  out.text_or_null("model", section.model);
  out.text_or_null("vocab_file", section.vocab_file);
  out.text_or_null("merge_file", section.merge_file);
  out.keep(source, "data.tokenizer");
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
