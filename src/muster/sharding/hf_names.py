"""What each weight is called in a Hugging Face checkpoint, and how it lies there.

torch stores a linear layer's matrix as [out, in], with the dims of heads flattened into one; ours
is as `rules.as_held` says, D first. A row of the tables below says so in letters: `D N H` of ours
is stored as `(N H, D)`. Names and layouts: `modeling_*.py` and `conversion_mapping.py` of
transformers 5.24.0, whose `save_pretrained` the tests compare with.

Letters: V vocabulary, D d_model, F d_ff, N query heads, K KV heads, H head_dim, E experts, S the
width of the shared expert's one gate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from muster.errors import UnknownName
from muster.models.architecture import Architecture
from muster.sharding.rules import as_held
from muster.sharding.weight import Weight
from muster.sharding.weights import layer_weights, weight_table

type Region = tuple[slice, ...]

# model_type -> the class that `from_pretrained` builds; all of them share LLaMA's names.
FAMILIES = {
    "arcee": "ArceeForCausalLM",
    "cwm": "CwmForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "granite": "GraniteForCausalLM",
    "helium": "HeliumForCausalLM",
    "llama": "LlamaForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}

HEAD = "lm_head.weight"
# Tables of rotary frequencies that old checkpoints hold; they follow from the config.
BUFFERS = ("rotary_emb.inv_freq",)
FUSED_GATE_AND_UP = ".mlp.experts.gate_up_proj"

# weight -> (name, our dims, stored dims); "." before a name is for "model.layers.{layer}.".
type Row = tuple[str, str, tuple[str, ...]]
_ROWS: dict[str, Row] = {
    "embedding": ("model.embed_tokens.weight", "VD", ("V", "D")),
    "final_norm": ("model.norm.weight", "D", ("D",)),
    "head": (HEAD, "DV", ("V", "D")),
    "layers.norm_0": (".input_layernorm.weight", "D", ("D",)),
    "layers.norm_1": (".post_attention_layernorm.weight", "D", ("D",)),
    "layers.attention.query": (".self_attn.q_proj.weight", "DNH", ("NH", "D")),
    "layers.attention.query.bias": (".self_attn.q_proj.bias", "NH", ("NH",)),
    "layers.attention.key": (".self_attn.k_proj.weight", "DKH", ("KH", "D")),
    "layers.attention.key.bias": (".self_attn.k_proj.bias", "KH", ("KH",)),
    "layers.attention.value": (".self_attn.v_proj.weight", "DKH", ("KH", "D")),
    "layers.attention.value.bias": (".self_attn.v_proj.bias", "KH", ("KH",)),
    "layers.attention.output": (".self_attn.o_proj.weight", "DNH", ("D", "NH")),
    "layers.attention.output.bias": (".self_attn.o_proj.bias", "D", ("D",)),
    "layers.attention.query_norm": (".self_attn.q_norm.weight", "H", ("H",)),
    "layers.attention.key_norm": (".self_attn.k_norm.weight", "H", ("H",)),
    "layers.mlp.gate": (".mlp.gate_proj.weight", "DF", ("F", "D")),
    "layers.mlp.gate.bias": (".mlp.gate_proj.bias", "F", ("F",)),
    "layers.mlp.up": (".mlp.up_proj.weight", "DF", ("F", "D")),
    "layers.mlp.up.bias": (".mlp.up_proj.bias", "F", ("F",)),
    "layers.mlp.down": (".mlp.down_proj.weight", "DF", ("D", "F")),
    "layers.mlp.down.bias": (".mlp.down_proj.bias", "D", ("D",)),
    "layers.router": (".mlp.gate.weight", "DE", ("E", "D")),
    "layers.experts.gate": (".mlp.experts.{expert}.gate_proj.weight", "DF", ("F", "D")),
    "layers.experts.up": (".mlp.experts.{expert}.up_proj.weight", "DF", ("F", "D")),
    "layers.experts.down": (".mlp.experts.{expert}.down_proj.weight", "FD", ("D", "F")),
    "layers.shared_experts.gate": (".mlp.shared_expert.gate_proj.weight", "DF", ("F", "D")),
    "layers.shared_experts.up": (".mlp.shared_expert.up_proj.weight", "DF", ("F", "D")),
    "layers.shared_experts.down": (".mlp.shared_expert.down_proj.weight", "DF", ("D", "F")),
    "layers.shared_experts.scale": (".mlp.shared_expert_gate.weight", "DS", ("S", "D")),
}
_MIXTRAL: dict[str, Row] = {
    "layers.router": (".block_sparse_moe.gate.weight", "DE", ("E", "D")),
    "layers.experts.gate": (".block_sparse_moe.experts.{expert}.w1.weight", "DF", ("F", "D")),
    "layers.experts.up": (".block_sparse_moe.experts.{expert}.w3.weight", "DF", ("F", "D")),
    "layers.experts.down": (".block_sparse_moe.experts.{expert}.w2.weight", "FD", ("D", "F")),
}
# Norms of queries and keys that run over all heads together have a scale for each head.
_NORMS_OVER_ALL: dict[str, Row] = {
    "layers.attention.query_norm": (".self_attn.q_norm.weight", "NH", ("NH",)),
    "layers.attention.key_norm": (".self_attn.k_norm.weight", "KH", ("KH",)),
}
# As transformers 5 holds experts in memory, and saves them when told so. Gate and up are one
# tensor, in this order (`gate_up`), so that each is a half of its dim 1.
_FUSED: dict[str, Row] = {
    "layers.router": _ROWS["layers.router"],
    "layers.experts.gate": (FUSED_GATE_AND_UP, "EDF", ("E", "F", "D")),
    "layers.experts.up": (FUSED_GATE_AND_UP, "EDF", ("E", "F", "D")),
    "layers.experts.down": (".mlp.experts.down_proj", "EFD", ("E", "D", "F")),
}
_HALF_OF_FUSED = {"layers.experts.gate": 0, "layers.experts.up": 1}


@dataclass(frozen=True, kw_only=True)
class HfTensor:
    """The tensors of a checkpoint that make up one weight: one, or one a layer and an expert.

    Attributes:
        weight: the weight's name, under which its array is known.
        template: the tensors' name, with `{layer}` and `{expert}` where there is one of each.
        shape: of one tensor as it is stored.
        ours: the sizes of that part of the weight that one tensor fills.
        order: for each stored dim, which of our dims it flattens, outermost first.
        start: offset of the part in stored dim 1, for a tensor that holds two weights.
        layers: numbers of the layers that hold one; None for a weight outside the layers.
        experts: how many each layer holds; None where one tensor is all of them or there are none.
    """

    weight: str
    template: str
    shape: tuple[int, ...]
    ours: tuple[int, ...]
    order: tuple[tuple[int, ...], ...]
    start: int = 0
    layers: tuple[int, ...] | None = None
    experts: int | None = None

    @property
    def stacked(self) -> tuple[int, ...]:
        """The shape of the whole weight, e.g. [L, E, D, F]."""
        layers = () if self.layers is None else (len(self.layers),)
        return (*layers, *(() if self.experts is None else (self.experts,)), *self.ours)

    @property
    def split(self) -> tuple[int, ...]:
        """The stored part's shape with flattened dims told apart, e.g. [N, H, D]."""
        return tuple(self.ours[dim] for dims in self.order for dim in dims)

    @property
    def to_ours(self) -> tuple[int, ...]:
        """The transposition from `split` to our order of dims."""
        flat = [dim for dims in self.order for dim in dims]
        return tuple(flat.index(dim) for dim in range(len(flat)))

    @property
    def to_stored(self) -> tuple[int, ...]:
        """The transposition from our order of dims to `split`; the inverse of `to_ours`."""
        return tuple(dim for dims in self.order for dim in dims)

    def name(self, place: tuple[int, ...]) -> str:
        """The tensor that fills a place: the index into the weight's layers and experts."""
        if self.layers is None:
            return self.template
        expert = place[1] if len(place) > 1 else None
        return self.template.format(layer=self.layers[place[0]], expert=expert)

    def places(self) -> Iterator[tuple[int, ...]]:
        """Every place that one tensor fills, layer by layer."""
        outer = self.stacked[: len(self.stacked) - len(self.ours)]
        return product(*(range(size) for size in outer))

    def stored_region(self, region: Region) -> Region:
        """The smallest box of the stored tensor that covers a box of our part.

        It is the same box, unless the box cuts a dim that is not the outermost of a flattened few;
        there it has all of that dim. `inner_region` cuts it off again.
        """
        found: list[slice] = []
        for stored, dims in enumerate(self.order):
            outer = region[dims[0]]
            inner = prod(self.ours[dim] for dim in dims[1:])
            offset = self.start if stored == 1 else 0
            found.append(slice(offset + outer.start * inner, offset + outer.stop * inner))
        return tuple(found)

    def inner_region(self, region: Region) -> Region:
        """What of a `stored_region`, once it lies as ours does, is the box that was asked for."""
        outermost = {dims[0] for dims in self.order}
        return tuple(
            slice(0, asked.stop - asked.start) if dim in outermost else asked
            for dim, asked in enumerate(region)
        )


def hf_tensors(architecture: Architecture, *, fused: bool = False) -> tuple[HfTensor, ...]:
    """What a checkpoint of a model holds, in the order of the weight table.

    Args:
        architecture: the model.
        fused: the layout that transformers 5 has in memory, where all experts of a layer are two
            tensors, instead of the published one of three tensors an expert.

    Raises:
        UnknownName: the family's tensors are not known; so too where its decoder is a part of a
            larger model, in whose checkpoint it has other names.
    """
    declared = str(architecture.config.get("model_type", architecture.family))
    if declared not in FAMILIES:
        raise UnknownName(
            "model family",
            declared,
            FAMILIES,
            note="the names of its tensors in a checkpoint are not known here",
        )
    layers = _layers_of(architecture)
    tensors = tuple(
        _tensor(as_held(weight), _row(architecture.family, weight, fused), layers)
        for weight in weight_table(architecture)
    )
    assert len({tensor.weight for tensor in tensors}) == len(tensors), "two shapes of one weight"
    return tensors


def _layers_of(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Which layers, by number, hold each weight."""
    found: dict[str, tuple[int, ...]] = {}
    for number, layer in enumerate(architecture.layers):
        for weight in layer_weights(architecture.d_model, layer):
            found[weight.name] = (*found.get(weight.name, ()), number)
    return found


def _row(family: str, weight: Weight, fused: bool) -> Row:
    name = weight.name
    if fused and name in _FUSED:
        return _FUSED[name]
    if name in _NORMS_OVER_ALL and len(weight.shape) == 2:
        return _NORMS_OVER_ALL[name]
    if family == "mixtral" and name in _MIXTRAL:
        return _MIXTRAL[name]
    assert name in _ROWS, f"{family} has no known tensor for {name}"
    return _ROWS[name]


def _tensor(weight: Weight, row: Row, layers: dict[str, tuple[int, ...]]) -> HfTensor:
    template, letters, stored = row
    per_expert = "{expert}" in template
    ours = weight.shape[1:] if per_expert else weight.shape
    assert len(ours) == len(letters), weight
    shape = [prod(ours[letters.index(letter)] for letter in dim) for dim in stored]
    start = 0
    if template == FUSED_GATE_AND_UP:
        start = _HALF_OF_FUSED[weight.name] * shape[1]
        shape[1] *= 2
    return HfTensor(
        weight=weight.name,
        template=f"model.layers.{{layer}}{template}" if template.startswith(".") else template,
        shape=tuple(shape),
        ours=ours,
        order=tuple(tuple(letters.index(letter) for letter in dim) for dim in stored),
        start=start,
        layers=layers.get(weight.name),
        experts=weight.shape[0] if per_expert else None,
    )
