"""What a model computes beside its shapes: epsilons, activation, rotary frequencies, routing.

Shapes suffice to plan; to train, every number below must be the one that the model's own class
uses. Only families whose whole arithmetic is known here have a reading; the others are refused by
name, because a model that is nearly right trains without complaint.

Source: the model classes of transformers 5.24.0 (`modeling_<family>.py`) and
`modeling_rope_utils.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from muster.errors import BadInput, join_or
from muster.models.architecture import Architecture, Attention, Experts, Layer, Mlp
from muster.models.defaults import class_defaults
from muster.models.reader import ConfigReader

type Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
ROPE_KINDS = ("default", "linear", "llama3")
# Of all six classes, where a file states none.
USUAL_INITIALIZER_RANGE = 0.02
USUAL_ROUTER_LOSS = 0.001


@dataclass(frozen=True, kw_only=True)
class RotaryFrequencies:
    """How rotary embedding turns positions into angles.

    Attributes:
        theta: base of the wavelengths.
        scaling: `default` for the plain kind; `linear` divides every position by `factor`; `llama3`
            divides only the slow frequencies, with a smooth passage between.
        factor: by how much positions are stretched.
        low_freq_factor: `llama3`: wavelengths above `original_context` over this are slow.
        high_freq_factor: `llama3`: those below `original_context` over this are left as they are.
        original_context: `llama3`: tokens that the model was first trained on.
    """

    theta: float
    scaling: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def inverse_frequencies(self, head_dim: int) -> tuple[float, ...]:
        """Radians per position of each pair of a head's numbers, fastest first: [H / 2].

        f_i = theta^(-2i/H), over `factor` where it is scaled. With llama3 scaling (LLaMA 3.1) a
        frequency of wavelength w = 2 pi / f stays where w < original / high, is divided by `factor`
        where w > original / low, and between the two is (1 - s) f / factor + s f with
        s = (original / w - low) / (high - low).

        >>> RotaryFrequencies(theta=1e4).inverse_frequencies(4)
        (1.0, 0.01)
        """
        plain = [self.theta ** (-i / head_dim) for i in range(0, head_dim, 2)]
        return tuple(self._scaled(frequency) for frequency in plain)

    def _scaled(self, frequency: float) -> float:
        if self.scaling == "default":
            return frequency
        if self.scaling == "linear":
            return frequency / self.factor
        turns = self.original_context * frequency / (2 * math.pi)  # original / wavelength
        if turns > self.high_freq_factor:
            return frequency
        if turns < self.low_freq_factor:
            return frequency / self.factor
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """What a LLaMA-like model computes beside its shapes.

    Attributes:
        norm_eps: added to the mean square under the root of every RMS norm.
        initializer_range: standard deviation of freshly drawn matrices.
        normalizes_experts: whether the weights of the chosen experts are made to sum to 1.
        router_loss: weight of the load-balancing loss; 0 without experts.
    """

    norm_eps: float
    activation: Activation
    rope: RotaryFrequencies
    initializer_range: float
    normalizes_experts: bool = True
    router_loss: float = 0.0


def numerics(architecture: Architecture) -> Numerics:
    """Read from a model's config what it computes beside its shapes.

    Raises:
        BadInput: a family, activation, rotary scaling or kind of layer that is not known here.
    """
    problem = untrainable(architecture)
    if problem:
        raise BadInput(f"{architecture.name} cannot be trained here: {problem}")
    reader = _reader(architecture)
    activation = reader.text("hidden_act") or ""
    return Numerics(
        norm_eps=reader.number("rms_norm_eps"),
        activation=ACTIVATIONS[activation],
        rope=_rope(architecture, reader),
        initializer_range=_number(reader, "initializer_range", USUAL_INITIALIZER_RANGE),
        normalizes_experts=architecture.family != "qwen3_moe" or reader.flag("norm_topk_prob"),
        router_loss=(
            _number(reader, "router_aux_loss_coef", USUAL_ROUTER_LOSS)
            if architecture.experts
            else 0.0
        ),
    )


def untrainable(architecture: Architecture) -> str | None:
    """Why a model's arithmetic is not known here, in a clause; None where it is."""
    if architecture.family not in FAMILIES:
        return f"the trainer knows {join_or(FAMILIES)}, not {architecture.family}"
    if not architecture.config:
        return "its config.json is not at hand"
    return _unknown_layers(architecture) or _unknown_formulas(architecture)


def _unknown_layers(architecture: Architecture) -> str | None:
    for layer, _ in architecture.layer_groups:
        if (problem := _unknown_layer(layer)) is not None:
            return problem
    for one, other in pairwise(architecture.layers):
        if type(one.mlp) is not type(other.mlp) or _shapes(one) != _shapes(other):
            return "its layers are of different shapes"
    return None


def _unknown_formulas(architecture: Architecture) -> str | None:
    activation = _reader(architecture).text("hidden_act")
    if activation not in ACTIVATIONS:
        return f"its activation {activation} is not one of {', '.join(ACTIVATIONS)}"
    if architecture.rope is None or architecture.rope.rotary_dim != architecture.head_dim:
        return "only a part of each head is rotated"
    kind = architecture.rope.scaling or "default"
    if kind not in ROPE_KINDS:
        return f"its rotary scaling {kind} is not one of {', '.join(ROPE_KINDS)}"
    return None


def _unknown_layer(layer: Layer) -> str | None:
    mixer, mlp = layer.mixer, layer.mlp
    if not isinstance(mixer, Attention) or not mixer.rotary or mixer.sinks or mixer.output_gate:
        return "a layer has no plain rotary attention"
    if not isinstance(mlp, Mlp | Experts) or not mlp.gated:
        return "a layer has no gated MLP"
    if isinstance(mlp, Experts) and (mlp.shared or mlp.latent or mlp.bias or mlp.router_bias):
        return "its experts are of an unknown kind"
    if len(layer.norms) != 2 or layer.extra:
        return "a layer has other norms or weights than LLaMA's"
    return None


def _shapes(layer: Layer) -> tuple[object, ...]:
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, Attention)
    assert mlp is not None
    return (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mlp.d_ff)


def _reader(architecture: Architecture) -> ConfigReader:
    return ConfigReader(
        architecture.config, class_defaults(architecture.family), where=architecture.name
    )


def _number(reader: ConfigReader, key: str, usual: float) -> float:
    return reader.number(key) if reader.has(key) else usual


def _rope(architecture: Architecture, reader: ConfigReader) -> RotaryFrequencies:
    rope = architecture.rope
    assert rope is not None, "a rotary family has a rope"
    stated = {
        **((reader.mapping("rope_parameters") if reader.has("rope_parameters") else None) or {}),
        **((reader.mapping("rope_scaling") if reader.has("rope_scaling") else None) or {}),
    }
    if rope.scaling is None:
        return RotaryFrequencies(theta=rope.theta)
    if rope.factor is None:
        reader.refuse("rope_parameters", f"have no factor for {rope.scaling} scaling")
    if rope.scaling == "linear":
        return RotaryFrequencies(theta=rope.theta, scaling="linear", factor=rope.factor)
    inner = reader.narrowed(stated)
    return RotaryFrequencies(
        theta=rope.theta,
        scaling="llama3",
        factor=rope.factor,
        low_freq_factor=inner.number("low_freq_factor"),
        high_freq_factor=inner.number("high_freq_factor"),
        original_context=inner.size("original_max_position_embeddings"),
    )
