"""BERT and ViT against Hugging Face transformers, in fp32: logits, losses, gradients."""

import copy
import unittest

import torch
import transformers
from transformers_case import (
    BATCH,
    IGNORED,
    LAYERS,
    SEQUENCE,
    STEPS,
    VOCABULARY,
    Comparison,
    randomize,
    run,
    tokens,
    values,
)


def encoder_weights(places):
    """Names of Hugging Face's encoders to ours: `places` are the modules of a layer, the others
    keep their names."""

    def convert(tensors):
        weights = {}
        for name, tensor in tensors.items():
            parts = name.split(".")
            if "layer" in parts and parts[1] == "encoder":
                name = ".".join(["", *parts[:4], places[".".join(parts[4:-1])], parts[-1]])[1:]
            weights[name] = tensor
        return weights

    return convert


BERT_PLACES = {
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "input_layernorm",
    "intermediate.dense": "mlp.intermediate",
    "output.dense": "mlp.output",
    "output.LayerNorm": "post_attention_layernorm",
}
VIT_PLACES = {
    "attention.q_proj": "attention.q_proj",
    "attention.k_proj": "attention.k_proj",
    "attention.v_proj": "attention.v_proj",
    "attention.o_proj": "attention.dense",
    "layernorm_before": "input_layernorm",
    "mlp.fc1": "mlp.intermediate",
    "mlp.fc2": "mlp.output",
    "layernorm_after": "post_attention_layernorm",
}
ENCODER = dict(
    num_layers=LAYERS,
    hidden_size=48,
    ffn_hidden_size=80,
    num_attention_heads=6,
    num_kv_heads=6,
    layernorm_epsilon=1e-12,
    normalization=0,
    activation=0,
    position_embedding=1,
    has_bias=1,
    flash_attention=0,
)
HUB_ENCODER = dict(
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=LAYERS,
    num_attention_heads=6,
    layer_norm_eps=1e-12,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


class Bert(Comparison):
    """BertForPreTraining: both heads, types of tokens, padding."""

    CONFIG = dict(
        ENCODER,
        architecture="bert",
        transformer_block_type=1,
        encoder_seq_length=SEQUENCE,
        max_position_embeddings=40,
        vocab_size=VOCABULARY,
        type_vocab_size=2,
        share_embeddings_and_output_weights=1,
    )

    def model(self):
        config = transformers.BertConfig(
            **HUB_ENCODER,
            vocab_size=VOCABULARY,
            max_position_embeddings=40,
            type_vocab_size=2,
            attn_implementation="eager",
        )
        return randomize(transformers.BertForPreTraining(config))

    def batches(self, steps=1):
        batches = tokens(steps)
        generator = torch.Generator().manual_seed(2)
        masked = torch.rand(batches["labels"].shape, generator=generator) < 0.3
        masked[..., 0] = True
        batches["labels"][~masked] = IGNORED
        batches["token_type_ids"] = torch.randint(
            0, 2, batches["labels"].shape, generator=generator
        )
        batches["next_sentence_labels"] = torch.randint(0, 2, (steps, BATCH), generator=generator)
        batches["attention_mask"] = torch.ones_like(batches["labels"])
        batches["attention_mask"][:, 1, 23:] = 0
        return batches

    def output(self, model, batches, step=0):
        return model(
            input_ids=batches["input_ids"][step],
            attention_mask=batches["attention_mask"][step],
            token_type_ids=batches["token_type_ids"][step],
            labels=batches["labels"][step],
            next_sentence_label=batches["next_sentence_labels"][step],
        )

    def weights(self, tensors):
        return encoder_weights(BERT_PLACES)(tensors)

    def check(self, **changes):
        model, batches = self.model(), self.batches()
        expected = self.output(model, batches)
        expected.loss.backward()
        got = run(dict(self.CONFIG, **changes), self.weights(values(model)), batches)
        real = batches["attention_mask"][0] == 1
        self.close(
            got["logits"].transpose(0, 1)[real],
            expected.prediction_logits.detach()[real],
            "logits of real tokens",
        )
        self.close(got["losses"][0], expected.loss.detach(), "loss")
        grads = self.weights(values(model, gradients=True))
        self.assertEqual(set(got["grads"]), set(grads))
        exact = copy.deepcopy(model).double()
        exact.zero_grad()
        self.output(exact, batches).loss.backward()
        truth = self.weights(values(exact, gradients=True))

        def size(name):
            # The terms of a bias's gradient may cancel; in that of its weight they are weighed by
            # activations of about one, and do not.
            weight = truth.get(name.removesuffix("bias") + "weight")
            if weight is None:  # of a norm, or tied
                return truth[name].norm()
            return max(truth[name].norm(), weight.norm() / weight.shape[-1] ** 0.5)

        def far(of, name):
            return ((of[name].double() - truth[name]).norm() / size(name)).item()

        for name in truth:
            # A key's bias shifts all of a query's scores alike: of its gradient only rounding is
            # left.
            if not name.endswith("k_proj.bias"):
                self.assertLess(
                    far(got["grads"], name),
                    max(1e-5, 4 * far(grads, name)),
                    f"gradient of {name}, compared with fp64; transformers is off by "
                    f"{far(grads, name):.1e}",
                )

    def test_pre_training(self):
        self.check()

    def test_fused_attention(self):
        self.check(flash_attention=1)

    def test_recomputed(self):
        self.check(recompute=2)

    def test_training(self):
        model, batches = self.model(), self.batches(STEPS)
        before = self.weights(values(model))
        options = dict(lr=2e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
        decayed = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() == 1]
        optimizer = torch.optim.AdamW(
            [dict(params=decayed), dict(params=rest, weight_decay=0.0)],
            lr=options["lr"],
            betas=(0.9, 0.95),
            eps=1e-8,
            weight_decay=0.1,
        )
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = self.output(model, batches, step).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        self.close(
            run(self.CONFIG, before, batches, optimizer=options)["losses"],
            torch.stack(losses),
            f"losses of {STEPS} steps",
        )


class Vit(Comparison):
    CONFIG = dict(
        ENCODER,
        architecture="vit",
        encoder_seq_length=17,
        max_position_embeddings=17,
        image_size=32,
        patch_size=8,
        num_channels=3,
        num_labels=11,
    )

    def model(self):
        config = transformers.ViTConfig(
            **HUB_ENCODER,
            image_size=32,
            patch_size=8,
            num_channels=3,
            num_labels=11,
            attn_implementation="eager",
        )
        return randomize(transformers.ViTForImageClassification(config))

    def weights(self, tensors):
        weights = encoder_weights(VIT_PLACES)(
            {
                name.replace("vit.layers", "vit.encoder.layer"): tensor
                for name, tensor in tensors.items()
            }
        )
        weights["vit.embeddings.cls_token"] = weights["vit.embeddings.cls_token"][0]
        weights["vit.embeddings.position_embeddings"] = weights[
            "vit.embeddings.position_embeddings"
        ][0]
        name = "vit.embeddings.patch_embeddings.projection.weight"
        weights[name] = weights[name].flatten(1)
        return weights

    def check(self, **changes):
        model = self.model()
        generator = torch.Generator().manual_seed(4)
        pixels, labels = (
            torch.randn(1, BATCH, 3, 32, 32, generator=generator),
            torch.randint(0, 11, (1, BATCH, 1), generator=generator),
        )
        expected = model(pixel_values=pixels[0], labels=labels[0, :, 0])
        expected.loss.backward()
        got = run(
            dict(self.CONFIG, **changes),
            self.weights(values(model)),
            dict(pixel_values=pixels, labels=labels),
        )
        self.close(got["logits"][0], expected.logits.detach(), "logits")
        self.close(got["losses"][0], expected.loss.detach(), "loss")
        grads = self.weights(values(model, gradients=True))
        self.assertEqual(set(got["grads"]), set(grads))
        norms = {
            name: grad.norm() for name, grad in grads.items() if not name.endswith("k_proj.bias")
        }
        self.close(
            max((got["grads"][name] - grads[name]).norm() / norm for name, norm in norms.items()),
            torch.tensor(0.0),
            "gradients, relative",
        )

    def test_classification(self):
        self.check()

    def test_fused_attention(self):
        self.check(flash_attention=1)


if __name__ == "__main__":
    unittest.main()
