#include <fmt/format.h>

#include "trainer/config/fields.h"
#include "trainer/config/sections.h"
#include "trainer/config/yaml_writer.h"

namespace trellis::trainer {
namespace {

/// When checkpoints are saved. Epochs count where neither steps nor time do, as in NxDT.
void read_triggers(SectionReader& params, CheckpointSection& section) {
  if (const auto steps = params.optional<std::int64_t>("every_n_train_steps");
      steps && *steps != 0) {
    section.every_n_train_steps = *steps;
    if (*steps < 0)
      params.problem("every_n_train_steps", fmt::format("must not be negative, got {}", *steps));
  }
  if (params.is_map("train_time_interval")) {
    section.train_time_interval_s = read_duration(params, "train_time_interval");
  } else if (const auto seconds = params.optional<double>("train_time_interval")) {
    section.train_time_interval_s = *seconds;
    if (*seconds <= 0)
      params.problem("train_time_interval",
                     fmt::format("expected seconds above 0, got {}", *seconds));
  }
  section.every_n_epochs = params.non_negative("every_n_epochs", section.every_n_epochs);
  if (section.every_n_train_steps || section.train_time_interval_s) section.every_n_epochs = 0;
}

void read_params(SectionReader params, CheckpointSection& section) {
  section.dirpath = params.get<std::string>("dirpath", "");
  section.filename = params.get<std::string>("filename", "");
  section.monitor = params.get<std::string>("monitor", section.monitor);
  section.mode = params.one_of("mode", section.mode, {"min", "max"});
  section.save_top_k = params.get<int>("save_top_k", section.save_top_k);
  if (section.save_top_k < -1)
    params.problem("save_top_k", fmt::format("expected -1 (all), 0 (none) or how many are kept, "
                                             "got {}",
                                             section.save_top_k));
  section.save_last = params.get<bool>("save_last", section.save_last);
  section.save_weights_only = params.get<bool>("save_weights_only", section.save_weights_only);
  section.auto_insert_metric_name =
      params.get<bool>("auto_insert_metric_name", section.auto_insert_metric_name);
  section.async = params.get<bool>("async_save", false);
  read_triggers(params, section);
}

}  // namespace

/// Megatron's modes of which a run can do what they say: return_* would hand names to a program.
void dist_ckpt_fields(Fields& fields, DistCkptSection& s) {
  fields.one_of("dist_ckpt_format", s.format, {"nxd", "torch_dist"});
  fields.boolean("dist_ckpt_parallel_save", s.parallel_save);
  fields.boolean("dist_ckpt_assume_constant_structure", s.assume_constant_structure);
  fields.one_of("dist_ckpt_load_strictness", s.load_strictness,
                {"assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected",
                 "raise_all", "ignore_all"});
  fields.positive("dist_ckpt_torch_dist_multiproc", s.files_per_rank);
}

void list_dist_ckpt_keys(Fields& fields) {
  DistCkptSection section;
  dist_ckpt_fields(fields, section);
}

CheckpointSection read_checkpoints(SectionReader& exp_manager) {
  CheckpointSection section;
  section.create = exp_manager.get<bool>("create_checkpoint_callback", section.create);
  read_params(exp_manager.section("checkpoint_callback_params"), section);
  section.save_xser = exp_manager.get<bool>("save_xser", section.save_xser);
  section.save_bf16 = exp_manager.get<bool>("save_bf16", section.save_bf16);
  section.masters_replace_weights = exp_manager.get<bool>("avoid_saving_lower_precision_weights",
                                                          section.masters_replace_weights);
  if (section.masters_replace_weights && section.save_weights_only)
    exp_manager.problem("avoid_saving_lower_precision_weights",
                        "expected false with checkpoint_callback_params.save_weights_only: weights "
                        "are left out where the optimizer's files have their masters");
  section.async = exp_manager.get<bool>("async_checkpointing", section.async) || section.async;
  section.async_buffer_gib = exp_manager.optional<double>("async_buffer_gib");
  constexpr double kMostGib = 1 << 20;  // no host has a PiB
  if (const auto gib = section.async_buffer_gib; gib && !(*gib > 0 && *gib <= kMostGib)) {
    exp_manager.problem("async_buffer_gib",
                        fmt::format("expected GiB above 0, at most {}, got {}", kMostGib, *gib));
    section.async_buffer_gib.reset();
  }
  section.resume_if_exists = exp_manager.get<bool>("resume_if_exists", section.resume_if_exists);
  section.resume_ignore_no_checkpoint =
      exp_manager.get<bool>("resume_ignore_no_checkpoint", section.resume_ignore_no_checkpoint);
  section.resume_from_checkpoint = exp_manager.get<std::string>("resume_from_checkpoint", "");
  return section;
}

void write_checkpoints(YamlWriter& out, const CheckpointSection& section, const YamlMap& source) {
  out.boolean("create_checkpoint_callback", section.create);
  out.boolean("resume_if_exists", section.resume_if_exists);
  out.boolean("resume_ignore_no_checkpoint", section.resume_ignore_no_checkpoint);
  out.text_or_null("resume_from_checkpoint", section.resume_from_checkpoint);
  out.boolean("save_xser", section.save_xser);
  out.boolean("save_bf16", section.save_bf16);
  if (section.masters_replace_weights) out.boolean("avoid_saving_lower_precision_weights", true);
  out.boolean("async_checkpointing", section.async);
  if (section.async_buffer_gib) out.number_or_null("async_buffer_gib", section.async_buffer_gib);
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

}  // namespace trellis::trainer
