#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/megatron_rules.h"
#include "trainer/config/reader/yaml_writer.h"

namespace trellis::analysis {
namespace {

using Argument = MegatronArgument;
using Arguments = MegatronArguments;
using Count = std::optional<std::int64_t>;

Count steps_of_samples(const Arguments& all, std::string_view name) {
  const Count samples = all.integer(name), batch = megatron_global_batch(all);
  if (!samples || !batch || *batch < 1) return std::nullopt;
  return *samples / *batch;
}

/// `what`-iters, or `what`-samples as steps.
Count steps(const Arguments& all, const std::string& what) {
  if (all.has(what + "-iters")) return all.integer(what + "-iters");
  return steps_of_samples(all, what + "-samples");
}

bool given(const Arguments& all, const std::string& what) {
  return all.has(what + "-iters") || all.has(what + "-samples");
}

ImportedKey training_length(const Argument& a, const Arguments& all) {
  if (all.has("train-iters")) return by_default(a, "--train-iters decides");
  const Count length = steps_of_samples(all, a.name);
  if (!length || *length < 1)
    return refused(a, "the number of steps needs --global-batch-size: write --train-iters");
  return mapped(
      a, {{"trainer.max_steps", fmt::format("{}", *length)}},
      fmt::format("{} samples / {} in a step", *all.integer(a.name), *megatron_global_batch(all)));
}

ImportedKey time_limit(const Argument& a, const Arguments& all) {
  const Count minutes = all.integer(a.name);
  if (!minutes || *minutes < 1) return refused(a, "expected whole minutes");
  return mapped(a, {{"trainer.max_time", fmt::format("\"{:02}:{:02}:{:02}:00\"", *minutes / 1440,
                                                     *minutes / 60 % 24, *minutes % 60)}});
}

ImportedKey clipping(const Argument& a, const Arguments& all) {
  const bool off = all.number(a.name) == 0.0;
  return mapped(a, {{"trainer.gradient_clip_val", off ? "null" : a.source.value}});
}

ImportedKey validation(const Argument& a, const Arguments& all) {
  if (a.name == "eval-interval") return mapped(a, {{"trainer.val_check_interval", a.source.value}});
  if (!all.has("eval-interval"))
    return by_default(a, "without --eval-interval nothing is validated");
  return mapped(a, {{"trainer.limit_val_batches", a.source.value},
                    {"trainer.limit_test_batches", a.source.value}});
}

ImportedKey precision(const Argument& a, const Arguments&) {
  if (a.name == "fp16") return refused(a, "fp16 is not supported: --bf16 is in its place");
  return mapped(a, {{"precision.type", "mixed_precision"}},
                "bf16 weights, fp32 master weights and sums of gradients");
}

ImportedKey checkpoints(const Argument& a, const Arguments& all) {
  const std::string foreign =
      "a checkpoint of NxDT's form is expected there, not one of Megatron-LM";
  if (a.name == "save")
    return mapped(a, {{"exp_manager.create_checkpoint_callback", "true"},
                      {"exp_manager.checkpoint_callback_params.dirpath", a.source.value}});
  if (a.name == "pretrained-checkpoint")
    return mapped(a,
                  {{"exp_manager.resume_from_checkpoint", a.source.value},
                   {"model.weight_init_only", "true"}},
                  foreign);
  if (a.name == "load" && a.source.value == yaml_scalar(all.text("save")))
    return mapped(a,
                  {{"exp_manager.resume_if_exists", "true"},
                   {"exp_manager.resume_ignore_no_checkpoint", "true"}},
                  "the directory of --save: a run goes on from its newest checkpoint");
  if (a.name == "load")
    return all.has("pretrained-checkpoint")
               ? by_default(a, "--pretrained-checkpoint decides")
               : mapped(a, {{"exp_manager.resume_from_checkpoint", a.source.value}}, foreign);
  const bool elsewhere = all.has("load") && all.text("load") != all.text("save");
  if (elsewhere || all.has("pretrained-checkpoint"))
    return mapped(a, {{"model.weight_init_only", "true"}});
  return all.has("load") ? refused(a,
                                   "a run goes on with the states of its checkpoint: load "
                                   "weights from another directory than --save")
                         : by_default(a, "nothing is loaded");
}

ImportedKey optimizer(const Argument& a, const Arguments& all) {
  const std::string name = all.has("optimizer") ? all.text("optimizer") : "adam";
  if (a.name == "optimizer") {
    if (name == "adam")
      return mapped(a, {{"model.optim.name", "adamw"}}, "Megatron-LM's Adam decays as AdamW does");
    if (name == "sgd") return mapped(a, {{"model.optim.name", "sgd"}});
    return refused(a, "expected adam or sgd; model.optim.name has others");
  }
  if (a.name == "sgd-momentum")
    return name == "sgd" ? mapped(a, {{"model.optim.momentum", a.source.value}})
                         : by_default(a, "only --optimizer sgd reads it");
  if (name != "adam") return by_default(a, "only --optimizer adam reads it");
  if (a.name == "adam-eps") return mapped(a, {{"model.optim.eps", a.source.value}});
  const std::string first = all.has("adam-beta1") ? all.text("adam-beta1") : "0.9";
  const std::string second = all.has("adam-beta2") ? all.text("adam-beta2") : "0.999";
  if (first.empty() || second.empty())
    return refused(a, "the other of --adam-beta1 and --adam-beta2 is not known: write it");
  return mapped(
      a, {{"model.optim.betas", "[" + yaml_scalar(first) + ", " + yaml_scalar(second) + "]"}});
}

/// Each argument gives the lengths that are its own.
ImportedKey schedule(const Argument& a, const Arguments& all) {
  const MegatronSchedule made = megatron_schedule(all);
  const bool warms = a.name.starts_with("lr-warmup");
  const auto gives = [&](const char* key) -> ImportedKey {
    for (const Setting& length : made.lengths)
      if (length.key.ends_with(key)) return mapped(a, {length});
    return warms ? refused(a, "the number of steps is not known: write --train-iters")
                 : by_default(a, "a schedule lasts for trainer.max_steps");
  };
  if (a.name == "lr-decay-style") {
    if (made.name.empty()) return refused(a, made.refused);
    return mapped(a, {{"model.optim.sched.name", made.name}});
  }
  if (made.name.empty()) return refused(a, "the schedule is not known: see --lr-decay-style");
  if (warms) return gives("warmup_steps");
  if (a.name == "lr-wsd-decay-style") return by_default(a, "it is part of --lr-decay-style WSD");
  if (all.text("lr-decay-style") == "constant") return by_default(a, "the rate is constant");
  if (!made.refused.empty()) return refused(a, made.refused);
  return gives(a.name.starts_with("lr-wsd") ? "hold_steps" : "constant_steps");
}

/// Prefixes with their weights, as data.data_prefix has them.
ImportedKey data_path(const Argument& a, const Arguments& all) {
  const char* split = a.name.starts_with("train")   ? ".train"
                      : a.name.starts_with("valid") ? ".validation"
                      : a.name.starts_with("test")  ? ".test"
                                                    : "";
  std::vector<std::string> words;  // "0.3 a 0.7 b" in one word is split as Megatron-LM's scripts do
  for (const std::string& value : a.values) {
    for (std::size_t begin = 0; begin < value.size();) {
      const std::size_t end = std::min(value.find_first_of(" ,", begin), value.size());
      if (end > begin) words.push_back(value.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  const auto is_number = [](const std::string& text) {
    double number = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    return read.ec == std::errc() && read.ptr == text.data() + text.size();
  };
  bool weighted = !words.empty() && words.size() % 2 == 0;
  for (std::size_t i = 0; i < words.size(); i += 2) weighted = weighted && is_number(words[i]);
  if (words.size() != 1 && !weighted)
    return refused(a, "weights by size are not supported: write WEIGHT PREFIX WEIGHT PREFIX …");
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + yaml_scalar(word);
  if (*split != '\0' && all.has("data-path")) return refused(a, "excludes --data-path: remove one");
  return mapped(a, {{std::string("data.data_prefix") + split, "[" + list + "]"}});
}

ImportedKey split(const Argument& a, const Arguments& all) {
  if (!all.has("data-path"))
    return by_default(a, "it splits the data of --data-path, which is missing");
  std::string numbers = a.values.front();
  std::erase_if(numbers, [](char c) { return c == '\'' || c == '"' || c == ' '; });
  for (auto commas = std::ranges::count(numbers, ','); commas < 2; ++commas) numbers += ",0";
  return mapped(a, {{"data.splits_string", trainer::YamlWriter::quoted(numbers)}});
}

ImportedKey loader(const Argument& a, const Arguments&) {
  const std::string& type = a.values.front();
  if (type != "single" && type != "cyclic")
    return refused(a, "expected single or cyclic: another loader is Python code");
  return mapped(a, {{"data.dataloader_type", type}});
}

struct Tokenizer {
  const char* megatron;
  const char* library;
  const char* type;  ///< "": --tokenizer-model is the type
};
constexpr Tokenizer kTokenizers[] = {
    {"GPT2BPETokenizer", "megatron", "GPT2BPETokenizer"},
    {"GPTSentencePieceTokenizer", "megatron", "GPTSentencePieceTokenizer"},
    {"HuggingFaceTokenizer", "huggingface", ""},
    {"SentencePieceTokenizer", "sentencepiece", "null"},
    {"Llama2Tokenizer", "sentencepiece", "null"},
    {"TikTokenizer", "tiktoken", "null"},
};

ImportedKey tokenizer(const Argument& a, const Arguments& all) {
  const std::string type = all.text("tokenizer-type");
  const auto found = std::ranges::find_if(
      kTokenizers, [&](const Tokenizer& each) { return type == each.megatron; });
  const bool known = found != std::end(kTokenizers);
  if (a.name == "tokenizer-type") {
    if (type == "NullTokenizer")
      return by_default(a, "tokenized data need no tokenizer: --vocab-size is what counts");
    if (!known) return refused(a, "this tokenizer is not supported: see data.tokenizer.library");
    std::vector<Setting> settings = {{"data.tokenizer.library", found->library}};
    if (std::string_view(found->library) == "megatron")
      settings.push_back({"data.tokenizer.type", found->type});
    return mapped(a, settings);
  }
  if (a.name == "vocab-file" || a.name == "merge-file")
    return mapped(
        a, {{a.name == "vocab-file" ? "data.tokenizer.vocab_file" : "data.tokenizer.merge_file",
             a.source.value}});
  const bool is_type = known && std::string_view(found->type).empty();
  return mapped(a, {{is_type ? "data.tokenizer.type" : "data.tokenizer.model", a.source.value}});
}

/// A folder of the log is its TensorBoard folder.
ImportedKey tensorboard(const Argument& a, const Arguments&) {
  return mapped(a, {{"exp_manager.create_tensorboard_logger", "true"},
                    {"exp_manager.explicit_log_dir", a.source.value}});
}

ImportedKey launcher(const Argument& a, const Arguments& all) {
  const bool nodes = a.name == "nnodes";
  if (!nodes && (a.source.value == "gpu" || a.source.value == "auto"))
    return mapped(a, {{"trainer.devices", "auto"}}, "all cores of a node");
  if (!all.integer(a.name)) return refused(a, "expected a number: ranks do not come and go");
  return mapped(a, {{nodes ? "trainer.num_nodes" : "trainer.devices", a.source.value}});
}

/// Adds the decay and its style as they are here; `decays` steps of `lasts`.
void decay(const Arguments& all, Count lasts, Count decays, MegatronSchedule& made) {
  const std::string style =
      all.has("lr-decay-style") ? all.text("lr-decay-style") : std::string("linear");
  const auto length = [&](const char* key, std::int64_t count) {
    made.lengths.push_back({fmt::format("model.optim.sched.{}", key), fmt::format("{}", count)});
  };
  if (style == "constant") {
    made.name = "WarmupPolicy";
    return;
  }
  const bool known = lasts && decays;
  if (!known) made.refused = "the number of steps is not known: write --train-iters";
  if (known && *decays > *lasts)
    made.refused = fmt::format(
        "the schedule would outlast the run: here it ends with trainer.max_steps {}", *lasts);
  if (style == "cosine") {
    made.name = "CosineAnnealing";
    if (known && *decays < *lasts) length("constant_steps", *lasts - *decays);
    return;
  }
  if (known && *decays < *lasts)
    made.refused = fmt::format(
        "only --lr-decay-style cosine may end before the run: expected {} steps", *lasts);
  if (style == "linear") {
    // The one without a floor starts its warm-up at 0, as Megatron-LM's does.
    const bool floor = all.has("min-lr") && all.number("min-lr") != 0.0;
    made.name = floor ? "WarmupAnnealing" : "LinearAnnealingWithWarmUp";
  } else if (style == "inverse-square-root") {
    made.name = "NoamHoldAnnealing";  // with decay_rate 0.5 and nothing held: √(warm-up / step)
  } else if (style == "WSD") {
    const std::string end = all.text("lr-wsd-decay-style");
    const Count falls = steps(all, "lr-wsd-decay");
    made.name = end == "linear"       ? "WarmupHoldAnnealLinear"
                : end == "minus_sqrt" ? "WarmupHoldAnnealOneMinusSquareRoot"
                                      : "";
    if (made.name.empty()) made.refused = "of WSD, --lr-wsd-decay-style linear and minus_sqrt only";
    const Count warm = steps(all, "lr-warmup");
    if (known && falls)
      length("hold_steps", std::max<std::int64_t>(0, *decays - *falls - warm.value_or(0)));
  } else {
    made.refused = "expected constant, linear, cosine, inverse-square-root or WSD";
  }
}

}  // namespace

std::optional<std::int64_t> megatron_global_batch(const MegatronArguments& all) {
  if (all.has("global-batch-size")) return all.integer("global-batch-size");
  const Count each = all.integer("nproc-per-node"), nodes = all.integer("nnodes", 1),
              micro = all.integer("micro-batch-size");
  std::int64_t model = 1;
  for (const char* name :
       {"tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"}) {
    const Count size = all.integer(name, 1);
    if (!size || *size < 1 || *size > 1'000'000) return std::nullopt;
    model *= *size;
  }
  constexpr std::int64_t kMost = 1'000'000;  // of each: their product stays far from overflow
  for (const Count& count : {each, nodes, micro})
    if (!count || *count < 1 || *count > kMost) return std::nullopt;
  const std::int64_t ranks = *each * *nodes;
  return ranks % model == 0 ? Count(ranks / model * *micro) : std::nullopt;
}

MegatronSchedule megatron_schedule(const MegatronArguments& all) {
  MegatronSchedule made;
  const Count lasts = steps(all, "train");
  const Count decays = given(all, "lr-decay") ? steps(all, "lr-decay") : lasts;
  decay(all, lasts, decays, made);
  Count warm = steps(all, "lr-warmup");
  const auto share = all.number("lr-warmup-fraction");
  if (share && decays && *share >= 0 && *share <= 1)
    warm = static_cast<std::int64_t>(std::llround(*share * static_cast<double>(*decays)));
  if (warm) made.lengths.push_back({"model.optim.sched.warmup_steps", fmt::format("{}", *warm)});
  return made;
}

MegatronRule megatron_run_rule(std::string_view name) {
  static const std::vector<std::pair<std::string_view, MegatronRule>> kRules = {
      {" train-samples ", training_length},
      {" exit-duration-in-mins ", time_limit},
      {" clip-grad ", clipping},
      {" eval-interval eval-iters ", validation},
      {" bf16 fp16 ", precision},
      {" save load pretrained-checkpoint finetune no-load-optim ", checkpoints},
      {" optimizer adam-beta1 adam-beta2 adam-eps sgd-momentum ", optimizer},
      {" lr-decay-style lr-decay-iters lr-decay-samples lr-warmup-iters lr-warmup-samples "
       "lr-warmup-fraction lr-wsd-decay-style lr-wsd-decay-iters lr-wsd-decay-samples ",
       schedule},
      {" data-path train-data-path valid-data-path test-data-path ", data_path},
      {" split ", split},
      {" dataloader-type ", loader},
      {" tokenizer-type tokenizer-model vocab-file merge-file ", tokenizer},
      {" tensorboard-dir ", tensorboard},
      {" nproc-per-node nnodes ", launcher},
  };
  for (const auto& [names, rule] : kRules)
    if (names.find(fmt::format(" {} ", name)) != std::string_view::npos) return rule;
  return nullptr;
}

}  // namespace trellis::analysis
