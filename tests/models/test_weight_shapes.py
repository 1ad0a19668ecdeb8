"""Every tensor of Hugging Face's classes against the weight table, one config a kind of mixer.

Checkpoints fuse what the table keeps apart, so names are compared in groups; each group must hold
as many parameters, and a tensor that has one counterpart must split into the same two sizes.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from muster.models.hf_config import architecture_from_config
from muster.sharding.weights import weight_table
from tests.models.published import DATA

ENTRIES = json.loads((DATA / "hf_shapes.json").read_text("utf-8"))["entries"]

ATTENTION, RECURRENCE = "layers.attention.", "layers.recurrence."
LAYER_NORMS = [
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
    "pre_feedforward_layernorm_2",
    "pre_ff_layernorm",
    "operator_norm",
    "ffn_norm",
    "post_per_layer_input_norm",
]


def layer(names: str) -> tuple[str, ...]:
    return tuple(f"layers.{name}" for name in names.split())


def attention(names: str) -> tuple[str, ...]:
    return tuple(ATTENTION + name for name in names.split())


def recurrence(names: str) -> tuple[str, ...]:
    return tuple(RECURRENCE + name for name in names.split())


# (names in Hugging Face's class, names in the weight table)
GROUPS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("embed_tokens",), ("embedding",)),
    (("lm_head",), ("head",)),
    (("norm", "final_layernorm", "embedding_norm"), ("final_norm",)),
    (layer(" ".join(LAYER_NORMS)), layer(" ".join(f"norm_{i}" for i in range(8)))),
    # attention
    (
        layer("self_attn.q_proj"),
        (*attention("query gate"), *recurrence("query")),
    ),
    (layer("self_attn.k_proj"), (*attention("key"), *recurrence("key"))),
    (layer("self_attn.v_proj"), (*attention("value"), *recurrence("value"))),
    (
        layer(
            "self_attn.o_proj self_attn.out_proj mamba.out_proj linear_attn.out_proj conv.out_proj"
        ),
        (*attention("output"), *recurrence("output")),
    ),
    (layer("self_attn.q_proj.bias"), attention("query.bias")),
    (layer("self_attn.k_proj.bias"), attention("key.bias")),
    (layer("self_attn.v_proj.bias"), attention("value.bias")),
    (
        layer("self_attn.o_proj.bias mamba.out_proj.bias conv.out_proj.bias"),
        (*attention("output.bias"), *recurrence("output.bias")),
    ),
    (
        layer("self_attn.q_norm self_attn.q_layernorm self_attn.q_a_layernorm"),
        attention("query_norm"),
    ),
    (layer("self_attn.k_norm self_attn.k_layernorm"), attention("key_norm")),
    (layer("self_attn.sinks"), attention("sinks")),
    # latent attention
    (layer("self_attn.q_a_proj"), attention("query_down")),
    (layer("self_attn.q_b_proj"), attention("query_up")),
    (layer("self_attn.kv_a_proj_with_mqa"), attention("kv_down")),
    (layer("self_attn.kv_a_layernorm"), attention("kv_norm")),
    (layer("self_attn.kv_b_proj"), attention("kv_up")),
    (layer("self_attn.indexer.wq_b"), attention("indexer.query")),
    (layer("self_attn.indexer.wk"), attention("indexer.key")),
    (layer("self_attn.indexer.k_norm"), attention("indexer.key_norm")),
    (layer("self_attn.indexer.k_norm.bias"), attention("indexer.key_norm.bias")),
    (layer("self_attn.indexer.weights_proj"), attention("indexer.weights")),
    # recurrent mixers
    (
        layer("mamba.in_proj conv.in_proj"),
        recurrence("gate input write read step query key value write_gate read_gate"),
    ),
    (layer("linear_attn.in_proj_ba self_attn.b_proj"), recurrence("write_strength")),
    (
        layer("mamba.in_proj.bias conv.in_proj.bias"),
        recurrence(
            "gate.bias input.bias write.bias read.bias step.bias write_gate.bias read_gate.bias"
        ),
    ),
    (
        layer("mamba.conv1d linear_attn.conv1d self_attn.conv1d conv.conv"),
        recurrence("conv"),
    ),
    (layer("mamba.conv1d.bias conv.conv.bias"), recurrence("conv.bias")),
    (
        layer("mamba.dt_bias linear_attn.dt_bias self_attn.forget_gate.dt_bias"),
        recurrence("step_bias"),
    ),
    (
        layer("mamba.A_log linear_attn.A_log self_attn.forget_gate.A_log"),
        recurrence("decay"),
    ),
    (layer("mamba.D"), recurrence("skip")),
    (
        layer("mamba.norm linear_attn.norm self_attn.norm self_attn.o_norm"),
        recurrence("norm"),
    ),
    (layer("self_attn.forget_gate.f_a_proj"), recurrence("step_down")),
    (layer("self_attn.forget_gate.f_b_proj"), recurrence("step_up")),
    (layer("self_attn.g_a_proj"), recurrence("gate_down")),
    (layer("self_attn.g_b_proj"), recurrence("gate_up")),
    # MLPs and experts
    (layer("mlp.gate_proj feed_forward.gate_proj feed_forward.w1"), layer("mlp.gate")),
    (layer("mlp.up_proj feed_forward.up_proj feed_forward.w3"), layer("mlp.up")),
    (layer("mlp.down_proj feed_forward.down_proj feed_forward.w2"), layer("mlp.down")),
    (layer("experts.gate_up_proj"), layer("experts.gate experts.up")),
    (layer("experts.down_proj"), layer("experts.down")),
    (layer("experts.gate_up_proj_bias"), layer("experts.gate.bias experts.up.bias")),
    (layer("experts.down_proj_bias"), layer("experts.down.bias")),
    (layer("mlp.gate router router.proj"), layer("router")),
    (layer("router.bias"), layer("router.bias")),
    (
        layer("shared.gate_proj shared.up_proj shared_mlp.input_linear"),
        layer("shared_experts.gate shared_experts.up"),
    ),
    (layer("shared.down_proj shared_mlp.output_linear"), layer("shared_experts.down")),
    (layer("mlp.shared_expert_gate"), layer("shared_experts.scale")),
    # what only Gemma has
    (layer("router.scale"), layer("router.scale")),
    (layer("router.per_expert_scale"), layer("router.expert_scale")),
    (layer("per_layer_input_gate"), layer("per_layer_input.gate")),
    (layer("per_layer_projection"), layer("per_layer_input.out")),
    (("embed_tokens_per_layer",), ("per_layer_embedding",)),
    (("per_layer_model_projection",), ("per_layer_projection",)),
    (("per_layer_projection_norm",), ("per_layer_projection.norm",)),
    (("altup_projections",), ("altup.in",)),
    (("altup_unembed_projections",), ("altup.out",)),
    (layer("altup.correct_output_scale"), layer("altup.output_scale")),
    (layer("altup.correction_coefs"), layer("altup.correct")),
    (layer("altup.prediction_coefs"), layer("altup.predict")),
    (layer("altup.modality_router"), layer("altup.router")),
    (layer("altup.router_norm"), layer("altup.router_norm")),
    (layer("laurel.linear_left"), layer("laurel.left")),
    (layer("laurel.linear_right"), layer("laurel.right")),
    (layer("laurel.post_laurel_norm"), layer("laurel.norm")),
]
# Jamba's names mean other things than Mamba-2's.
MAMBA_1 = [
    (layer("mamba.in_proj"), recurrence("gate input")),
    (layer("mamba.x_proj"), recurrence("step_down write read")),
    (layer("mamba.dt_proj"), recurrence("step")),
    (layer("mamba.dt_proj.bias"), recurrence("step.bias")),
    (layer("mamba.dt_layernorm"), recurrence("step_down.norm")),
    (layer("mamba.b_layernorm"), recurrence("write.norm")),
    (layer("mamba.c_layernorm"), recurrence("read.norm")),
]
DELTA_NET = [
    (layer("linear_attn.in_proj_qkvz"), recurrence("query key value gate")),
    (layer("linear_attn.in_proj_ba"), recurrence("write_strength step")),
]
# Dense MLP and experts stand side by side: the table calls the first the shared expert.
GEMMA_4 = [
    (layer("mlp.gate_proj mlp.up_proj"), layer("shared_experts.gate shared_experts.up")),
    (layer("mlp.down_proj"), layer("shared_experts.down")),
]
LIGHTNING = [
    (
        layer("self_attn.qkv_proj self_attn.output_gate"),
        recurrence("query key value gate"),
    ),
]
FIRST = {
    "jamba": MAMBA_1,
    "qwen3_next": DELTA_NET,
    "minimax": LIGHTNING,
    "gemma4_text": GEMMA_4,
}


def short(name: str) -> str:
    """Hugging Face's name without layer numbers and fixed prefixes and suffixes."""
    name = re.sub(r"\.\d+", "", name).removeprefix("model.").removesuffix(".weight")
    name = re.sub(r"(mlp|feed_forward|block_sparse_moe)\.(experts|router)\b", r"\2", name)
    return re.sub(r"mlp\.shared_experts?\.", "shared.", name)


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["kind"] for entry in ENTRIES])
def test_every_tensor_has_its_weight(entry: Mapping[str, Any]) -> None:
    theirs: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for name, shape in entry["shapes"].items():
        theirs[short(name)].append(tuple(shape))
    architecture = architecture_from_config(entry["config"], name=entry["kind"])
    table: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for weight in weight_table(architecture):
        if weight.trainable:
            table[weight.name] += [weight.shape] * weight.copies
    for hf_names, names in [*FIRST.get(entry["config"]["model_type"], []), *GROUPS]:
        left = [shape for name in hf_names for shape in theirs.pop(name, [])]
        right = [shape for name in names for shape in table.pop(name, [])]
        assert sum(map(math.prod, left)) == sum(map(math.prod, right)), (hf_names, names)
        if len(left) == len(right):
            for one, other in zip(sorted(left), sorted(right), strict=True):
                assert splits_into(other, one) or len(set(left)) > 1, (hf_names, one, other)
    assert not theirs
    assert not table


def splits_into(shape: tuple[int, ...], matrix: tuple[int, ...]) -> bool:
    """Whether a shape, cut in two somewhere, has the sizes of a matrix in either order."""
    if len(matrix) != 2:
        return math.prod(shape) == math.prod(matrix)
    cuts = ((math.prod(shape[:at]), math.prod(shape[at:])) for at in range(len(shape) + 1))
    return any(sorted(cut) == sorted(matrix) for cut in cuts)
