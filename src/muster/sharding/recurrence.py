"""Weights of the recurrent mixers: Mamba, Mamba-2, gated delta nets, short convolutions.

Checkpoints fuse the input projections of a mixer into one matrix; here each part is a weight of its
own, because parts differ in what a mesh axis may split (heads, but not the B and C that heads
share). Convolutions are vectors: they cost no matmul, see `Mamba2.conv_channels`.
"""

from collections.abc import Iterator

from muster.models.architecture import (
    RMS_NORM,
    GatedDeltaNet,
    LightningAttention,
    Mamba1,
    Mamba2,
    ShortConv,
)
from muster.sharding.weight import Weight, matmul, norm_vectors, vector

NAME = "layers.recurrence"

type Part = tuple[str, tuple[int, ...], tuple[str, ...]]


def mamba2(D: int, m: Mamba2) -> Iterator[Weight]:
    """Mamba-2 (arXiv:2405.21060, section 7); Hugging Face's Mamba2Mixer and its kin."""
    heads = ((m.num_heads, m.head_dim), ("state_heads", "state_head_dim"))
    states = ((m.num_groups, m.state_size), ("state_groups", "state"))
    parts: list[Part] = [
        ("gate", *heads),
        ("input", *heads),
        ("write", *states),
        ("read", *states),
        ("step", (m.num_heads,), ("state_heads",)),
    ]
    yield from _projections(D, parts, bias=m.bias)
    yield from _convolution(m.conv_channels, m.conv_width, bias=m.conv_bias)
    for scalar in ("step_bias", "decay", "skip"):
        yield vector(f"{NAME}.{scalar}", "recurrence", (m.num_heads,), ("state_heads",))
    if m.norm:
        yield from norm_vectors(f"{NAME}.norm", RMS_NORM, *heads)
    yield from _output(D, *heads, bias=m.output_bias)


def mamba1(D: int, m: Mamba1) -> Iterator[Weight]:
    """Mamba (arXiv:2312.00752, section 3); Hugging Face's JambaMambaMixer."""
    inner = ((m.inner,), ("state_inner",))
    yield from _projections(D, [("gate", *inner), ("input", *inner)], bias=m.bias)
    yield from _convolution(m.conv_channels, m.conv_width, bias=m.conv_bias)
    small = {"step_down": m.step_rank, "write": m.state_size, "read": m.state_size}
    for part, size in small.items():
        yield matmul(f"{NAME}.{part}", "recurrence", (m.inner, size), ("state_inner", part))
        if m.norms:
            yield from norm_vectors(f"{NAME}.{part}.norm", RMS_NORM, (size,), (part,))
    yield matmul(f"{NAME}.step", "recurrence", (m.step_rank, m.inner), ("step_down", "state_inner"))
    yield vector(f"{NAME}.step.bias", "recurrence", *inner)
    yield vector(f"{NAME}.decay", "recurrence", (m.inner, m.state_size), ("state_inner", "state"))
    yield vector(f"{NAME}.skip", "recurrence", *inner)
    yield from _output(D, *inner, bias=m.bias)


def delta_net(D: int, g: GatedDeltaNet) -> Iterator[Weight]:
    """The gated delta rule (arXiv:2412.06464); Hugging Face's Qwen3NextGatedDeltaNet."""
    keys = ((g.num_key_heads, g.key_head_dim), ("key_heads", "key_head_dim"))
    values = ((g.num_value_heads, g.value_head_dim), ("state_heads", "state_head_dim"))
    a_head = ((g.num_value_heads,), ("state_heads",))
    parts: list[Part] = [
        ("query", *keys),
        ("key", *keys),
        ("value", *values),
        ("write_strength", *a_head),
    ]
    step = values if g.channel_decay else a_head
    if g.rank is None:
        parts += [("gate", *values), ("step", *step)]
    yield from _projections(D, parts, bias=False)
    if g.rank is not None:
        for part, (shape, dims) in {"gate": values, "step": step}.items():
            yield matmul(
                f"{NAME}.{part}_down", "recurrence", (D, g.rank), ("d_model", "state_rank")
            )
            yield matmul(
                f"{NAME}.{part}_up",
                "recurrence",
                (g.rank, *shape),
                ("state_rank", *dims),
            )
    yield from _convolution(g.conv_channels, g.conv_width, bias=False)
    yield vector(f"{NAME}.step_bias", "recurrence", *step)
    yield vector(f"{NAME}.decay", "recurrence", *a_head)
    yield from norm_vectors(f"{NAME}.norm", RMS_NORM, (g.value_head_dim,), ("state_head_dim",))
    yield from _output(D, *values, bias=False)


def lightning(D: int, m: LightningAttention) -> Iterator[Weight]:
    """Lightning attention (arXiv:2501.08313); Hugging Face's MiniMaxLightningAttention."""
    heads = ((m.num_heads, m.head_dim), ("state_heads", "state_head_dim"))
    parts: list[Part] = [(part, *heads) for part in ("query", "key", "value", "gate")]
    yield from _projections(D, parts, bias=False)
    yield from norm_vectors(f"{NAME}.norm", RMS_NORM, *heads)
    yield from _output(D, *heads, bias=False)


def short_conv(D: int, c: ShortConv) -> Iterator[Weight]:
    """LFM2's double-gated convolution; Hugging Face's Lfm2ShortConv."""
    inner = ((D,), ("conv_channels",))
    parts: list[Part] = [("write_gate", *inner), ("read_gate", *inner), ("input", *inner)]
    yield from _projections(D, parts, bias=c.bias)
    yield from _convolution(D, c.conv_width, bias=c.bias)
    yield from _output(D, *inner, bias=c.bias)


def _projections(D: int, parts: list[Part], *, bias: bool) -> Iterator[Weight]:
    for part, shape, dims in parts:
        yield matmul(f"{NAME}.{part}", "recurrence", (D, *shape), ("d_model", *dims))
        if bias:
            yield vector(f"{NAME}.{part}.bias", "recurrence", shape, dims)


def _convolution(channels: int, width: int, *, bias: bool) -> Iterator[Weight]:
    yield vector(f"{NAME}.conv", "recurrence", (channels, width), ("conv_channels", "conv_width"))
    if bias:
        yield vector(f"{NAME}.conv.bias", "recurrence", (channels,), ("conv_channels",))


def _output(
    D: int,
    shape: tuple[int, ...],
    dims: tuple[str, ...],
    *,
    bias: bool,
) -> Iterator[Weight]:
    yield matmul(f"{NAME}.output", "recurrence", (*shape, D), (*dims, "d_model"))
    if bias:
        yield vector(f"{NAME}.output.bias", "recurrence", (D,), ("d_model",))
