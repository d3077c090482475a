"""Mixtures of experts against Hugging Face transformers, in fp32: the same weights give the same
logits, loss and gradients, and twenty steps of AdamW the same losses."""

import unittest

import transformers
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


if __name__ == "__main__":
    unittest.main()
