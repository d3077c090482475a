#include <utility>

#include <fmt/format.h>

#include "trainer/config/model_properties.h"
#include "trainer/config/reader/fields.h"
#include "trainer/config/reader/yaml_writer.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

void read_steps(SectionReader& params, CheckpointSection& s) {
  const auto steps = params.optional<std::int64_t>("every_n_train_steps");
  if (!steps || *steps == 0) return;
  s.every_n_train_steps = *steps;
  if (*steps < 0)
    params.problem("every_n_train_steps", fmt::format("must not be negative, got {}", *steps));
}

void read_interval(SectionReader& params, CheckpointSection& s) {
  if (params.is_map("train_time_interval")) {
    s.train_time_interval_s = read_duration(params, "train_time_interval");
  } else if (const auto seconds = params.optional<double>("train_time_interval")) {
    s.train_time_interval_s = *seconds;
    if (*seconds <= 0)
      params.problem("train_time_interval",
                     fmt::format("expected seconds above 0, got {}", *seconds));
  }
}

void check_save_top_k(SectionReader& params, const CheckpointSection& s) {
  if (s.save_top_k >= -1) return;
  params.problem("save_top_k", fmt::format("expected -1 (all), 0 (none) or how many are kept, "
                                           "got {}",
                                           s.save_top_k));
}

void check_optim_states(SectionReader& params, const CheckpointSection& s) {
  if (s.save_last_n_optim_states == -1 || s.save_last_n_optim_states >= 1) return;
  params.problem("save_last_n_optim_states",
                 fmt::format("expected -1 (all), or 1 or more that a training can go on from, got "
                             "{}; save_weights_only leaves out all states",
                             s.save_last_n_optim_states));
}

/// When checkpoints are saved. Epochs count where neither steps nor time do, as in NxDT.
void trigger_fields(Fields& fields, CheckpointSection& s) {
  fields.non_negative("every_n_epochs", s.every_n_epochs);
  fields.form(
      "every_n_train_steps", [&](SectionReader& r) { read_steps(r, s); },
      [&](YamlWriter& out) { out.integer_or_null("every_n_train_steps", s.every_n_train_steps); });
  fields.form(
      "train_time_interval", [&](SectionReader& r) { read_interval(r, s); },
      [&](YamlWriter& out) { out.number_or_null("train_time_interval", s.train_time_interval_s); });
  fields.rule([&](SectionReader&) {
    if (s.every_n_train_steps || s.train_time_interval_s) s.every_n_epochs = 0;
  });
}

void params_fields(Fields& fields, CheckpointSection& s) {
  fields.text_or_null("dirpath", s.dirpath);
  fields.text_or_null("filename", s.filename);
  fields.text("monitor", s.monitor);
  fields.one_of("mode", s.mode, {"min", "max"});
  fields.integer("save_top_k", s.save_top_k);
  fields.rule([&](SectionReader& r) { check_save_top_k(r, s); });
  fields.boolean("save_last", s.save_last);
  fields.integer("save_last_n_optim_states", s.save_last_n_optim_states);
  fields.rule([&](SectionReader& r) { check_optim_states(r, s); });
  fields.boolean("save_weights_only", s.save_weights_only);
  fields.boolean("enable_version_counter", s.enable_version_counter);
  fields.boolean("verbose", s.verbose);
  fields.boolean("auto_insert_metric_name", s.auto_insert_metric_name);
  trigger_fields(fields, s);
  // Newer NeMo's name of exp_manager.async_checkpointing.
  fields.only_read("async_save",
                   [&](SectionReader& r) { s.async = r.get<bool>("async_save", false); });
}

void check_masters(SectionReader& reader, const CheckpointSection& s) {
  if (!s.masters_replace_weights) return;
  for (const auto& [leaves_states, key] :
       {std::pair(s.save_weights_only, "save_weights_only"),
        {s.save_last_n_optim_states != -1, "save_last_n_optim_states"}}) {
    if (leaves_states)
      reader.problem("avoid_saving_lower_precision_weights",
                     fmt::format("expected false with checkpoint_callback_params.{}: weights are "
                                 "left out where the optimizer's files have their masters",
                                 key));
  }
}

void check_zero1_dcp(SectionReader& reader, const CheckpointSection& s) {
  if (!s.zero1_dcp) return;
  if (!s.async)
    reader.problem("use_zero1_dcp", "expected false, or async_checkpointing: true, as in NxD");
  if (s.masters_replace_weights)
    reader.problem("use_zero1_dcp",
                   "expected false with avoid_saving_lower_precision_weights, as in NxD");
  if (s.save_weights_only)
    reader.problem("use_zero1_dcp",
                   "expected false with checkpoint_callback_params.save_weights_only: no states of "
                   "the optimizer are saved");
}

void read_buffer(SectionReader& reader, CheckpointSection& s) {
  constexpr double kMostGib = 1 << 20;  // no host has a PiB
  s.async_buffer_gib = reader.optional<double>("async_buffer_gib");
  const auto gib = s.async_buffer_gib;
  if (!gib || (*gib > 0 && *gib <= kMostGib)) return;
  reader.problem("async_buffer_gib",
                 fmt::format("expected GiB above 0, at most {}, got {}", kMostGib, *gib));
  s.async_buffer_gib.reset();
}

/// Arguments of NxD's save_checkpoint that NxDT has no keys for. Written where they are set.
void own_checkpoint_fields(Fields& fields, CheckpointSection& s) {
  const char* masters = "avoid_saving_lower_precision_weights";
  fields.own().form(
      masters,
      [&](SectionReader& r) {
        s.masters_replace_weights = r.get<bool>(masters, s.masters_replace_weights);
        check_masters(r, s);
      },
      [&](YamlWriter& out) {
        if (s.masters_replace_weights) out.boolean(masters, true);
      });
  fields.own().form(
      "use_zero1_dcp",
      [&](SectionReader& r) {
        s.zero1_dcp = r.get<bool>("use_zero1_dcp", s.zero1_dcp);
        check_zero1_dcp(r, s);
      },
      [&](YamlWriter& out) {
        if (s.zero1_dcp) out.boolean("use_zero1_dcp", true);
      });
  fields.own().form(
      "async_buffer_gib", [&](SectionReader& r) { read_buffer(r, s); },
      [&](YamlWriter& out) {
        if (s.async_buffer_gib) out.number_or_null("async_buffer_gib", s.async_buffer_gib);
      });
}

/// Written where it is set, as `--accept-difference` does.
void accepted_field(Fields& fields, CheckpointSection& s) {
  const char* key = "accept_differences";
  fields.own().form(
      key,
      [&](SectionReader& r) {
        s.accept_differences = r.get<std::vector<std::string>>(key, {});
        for (const std::string& each : s.accept_differences) {
          if (const std::string why = why_not_accepted(each); !why.empty()) r.problem(key, why);
        }
      },
      [&](YamlWriter& out) {
        if (!s.accept_differences.empty()) out.texts(key, s.accept_differences);
      });
}

/// Keys of exp_manager, after those of its checkpoint_callback_params.
void checkpoint_fields(Fields& fields, CheckpointSection& s) {
  fields.boolean("create_checkpoint_callback", s.create);
  fields.boolean("resume_if_exists", s.resume_if_exists);
  fields.boolean("resume_ignore_no_checkpoint", s.resume_ignore_no_checkpoint);
  fields.text_or_null("resume_from_checkpoint", s.resume_from_checkpoint);
  fields.boolean("save_xser", s.save_xser);
  fields.boolean("save_bf16", s.save_bf16);
  fields.form(
      "async_checkpointing",
      [&](SectionReader& r) { s.async = r.get<bool>("async_checkpointing", false) || s.async; },
      [&](YamlWriter& out) { out.boolean("async_checkpointing", s.async); });
  fields.boolean("enable_recovery_time_instrumentation", s.recovery_times);
  own_checkpoint_fields(fields, s);
  accepted_field(fields, s);
}

}  // namespace

/// Megatron's modes of which a run can do what they say: return_* would hand names to a program.
void dist_ckpt_fields(Fields& fields, DistCkptSection& s) {
  fields.one_of("dist_ckpt_format", s.format, {"nxd", "torch_dist"});
  fields.boolean("dist_ckpt_parallel_save", s.parallel_save);
  fields.boolean("dist_ckpt_parallel_load", s.parallel_load);
  fields.boolean("dist_ckpt_parallel_dist_opt", s.parallel_dist_opt);
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
  SectionReader params = exp_manager.section("checkpoint_callback_params");
  Fields of_params = Fields::reading(params);
  params_fields(of_params, section);
  Fields fields = Fields::reading(exp_manager);
  checkpoint_fields(fields, section);
  return section;
}

void write_checkpoints(YamlWriter& out, CheckpointSection section, const YamlMap& source) {
  Fields fields = Fields::writing(out);
  checkpoint_fields(fields, section);
  out.open("checkpoint_callback_params");
  params_fields(fields, section);
  out.keep(source.map("checkpoint_callback_params"), "exp_manager.checkpoint_callback_params");
  out.close();
}

void list_checkpoint_keys(Fields& fields) {
  CheckpointSection section;
  checkpoint_fields(fields, section);
}

void list_checkpoint_params(Fields& fields) {
  CheckpointSection section;
  params_fields(fields, section);
}

}  // namespace trellis::trainer
