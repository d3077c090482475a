"""Mixtures of experts against Hugging Face transformers, in fp32: the same weights give the same
logits, loss and gradients, and eight steps of AdamW (twenty in scripts/judge) the same losses."""

import unittest

import torch
import transformers
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers_case import (
    LLAMA,
    OURS,
    Comparison,
    llama_weights,
    mean_loss,
    randomize,
    run,
    tokens,
    values,
)

EXPERTS, TOP = 8, 2
MIXTURE = dict(OURS, moe_num_experts=EXPERTS, moe_top_k=TOP)


def mixtral_weights(tensors):
    """Names of Hugging Face to ours: experts are stacked along the rows."""
    weights = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." in name:
            name = name.replace(".mlp.experts.", ".mlp.expert_mlps.mlp_op.") + ".weight"
            tensor = tensor.flatten(0, 1)
        weights[name.replace(".mlp.gate.", ".mlp.router.linear_router.")] = tensor.contiguous()
    return weights


class Mixtral(Comparison):
    def model(self, **changes):
        return randomize(
            transformers.MixtralForCausalLM(
                transformers.MixtralConfig(
                    **{
                        **LLAMA,
                        "num_local_experts": EXPERTS,
                        "num_experts_per_tok": TOP,
                        "head_dim": 8,
                        "rope_theta": 10000.0,
                        **changes,
                    }
                )
            )
        )

    def test_every_expert_sees_all_tokens(self):
        self.check_forward(self.model(), MIXTURE, mixtral_weights)

    def test_dropless(self):
        self.check_forward(self.model(), dict(MIXTURE, moe_dropless=1), mixtral_weights)

    def test_a_capacity_that_nothing_exceeds(self):
        config = dict(MIXTURE, moe_capacity_factor=EXPERTS / TOP)
        self.check_forward(self.model(), config, mixtral_weights)

    def test_a_capacity_that_drops_is_another_model(self):
        """The comparison above could not fail if the capacity changed nothing."""
        weights, batches = mixtral_weights(values(self.model())), tokens()
        whole = run(MIXTURE, weights, batches)["logits"]
        cut = run(dict(MIXTURE, moe_capacity_factor=0.5), weights, batches)["logits"]
        self.assertGreater((whole - cut).abs().max().item(), 0.1)

    def test_training(self):
        self.check_training(self.model(), dict(MIXTURE, moe_dropless=1), mixtral_weights)


class Dbrx(Comparison):
    """Databricks' DBRX: layer norms without bias, queries, keys and values within a bound, four of
    sixteen experts."""

    EXPERTS, TOP, CLIP = 16, 4, 0.9
    CONFIG = dict(
        OURS,
        architecture="mixtral",
        normalization=0,  # layernorm
        layernorm_bias=0,
        clip_qkv=CLIP,
        moe_num_experts=EXPERTS,
        moe_top_k=TOP,
        moe_dropless=1,
        moe_block_size=4,
    )

    def model(self):
        config = transformers.DbrxConfig(
            d_model=48,
            n_heads=6,
            n_layers=LLAMA["num_hidden_layers"],
            max_seq_len=LLAMA["max_position_embeddings"],
            vocab_size=LLAMA["vocab_size"],
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            attn_config={"kv_n_heads": 2, "clip_qkv": self.CLIP, "rope_theta": 10000.0},
            ffn_config={
                "ffn_hidden_size": 80,
                "moe_num_experts": self.EXPERTS,
                "moe_top_k": self.TOP,
            },
        )
        return randomize(transformers.DbrxForCausalLM(config))

    def weights(self, tensors):
        heads, kv_heads = 6 * 8, 2 * 8
        places = {
            "transformer.wte": "model.embed_tokens",
            "transformer.norm_f": "model.norm",
            "norm_attn_norm.norm_1": "input_layernorm",
            "norm_attn_norm.norm_2": "post_attention_layernorm",
            "norm_attn_norm.attn.out_proj": "self_attn.o_proj",
            "ffn.router.layer": "mlp.router.linear_router",
        }
        weights = {}
        for name, tensor in tensors.items():
            path = name.replace("transformer.blocks", "model.layers")
            for theirs, ours in places.items():
                path = path.replace(theirs, ours)
            if "Wqkv" in name:
                parts = tensor.split([heads, kv_heads, kv_heads])
                for part, value in zip("qkv", parts):
                    weights[path.replace("norm_attn_norm.attn.Wqkv", f"self_attn.{part}_proj")] = (
                        value.contiguous()
                    )
            elif ".mlp." in name:
                weights.update(self.experts(path, tensor, tensors, name))
            else:
                weights[path] = tensor
        return weights

    def experts(self, path, tensor, tensors, name):
        """[experts · f, h] each: w1 is the gate, v1 goes up, w2 down, transposed."""
        base = path.replace("ffn.experts.mlp", "mlp.expert_mlps.mlp_op").rsplit(".", 1)[0]
        if name.endswith("w2"):
            down = tensor.view(self.EXPERTS, 80, 48).transpose(1, 2).reshape(-1, 80)
            return {f"{base}.down_proj.weight": down.contiguous()}
        if name.endswith("v1"):
            return {}
        up = tensors[name[:-2] + "v1"]
        both = [part.view(self.EXPERTS, 80, 48) for part in (tensor, up)]
        return {f"{base}.gate_up_proj.weight": torch.cat(both, 1).flatten(0, 1).contiguous()}

    def test_forward_and_gradients(self):
        self.check_forward(self.model(), self.CONFIG, self.weights)

    def test_training(self):
        self.check_training(self.model(), self.CONFIG, self.weights)

    def test_the_bound_matters(self):
        weights, batches = self.weights(values(self.model())), tokens()
        wide = run(dict(self.CONFIG, clip_qkv=1e6), weights, batches)["logits"]
        difference = wide - run(self.CONFIG, weights, batches)["logits"]
        self.assertGreater(difference.abs().max().item(), 0.1)


class AuxiliaryLoss(Comparison):
    """NxD's is Hugging Face's divided by k."""

    COEFFICIENT = 0.1

    def model(self):
        return Mixtral.model(self, output_router_logits=True)

    def config(self):
        return dict(
            MIXTURE,
            moe_dropless=1,
            moe_output_router_logits=1,
            moe_router_aux_loss_coef=self.COEFFICIENT * TOP,
        )

    def loss_of(self, outputs, labels, loss_mask=None):
        main = mean_loss(outputs.logits, labels, loss_mask)
        return main + self.COEFFICIENT * outputs.aux_loss

    def test_forward_and_gradients(self):
        self.check_forward(self.model(), self.config(), mixtral_weights)

    def test_training(self):
        self.check_training(self.model(), self.config(), mixtral_weights)

    def test_the_loss_matters(self):
        weights, batches = mixtral_weights(values(self.model())), tokens()
        with_it = run(self.config(), weights, batches)["losses"]
        without = run(dict(MIXTURE, moe_dropless=1), weights, batches)["losses"]
        self.assertGreater((with_it - without).item(), self.COEFFICIENT)


class SharedExpertsAndGroups(Comparison):
    """GLM 4.5's mixture: of the groups of experts the best ones, and an expert for every token."""

    GROUPS, OF_THEM, SCALE = 4, 2, 1.5

    def model(self, **changes):
        config = transformers.Glm4MoeConfig(
            **{
                **LLAMA,
                "head_dim": 8,
                "moe_intermediate_size": 80,
                "n_routed_experts": EXPERTS,
                "num_experts_per_tok": TOP,
                "n_shared_experts": 2,
                "n_group": self.GROUPS,
                "topk_group": self.OF_THEM,
                "routed_scaling_factor": self.SCALE,
                "norm_topk_prob": True,
                "first_k_dense_replace": 0,
                "use_qk_norm": False,
                "attention_bias": False,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.5,
                },
                **changes,
            }
        )
        return randomize(transformers.Glm4MoeForCausalLM(config))

    def config(self):
        return dict(
            MIXTURE,
            rotary_percentage=0.5,
            moe_dropless=1,
            moe_routing_algorithm="group_limited",
            moe_num_groups=self.GROUPS,
            moe_top_k_groups=self.OF_THEM,
            moe_num_shared_experts=2,
            moe_routed_scaling_factor=self.SCALE,
        )

    @staticmethod
    def weights(tensors):
        routed = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." in name}
        others = {name: tensor for name, tensor in tensors.items() if name not in routed}
        return mixtral_weights(routed) | mixtral_weights(llama_weights(others))

    def test_forward_and_gradients(self):
        self.check_forward(self.model(), self.config(), self.weights)

    def test_training(self):
        self.check_training(self.model(), self.config(), self.weights)

    def test_the_groups_matter(self):
        weights, batches = self.weights(values(self.model())), tokens()
        free = dict(self.config(), moe_num_groups=1, moe_top_k_groups=1)
        difference = run(free, weights, batches)["logits"]
        difference = difference - run(self.config(), weights, batches)["logits"]
        self.assertGreater(difference.abs().max().item(), 0.1)


class DeepSeek(Comparison):
    """The mixtures of DeepSeek-V2 and V3, by their own modelling code, in the layers of a Llama."""

    GROUPS, OF_THEM, SCALE = 4, 2, 2.5
    SIZES = dict(
        hidden_size=48,
        num_attention_heads=6,
        moe_intermediate_size=80,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=TOP,
        n_shared_experts=2,
        n_group=GROUPS,
        topk_group=OF_THEM,
        routed_scaling_factor=SCALE,
    )

    def with_mixtures(self, make, config):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
        for layer in model.model.layers:
            layer.mlp = make(config)
        return randomize(model)

    def v3(self):
        config = transformers.DeepseekV3Config(**self.SIZES, norm_topk_prob=True)
        return self.with_mixtures(deepseek_v3.DeepseekV3MoE, config)

    def v2(self):
        config = transformers.DeepseekV2Config(**self.SIZES, topk_method="greedy")
        return self.with_mixtures(deepseek_v2.DeepseekV2Moe, config)

    def config(self, **changes):
        return dict(
            MIXTURE,
            moe_dropless=1,
            moe_num_shared_experts=2,
            moe_routed_scaling_factor=self.SCALE,
            **changes,
        )

    def grouped(self):
        return self.config(
            moe_routing_algorithm="group_limited",
            moe_num_groups=self.GROUPS,
            moe_top_k_groups=self.OF_THEM,
        )

    weights = staticmethod(SharedExpertsAndGroups.weights)

    def test_v3_forward_and_gradients(self):
        self.check_forward(self.v3(), self.grouped(), self.weights)

    def test_v3_training(self):
        self.check_training(self.v3(), self.grouped(), self.weights)

    def test_the_groups_matter(self):
        weights, batches = self.weights(values(self.v3())), tokens()
        free = dict(self.grouped(), moe_num_groups=1, moe_top_k_groups=1)
        difference = run(free, weights, batches)["logits"]
        difference = difference - run(self.grouped(), weights, batches)["logits"]
        self.assertGreater(difference.abs().max().item(), 0.1)

    def test_v2_forward_and_gradients(self):
        config = self.config(moe_normalize_top_k_affinities=0)
        self.check_forward(self.v2(), config, self.weights)

    def test_v2_training(self):
        config = self.config(moe_normalize_top_k_affinities=0)
        self.check_training(self.v2(), config, self.weights)


if __name__ == "__main__":
    unittest.main()
