"""How NxD lays a mixture of experts out in files, a second time, from its sources:
ExpertFusedColumnParallelLinear and ExpertFusedRowParallelLinear (the axes of weights),
create_local_weight (parts of TP ranks), ZeroRedundancyOptimizer (padding and parts of states),
NeuronEPZero1Optimizer.state_dict (numbers of parameters), save_checkpoint (names of files) and
_xser_save_data."""

import pathlib

import nxd_checkpoints_test as nxd
import torch
from nxd_checkpoints_test import FFN, HIDDEN, LAYERS

EXPERTS = 4
GATE_UP, DOWN = (f"mlp.expert_mlps.mlp_op.{name}_proj.weight" for name in ("gate_up", "down"))
ROUTER = "mlp.router.linear_router.weight"


MEGATRON_NAMES = {
    "model.embed_tokens": "language_model.embedding.word_embeddings",
    "model.layers.": "language_model.encoder.layers.",
    "model.norm": "language_model.encoder.final_layernorm",
    "lm_head": "language_model.output_layer",
    "self_attn.q_proj": "self_attention.query_key_value",
    "self_attn.o_proj": "self_attention.dense",
    "mlp.": "mlp.moe.",
}


def whole_weights(seed, kv_heads=2):
    """The model has dense weights, and in each layer a router and gate, up [E, f, h] and down
    [E, h, f], as transformers' experts have them."""
    dense = {k: v for k, v in nxd.whole_weights(seed, kv_heads).items() if ".mlp." not in k}
    torch.manual_seed(100 + seed)
    for layer in range(LAYERS):
        path = f"model.layers.{layer}."
        dense[path + ROUTER] = torch.rand(EXPERTS, HIDDEN)
        for name in ("gate", "up"):
            dense[path + name] = torch.rand(EXPERTS, FFN, HIDDEN)
        dense[path + "down"] = torch.rand(EXPERTS, HIDDEN, FFN)
    return dense


def as_rows(whole):
    """The program has the same tensors as rows: experts one after the other."""
    rows = {k: v for k, v in whole.items() if k.rsplit(".", 1)[1] not in ("gate", "up", "down")}
    for layer in range(LAYERS):
        path = f"model.layers.{layer}."
        gate_up = torch.cat([whole[path + "gate"], whole[path + "up"]], 1)
        rows[path + GATE_UP] = gate_up.flatten(0, 1)
        rows[path + DOWN] = whole[path + "down"].flatten(0, 1)
    return rows


def create_local_weight(full, dim, size, stride, tp, tp_size):
    return torch.cat(torch.split(full, size // stride, dim)[tp::tp_size], dim)


def local_weights(whole, ep, tp, pp, sizes):
    """The state dict of a rank, in the order of the modules."""
    ep_size, tp_size, pp_size, _ = sizes
    own = slice(ep * EXPERTS // ep_size, (ep + 1) * EXPERTS // ep_size)
    local = {}

    def take(name):
        tensor = whole[name]
        if tensor.dim() > 1 and ROUTER not in name:
            tensor = tensor.chunk(tp_size, 1 if "o_proj" in name else 0)[tp].clone()
        local[name] = tensor

    if pp == 0:
        take("model.embed_tokens.weight")
    for layer in range(pp * LAYERS // pp_size, (pp + 1) * LAYERS // pp_size):
        path = f"model.layers.{layer}."
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            take(f"{path}self_attn.{part}.weight")
        take(path + ROUTER)
        full = torch.cat([whole[path + part][own].transpose(1, 2) for part in ("gate", "up")], 2)
        size = 2 * FFN // tp_size
        local[path + GATE_UP] = create_local_weight(full, 2, size, 2, tp, tp_size)
        full = whole[path + "down"][own].transpose(1, 2)
        local[path + DOWN] = create_local_weight(full, 1, FFN // tp_size, 1, tp, tp_size)
        take(f"{path}input_layernorm.weight")
        take(f"{path}post_attention_layernorm.weight")
    if pp == pp_size - 1:
        take("model.norm.weight")
        take("lm_head.weight")
    return {name: tensor.clone() for name, tensor in local.items()}


def is_expert(name):
    return "expert_mlps" in name


def shard(tensor, rank, size):
    """Padded to equal parts."""
    rows = -(-len(tensor) // size)
    padded = torch.zeros(rows * size, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    return padded[rank * rows : (rank + 1) * rows].clone()


def zero1_dict(moments, names, rank, size):
    """The dict of one ZeroRedundancyOptimizer over parameters of these names."""
    groups = [
        [n for n in names if (moments["exp_avg"][n].dim() > 1) == decays] for decays in (1, 0)
    ]
    order = groups[0] + groups[1]
    base, shapes, param_groups = {}, {}, []
    for number, name in enumerate(order):
        base[number] = {state: shard(local[name], rank, size) for state, local in moments.items()}
        base[number]["step"] = torch.tensor(5.0)
        shapes[number] = moments["exp_avg"][name].shape
    for group, decay in zip(groups, (0.1, 0.0)):
        ids = [order.index(name) for name in group]
        param_groups.append({"lr": 1e-3, "weight_decay": decay, "params": ids})
    return {"state": {}, "base_state": base, "shape_info": shapes, "param_groups": param_groups}


def optimizer_dict(moments, dp, sizes):
    """NeuronZero1Optimizer, or with EP NeuronEPZero1Optimizer, which has two of them."""
    ep_size, _, _, dp_size = sizes
    names = list(moments["exp_avg"])
    if ep_size == 1:
        return zero1_dict(moments, names, dp, dp_size)
    dense = zero1_dict(moments, [n for n in names if not is_expert(n)], dp, dp_size)
    experts = zero1_dict(
        moments, [n for n in names if is_expert(n)], dp // ep_size, dp_size // ep_size
    )
    offset = max(dense["base_state"]) + 1
    return {
        "ep_param_id_offset": 1,
        "ep_param_group_offset": len(dense["param_groups"]),
        "ep_base_state_offset": offset,
        "ep_shape_info_offset": offset,
        "param_groups": dense["param_groups"] + experts["param_groups"],
        "state": {},
        **{
            key: dense[key] | {offset + number: value for number, value in experts[key].items()}
            for key in ("base_state", "shape_info")
        },
    }


def file_name(tp, pp, ep=None, dp=0):
    expert = "" if ep is None else f"_ep_rank_{ep:02d}"
    return f"dp_rank_{dp:02d}{expert}_tp_rank_{tp:02d}_pp_rank_{pp:02d}.pt"


def rank_files(sizes, weights, states=None):
    """File → dict, as save_checkpoint names them with ZeRO-1."""
    ep_size, tp_size, pp_size, dp_size = sizes
    files = {}
    for pp in range(pp_size):
        for tp in range(tp_size):
            for ep in range(ep_size):
                name = file_name(tp, pp, ep if ep_size > 1 else None)
                files[f"model/{name}"] = local_weights(weights, ep, tp, pp, sizes)
            for dp in range(dp_size if states else 0):
                moments = {
                    state: local_weights(whole, dp % ep_size, tp, pp, sizes)
                    for state, whole in states.items()
                }
                files[f"optim/{file_name(tp, pp, dp=dp)}"] = optimizer_dict(moments, dp, sizes)
    return files


def save_xser(file, state, ep):
    """_xser_save_data: dense tensors are files of the first EP rank alone."""
    info = {}

    def referenced(value):
        if isinstance(value, dict):
            return {key: referenced(below) for key, below in value.items()}
        if not isinstance(value, torch.Tensor):
            return value
        number, of_experts = len(info), getattr(value, "expert_model_parallel", False)
        info[number] = {
            "dtype": value.dtype,
            "shape": value.shape,
            "expert_model_parallel": of_experts,
        }
        if of_experts or ep == 0:
            torch.save(value, f"{file}.tensors/tensor_{number}.pt")
        return nxd.TensorReference(number)

    pathlib.Path(f"{file}.tensors").mkdir(parents=True)
    torch.save(referenced(state), file)
    torch.save(info, f"{file}.info.pt")
