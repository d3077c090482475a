#include "trainer/config/resolved_yaml.h"

#include <string_view>

#include <fmt/format.h>

namespace trellis::trainer {
namespace {

/// Writes "key: value" lines. Texts are double-quoted, so that no content of theirs is taken for YAML.
class YamlWriter {
 public:
  void open(std::string_view section) {
    text_ += fmt::format("{}{}:\n", indent_, section);
    indent_ += "  ";
  }
  void close() { indent_.resize(indent_.size() - 2); }

  void text(std::string_view key, std::string_view value) { raw(key, quoted(value)); }
  void text_or_null(std::string_view key, std::string_view value) { raw(key, value.empty() ? "null" : quoted(value)); }
  void boolean(std::string_view key, bool value) { raw(key, value ? "true" : "false"); }
  void integer(std::string_view key, std::int64_t value) { raw(key, fmt::format("{}", value)); }
  void number(std::string_view key, double value) { raw(key, fmt::format("{}", value)); }  // the shortest text that reads back equal
  void raw(std::string_view key, std::string_view value) { text_ += fmt::format("{}{}: {}\n", indent_, key, value); }

  [[nodiscard]] const std::string& result() const { return text_; }

 private:
  static std::string quoted(std::string_view value) {
    std::string out = "\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') {
        out += '\\';
        out += c;
      } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      } else {
        out += c;
      }
    }
    return out + '"';
  }

  std::string text_;
  std::string indent_;
};

void write_trainer(YamlWriter& out, const TrainerSection& section) {
  out.open("trainer");
  out.integer("devices", section.devices);
  out.integer("num_nodes", section.num_nodes);
  out.integer("max_steps", section.max_steps);
  out.integer("log_every_n_steps", section.log_every_n_steps);
  out.raw("gradient_clip_val", section.gradient_clip_val ? fmt::format("{}", *section.gradient_clip_val) : "null");
  out.close();
}

void write_exp_manager(YamlWriter& out, const ExpManagerSection& section) {
  out.open("exp_manager");
  out.text_or_null("explicit_log_dir", section.explicit_log_dir);
  out.text("exp_dir", section.exp_dir);
  out.text("name", section.name);
  out.text_or_null("version", section.version);
  out.boolean("use_datetime_version", section.use_datetime_version);
  out.boolean("create_tensorboard_logger", section.create_tensorboard_logger);
  out.boolean("create_checkpoint_callback", false);
  out.close();
}

void write_distributed_strategy(YamlWriter& out, const DistributedStrategySection& section) {
  out.open("distributed_strategy");
  out.integer("tensor_model_parallel_size", section.tensor_model_parallel_size);
  out.integer("pipeline_model_parallel_size", section.pipeline_model_parallel_size);
  out.boolean("zero1", section.zero1);
  out.boolean("sequence_parallel", section.sequence_parallel);
  out.close();
}

void write_data(YamlWriter& out, const DataSection& section) {
  out.open("data");
  out.integer("micro_batch_size", section.micro_batch_size);
  out.integer("global_batch_size", section.global_batch_size);
  out.text_or_null("train_dir", section.train_dir);
  out.open("tokenizer");
  out.text("library", section.tokenizer_library);
  out.close();
  out.close();
}

void write_optim(YamlWriter& out, const OptimSection& section) {
  out.open("optim");
  out.text("name", section.name);
  out.number("lr", section.lr);
  out.number("weight_decay", section.weight_decay);
  out.raw("betas", fmt::format("[{}, {}]", section.beta1, section.beta2));
  out.number("eps", section.eps);
  if (section.sched) {
    out.open("sched");
    out.text("name", section.sched->name);
    out.integer("warmup_steps", section.sched->warmup_steps);
    out.integer("constant_steps", section.sched->constant_steps);
    out.number("min_lr", section.sched->min_lr);
    out.close();
  }
  out.close();
}

/// What NxDT's megatron models would otherwise take as layernorm, gelu, learned positions …
void write_fixed_shape(YamlWriter& out) {
  out.text("normalization", "rmsnorm");
  out.text("activation", "swiglu");
  out.text("position_embedding_type", "rope");
  out.boolean("has_bias", false);
  out.boolean("share_embeddings_and_output_weights", false);
  out.integer("hidden_dropout", 0);
  out.boolean("use_scaled_init_method", true);
}

void write_model(YamlWriter& out, const ModelSection& section, const std::string& model_source) {
  out.open("model");
  out.integer("num_layers", section.num_layers);
  out.integer("hidden_size", section.hidden_size);
  out.integer("ffn_hidden_size", section.ffn_hidden_size);
  out.integer("num_attention_heads", section.num_attention_heads);
  out.integer("num_kv_heads", section.num_kv_heads);
  out.integer("encoder_seq_length", section.encoder_seq_length);
  out.integer("max_position_embeddings", section.max_position_embeddings);
  out.integer("vocab_size", section.vocab_size);
  out.integer("make_vocab_size_divisible_by", section.make_vocab_size_divisible_by);
  out.number("layernorm_epsilon", section.layernorm_epsilon);
  out.number(model_source == "hf" ? "rope_theta" : "position_freq_base", section.rope_theta);
  out.number("init_method_std", section.init_method_std);
  out.boolean("do_layer_norm_weight_decay", section.do_layer_norm_weight_decay);
  write_fixed_shape(out);
  write_optim(out, section.optim);
  out.close();
}

}  // namespace

std::string to_resolved_yaml(const RunConfig& config) {
  YamlWriter out;
  out.text("name", config.name);
  out.text("model_source", config.model_source);
  out.integer("seed", config.seed);
  write_trainer(out, config.trainer);
  write_exp_manager(out, config.exp_manager);
  write_distributed_strategy(out, config.distributed_strategy);
  write_data(out, config.data);
  write_model(out, config.model, config.model_source);
  out.open("precision");
  out.text("type", config.precision.type);
  out.close();
  return out.result();
}

}  // namespace trellis::trainer
