// Broken sections, optimizers and names, one rule each: what is where, the rule with its numbers,
// what to do.
#include "tests/trainer/config/broken_files.h"

namespace trellis::trainer {
namespace {

const std::vector<Broken>& broken_sections() {
  static const std::vector<Broken> files = {
      // Section trainer.
      {{{"  max_steps: 10", "  max_steps: 10\n  accumulate_grad_batches: 4"}},
       "run.yaml:7:trainer.accumulate_grad_batches: not supported (got 4): it is derived: "
       "global_batch_size / (micro_batch_size × DP); remove "
       "it or set it to 1"},
      {{{"  max_steps: 10", "  max_steps: 10\n  gradient_clip_algorithm: value"}},
       "run.yaml:7:trainer.gradient_clip_algorithm: not supported (got value): gradients are "
       "clipped by their global norm; remove it or set it "
       "to null"},
      {{{"  max_steps: 10", "  max_steps: 10\n  val_check_interval: 0"}},
       "run.yaml:7:trainer.val_check_interval: a number of batches must be at least 1, got 0"},
      {{{"  max_steps: 10", "  max_steps: 10\n  val_check_interval: 1.5"}},
       "run.yaml:7:trainer.val_check_interval: a fraction must be above 0 and at most 1.0, got "
       "1.5; write an integer for a number of batches"},
      {{{"  max_steps: 10", "  max_steps: 10\n  limit_val_batches: 2.5"}},
       "run.yaml:7:trainer.limit_val_batches: a fraction must be at least 0 and at most 1.0, got "
       "2.5; write an integer for a number of batches"},
      {{{"  max_steps: 10", "  max_steps: 10\n  limit_test_batches: -1"}},
       "run.yaml:7:trainer.limit_test_batches: a number of batches must be at least 0, got -1"},
      {{{"  max_steps: 10", "  max_steps: 10\n  max_time: 5h"}},
       "run.yaml:7:trainer.max_time: expected DD:HH:MM:SS such as \"00:04:00:00\" (four hours), "
       "got '5h'"},
      {{{"  max_steps: 10", "  max_steps: 10\n  max_epochs: 0"}},
       "run.yaml:7:trainer.max_epochs: must be at least 1, or -1 for as many as max_steps or "
       "max_time needs; got 0"},
      {{{"  max_steps: 10", "  max_steps: 10\n  lnc: 3"}},
       "run.yaml:7:trainer.lnc: logical NeuronCores have 1 or 2 physical cores, got 3"},
      {{{"  max_steps: 10", "  max_steps: 10\n  enable_model_summary: true"}},
       "run.yaml:7:trainer.enable_model_summary: not supported (got true): `trellis validate` "
       "prints what will be built; remove it or set it "
       "to false"},
      {{{"  max_steps: 10", "  max_steps: 10\n  track_grad_norm: -2"}},
       "run.yaml:7:trainer.track_grad_norm: must be a power greater than 0 or inf, or -1 for none; "
       "got -2"},
      {{{"  max_steps: 10", "  max_steps: 10\n  sequential_move_factor: 0"}},
       "run.yaml:7:trainer.sequential_move_factor: must be at least 1, got 0"},
      // Section exp_manager.
      {{{"exp_manager:\n  name: tiny",
         "exp_manager:\n  name: tiny\n  log_local_rank_0_only: true\n  log_global_rank_0_only: "
         "true"}},
       "run.yaml:11:exp_manager.log_global_rank_0_only: excludes log_local_rank_0_only: one file "
       "per job, or one per node; remove one of them"},
      {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  create_wandb_logger: true"}},
       "run.yaml:10:exp_manager.create_wandb_logger: not supported (got true): there is no Weights "
       "& Biases logger; metrics go to TensorBoard "
       "and metrics.jsonl; remove it or set it to false"},
      {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  create_mlflow_logger: true"}},
       "run.yaml:10:exp_manager.create_mlflow_logger: not supported (got true): metrics go to "
       "TensorBoard and metrics.jsonl; remove it or set "
       "it to false"},
      {{{"exp_manager:\n  name: tiny",
         "exp_manager:\n  name: tiny\n  early_stopping_callback_params: {mode: down}"}},
       "run.yaml:10:exp_manager.early_stopping_callback_params.mode: unknown value `down`; "
       "expected min or max"},
      {{{"exp_manager:\n  name: tiny",
         "exp_manager:\n  name: tiny\n  ema: {enable: true, decay: 1.5}"}},
       "run.yaml:10:exp_manager.ema.decay: must be in [0, 1], got 1.5"},
      {{{"exp_manager:\n  name: tiny",
         "exp_manager:\n  name: tiny\n  ema: {every_n_steps: 2, apply_ema_every_n_steps: 2}"}},
       "run.yaml:10:exp_manager.ema.apply_ema_every_n_steps: is the older name of every_n_steps; "
       "remove one of them"},
      {{{"exp_manager:\n  name: tiny",
         "exp_manager:\n  name: tiny\n  max_time_per_run: '00:01:00:00'\n  max_time: "
         "'00:02:00:00'"}},
       "run.yaml:11:exp_manager.max_time: 7200 seconds here and 3600 seconds in trainer.max_time "
       "or another name of it; write one of them"},
      // Section data.
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 980,10\n  "
         "dataloader_type: single"}},
       "run.yaml:18:data.splits_string: expected three numbers (training, validation, test) such "
       "as 980,10,10, got 2: '980,10'"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: a,b,c\n  "
         "dataloader_type: single"}},
       "run.yaml:18:data.splits_string: expected three numbers such as 980,10,10, got 'a,b,c'"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 0,0,0\n  "
         "dataloader_type: single"}},
       "run.yaml:18:data.splits_string: one of the three numbers must be greater than 0"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  dataloader_type: single"}},
       "run.yaml:14:data.splits_string: this key is required and missing; expected three numbers "
       "such as 980,10,10"},
      {{{"  global_batch_size: 16", "  global_batch_size: 16\n  splits_string: 980,10,10"}},
       "run.yaml:17:data.splits_string: splits the data of data_prefix, which is missing"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 980,10,10"}},
       "run.yaml:14:data.dataloader_type: this key is required and missing; expected single or "
       "cyclic"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 980,10,10\n  "
         "dataloader_type: random"}},
       "run.yaml:19:data.dataloader_type: unknown value `random`; expected single or cyclic"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [1.0, a, 2.0]\n  splits_string: 980,10,10\n  "
         "dataloader_type: single"}},
       "run.yaml:17:data.data_prefix: expected [path] or [weight, path, weight, path, …], got 3 "
       "entries"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [a, 1.0]\n  splits_string: 980,10,10\n  "
         "dataloader_type: single"}},
       "run.yaml:17:data.data_prefix: expected a weight greater than 0 in front of 1.0, got 'a'"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: {train: [1.0, a], test: b}\n  dataloader_type: "
         "single"}},
       "run.yaml:17:data.data_prefix.validation: a data_prefix by split needs all of train, "
       "validation and test"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: {train: a, test: b, validation: c, valid: d}\n  "
         "dataloader_type: single"}},
       "run.yaml:17:data.data_prefix.valid: unknown split; expected train, validation and test"},
      {{{"  global_batch_size: 16",
         "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 980,10,10\n  "
         "dataloader_type: single\n  train_dir: x"}},
       "run.yaml:20:data.train_dir: excludes data_prefix; remove one of them"},
      {{{"  global_batch_size: 16", "  global_batch_size: 16\n  reset_attention_mask: true"}},
       "run.yaml:17:data.reset_attention_mask: not supported (got true): attention is causal over "
       "the whole sequence; remove it or set it to "
       "false"},
      {{{"  global_batch_size: 16", "  global_batch_size: 16\n  fine_tuning: true"}},
       "run.yaml:17:data.fine_tuning: not supported (got true): fine-tuning is asked for by "
       "section model_alignment_strategy; remove it or set "
       "it to false"},
      {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_impl: lazy"}},
       "run.yaml:17:data.data_impl: not supported (got lazy): indexed data is mapped into memory; "
       "remove it or set it to mmap"},
      {{{"  global_batch_size: 16", "  global_batch_size: 16\n  train_ds: {file_names: [a]}"}},
       "run.yaml:17:data.train_ds: not supported (got a mapping): use train_dir, val_dir and "
       "test_dir; remove it or set it to null"},
      {{{"library: byte-level", "library: sentencepice"}},
       "run.yaml:18:data.tokenizer.library: unknown value `sentencepice`, did you mean "
       "`sentencepiece`?; expected byte-level, huggingface, "
       "megatron, sentencepiece or tiktoken"},
      {{{"library: byte-level", "library: huggingface"}},
       "run.yaml:17:data.tokenizer.type: the library huggingface needs it, such as a directory "
       "with tokenizer.json"},
      {{{"library: byte-level", "library: sentencepiece"}},
       "run.yaml:17:data.tokenizer.model: the library sentencepiece needs it, such as "
       "/path/to/tokenizer.model"},
      {{{"library: byte-level", "library: sentencepiece\n    model: x"}},
       "run.yaml:20:model.vocab_size: this key is required and missing: the sentencepiece "
       "tokenizer x does not state the size of its vocabulary; write "
       "it, or correct the tokenizer's path"},
      // Optimizers and schedules.
      {{{"adamw", "adamv"}},
       "run.yaml:35:model.optim.name: unknown value `adamv`, did you mean `adamw`?; expected "
       "adamw, adamw_fp32OptState, adam, sgd, adadelta, "
       "adamax, adagrad, rmsprop, rprop, novograd or adafactor"},
      {{{"    betas: [0.9, 0.95]", "    betas: [0.9, 0.95]\n    momentum: 0.9"}},
       "run.yaml:38:model.optim.momentum: is no argument of adamw; its own arguments: amsgrad, "
       "capturable"},
      {{{"name: adamw", "name: sgd"}},
       "run.yaml:37:model.optim.betas: is no argument of sgd; its own arguments: momentum, "
       "dampening, nesterov"},
      {{{"adamw", "distributed_fused_adam"}},
       "run.yaml:35:model.optim.name: unknown value `distributed_fused_adam`; expected adamw, "
       "adamw_fp32OptState, adam, sgd, adadelta, adamax, "
       "adagrad, rmsprop, rprop, novograd or adafactor"},
      {{{"name: adamw", "name: sgd"}, {"    betas: [0.9, 0.95]", "    nesterov: true"}},
       "run.yaml:37:model.optim.nesterov: needs a momentum above 0 and a dampening of 0"},
      {{{"name: adamw", "name: rprop"}, {"    betas: [0.9, 0.95]", "    etas: [0.5]"}},
       "run.yaml:37:model.optim.etas: expected two numbers such as [0.5, 1.2], got 1"},
      {{{"CosineAnnealing", "CosineAnealing"}},
       "run.yaml:39:model.optim.sched.name: unknown value `CosineAnealing`, did you mean "
       "`CosineAnnealing`?; expected "
       "LinearAnnealingWithWarmUp, WarmupPolicy, WarmupHoldPolicy, CosineAnnealing, "
       "SquareAnnealing, SquareRootAnnealing, NoamAnnealing, "
       "NoamHoldAnnealing, WarmupAnnealing, InverseSquareRootAnnealing, "
       "T5InverseSquareRootAnnealing, PolynomialDecayAnnealing, "
       "PolynomialHoldDecayAnnealing, WarmupHoldAnnealLinear, WarmupHoldAnnealOneMinusSquareRoot, "
       "StepLR, ExponentialLR, ReduceLROnPlateau or "
       "CyclicLR"},
      {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      warmup_ratio: 0.1"}},
       "run.yaml:42:model.optim.sched.warmup_ratio: excludes warmup_steps; remove one of them"},
      {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      hold_steps: 3"}},
       "run.yaml:42:model.optim.sched.hold_steps: CosineAnnealing has no such phase; remove it or "
       "set it to 0"},
      {{{"CosineAnnealing", "WarmupHoldPolicy"},
        {"      min_lr: 1.0e-5",
         "      min_lr: 1.0e-5\n      hold_steps: 3\n      hold_ratio: 0.5"}},
       "run.yaml:43:model.optim.sched.hold_ratio: excludes hold_steps; remove one of them"},
      {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      power: 2"}},
       "run.yaml:42:model.optim.sched.power: is no argument of CosineAnnealing; it has no own "
       "arguments"},
      {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      reduce_on_plateau: true"}},
       "run.yaml:42:model.optim.sched.reduce_on_plateau: not supported (got true): use name: "
       "ReduceLROnPlateau; remove it or set it to false"},
      {{{"CosineAnnealing", "NoamAnnealing"}},
       "run.yaml:38:model.optim.sched.d_model: NoamAnnealing needs it: expected a number above 0"},
      // Alignment.
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7", "seed: 7\nmodel_alignment_strategy: {dpo: {}, sft: {}}"}},
       "run.yaml:4:model_alignment_strategy.sft: excludes dpo: expected one strategy of dpo, sft "
       "and orpo; remove one of them"},
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7", "seed: 7\nmodel_alignment_strategy: {peft: {lora_rank: 4}}"}},
       "run.yaml:4:model_alignment_strategy.sft: one of dpo, sft and orpo is required and missing"},
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7", "seed: 7\nmodel_alignment_strategy: {orpo: {max_prompt_length: 32}}"}},
       "run.yaml:4:model_alignment_strategy.orpo.max_prompt_length: 32 leaves no token of the "
       "sequence for an answer: expected less than model.encoder_seq_length 32"},
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7", "seed: 7\nmodel_alignment_strategy: {sft: {truncation_mode: keep}}"}},
       "run.yaml:4:model_alignment_strategy.sft.truncation_mode: unknown value `keep`; expected "
       "keep_start or keep_end"},
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7", "seed: 7\nmodel_alignment_strategy: {orpo: {implementation: liger}}"}},
       "run.yaml:4:model_alignment_strategy.orpo.implementation: unknown value `liger`; expected "
       "nxdt or trl"},
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7", "seed: 7\nmodel_alignment_strategy: {dpo: {loss_type: hinge}}"}},
       "run.yaml:4:model_alignment_strategy.dpo.loss_type: unknown value `hinge`; expected "
       "sigmoid"},
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7", "seed: 7\nmodel_alignment_strategy: {dpo: {precompute_ref_log_probs: false}}"}},
       "run.yaml:4:model_alignment_strategy.dpo.precompute_ref_log_probs: must be true: the "
       "reference model is run once, before training"},
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7",
         "seed: 7\nmodel_alignment_strategy: {sft: {packing: true}, peft: {target_modules: "
         "[qproj]}}"}},
       "run.yaml:4:model_alignment_strategy.peft.target_modules: `qproj` names no module of this "
       "model; expected some of down_proj, embed_tokens, gate_up_proj, k_proj, lm_head, o_proj, "
       "q_proj or v_proj"},
      {{{"activation: swiglu", "activation: gelu"},
        {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  fuse_gate_up: false"}},
       "run.yaml:27:model.fuse_gate_up: separates the two halves of a gated activation: expected "
       "activation geglu, reglu or swiglu with false; set it to "
       "true"},
      // Names and places.
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  tensor_model_parallel_size: 2"}},
       "run.yaml:27:model.tensor_model_parallel_size: wrong section: `tensor_model_parallel_size` "
       "belongs in section `distributed_strategy`, "
       "not in section `model`"},
      {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  global_batch_size: 2"}},
       "run.yaml:27:model.global_batch_size: wrong section: `global_batch_size` belongs in section "
       "`data`, not in section `model`"},
      {{{"sequence_parallel: true", "sequence-parallel: true"}},
       "run.yaml:13:distributed_strategy.sequence-parallel: unknown key: keys are written with "
       "underscores, `sequence_parallel`"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num-experts: 8}"}},
       "run.yaml:27:model.moe.num_experts: this key is required and "
       "missing\nrun.yaml:27:model.moe.num-experts: unknown key: keys are written with "
       "underscores, `num_experts`"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, num_shared_experts: 4294967297}"}},
       "run.yaml:27:model.moe.num_shared_experts: expected an integer that fits in 32 "
       "bits, got '4294967297'"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, capacity_facto: 1}"}},
       "run.yaml:27:model.moe.capacity_facto: unknown key; did you mean `capacity_factor`?"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  fusions: {flash_atention: true}"}},
       "run.yaml:27:model.fusions.flash_atention: unknown key; did you mean `flash_attention`?"},
      {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      warmup_step: 2"}},
       "run.yaml:42:model.optim.sched.warmup_step: unknown key; did you mean `warmup_steps`?"},
      {{{"    betas: [0.9, 0.95]", "    betas: [0.9, 0.95]\n    weight_decy: 2"}},
       "run.yaml:38:model.optim.weight_decy: unknown key; did you mean `weight_decay`?"},
      {{{"model_source: megatron", "model_source: hf"},
        {"seed: 7",
         "seed: 7\nmodel_alignment_strategy: {sft: {packing: true}, peft: {lora_rnk: 4}}"}},
       "run.yaml:4:model_alignment_strategy.peft.lora_rnk: unknown key; did you mean `lora_rank`?"},
      {{{"exp_manager:\n  name: tiny",
         "exp_manager:\n  name: tiny\n  checkpoint_callback_params: {save_topk: 1}"}},
       "run.yaml:10:exp_manager.checkpoint_callback_params.save_topk: unknown key; did you mean "
       "`save_top_k`?"},
      {{{"  type: mixed_precision", "  type: mixed_precision\n  master_weight: true"}},
       "run.yaml:44:precision.master_weight: unknown key; did you mean `master_weights`?"},
      {{{"  global_batch_size: 16", "  global_batch_size: 16\n  num_worker: 1"}},
       "run.yaml:17:data.num_worker: unknown key; did you mean `num_workers`?"},
      {{{"seed: 7", "seed: 7\nbucket_size_collectives: 0"}},
       "run.yaml:4:bucket_size_collectives: must be at least 1, got 0"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  kv_channels: ${.num_laiers}"}},
       "run.yaml:27:model.kv_channels: cannot resolve '${.num_laiers}': no key 'model.num_laiers', "
       "did you mean 'model.num_layers'?"},
  };
  return files;
}

TEST(BadSections, EachIsNamedWithItsNumbers) {
  for (const Broken& broken : broken_sections())
    EXPECT_EQ(problems_of(broken_text(broken)), broken.expected);
}

TEST(BadSections, AreMoreThanSixty) { EXPECT_GE(broken_sections().size(), 60U); }

}  // namespace
}  // namespace trellis::trainer
