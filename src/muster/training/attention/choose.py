"""Which form of attention suits the machine, and why."""

from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from muster.planner.step_choices import DEFAULT_STEP, LANES, AttentionBlocks
from muster.training.attention import blockwise, reference
from muster.training.attention.context import balanced_order, gathered
from muster.training.attention.cudnn import cudnn, refusal
from muster.training.attention.signature import Attend, check_heads
from muster.training.attention.splash import splash

# Up to here all scores at once are as fast on a CPU as blocks of them, and fit in cache.
SHORT = 128


@dataclass(frozen=True, kw_only=True)
class ChosenAttention:
    """Attention for a mesh.

    Attributes:
        attend: the function, of one chip's arrays.
        name: `reference`, `blockwise`, `splash` or `cudnn`.
        why: one sentence.
        ways: over how many chips the tokens of a row are split.
    """

    attend: Attend
    name: str
    why: str
    ways: int

    def order(self, tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
        """How the host permutes every leaf of a batch, `leaf[:, order]`; None for not at all."""
        return None if self.ways == 1 else balanced_order(tokens, self.ways)


def attention_for(
    mesh: Mesh,
    *,
    sequence_length: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: jax.typing.DTypeLike,
    documents: int | None = None,
    blocks: AttentionBlocks = DEFAULT_STEP.attention_blocks,
) -> ChosenAttention:
    """Choose attention for a mesh's devices and a model's shapes.

    Args:
        mesh: with the seven axes.
        sequence_length: tokens of a row.
        query_heads: of the model, N.
        kv_heads: of the model, K.
        head_dim: of the model, H.
        dtype: that attention computes in.
        documents: most documents that a row can have, if that is known.
        blocks: of the TPU kernels, if they are used.

    Raises:
        BadInput: heads or tokens cannot be split as the mesh says.
    """
    ways = int(mesh.shape["sequence"])
    check_heads(query_heads, kv_heads, int(mesh.shape["tensor"]))
    if ways > 1:
        balanced_order(sequence_length, ways)
    chunk = sequence_length if ways == 1 else sequence_length // (2 * ways)
    in_blocks: Attend = blockwise.attend if ways == 1 else gathered(ways)
    split = "" if ways == 1 else f", keys and values gathered over {ways} sequence ways"

    def chosen(name: str, on_chip: Attend, why: str) -> ChosenAttention:
        return ChosenAttention(attend=on_chip, name=name, why=why + split, ways=ways)

    match mesh.devices.flat[0].platform:
        case "tpu" if chunk % LANES == 0:
            return chosen("splash", splash(ways, blocks=blocks), "the Pallas kernel for TPUs")
        case "tpu":
            why = f"the TPU kernel takes multiples of {LANES} tokens and chunks here have {chunk}"
            return chosen("blockwise", in_blocks, why)
        case "gpu":
            if why_not := _not_cudnn(dtype, head_dim, documents, ways):
                return chosen("blockwise", in_blocks, why_not)
            assert documents is not None
            return chosen("cudnn", cudnn(documents), "the fused kernel for NVIDIA GPUs")
        case platform if ways == 1 and sequence_length <= SHORT:
            why = f"{sequence_length} tokens are few enough for all scores at once ({platform})"
            return chosen("reference", reference.attend, why)
        case platform:
            return chosen("blockwise", in_blocks, f"no fused kernel for {platform} devices")


def _not_cudnn(
    dtype: jax.typing.DTypeLike, head_dim: int, documents: int | None, ways: int
) -> str | None:
    if ways > 1:
        return "cuDNN attention is for whole rows"
    if documents is None:
        return "cuDNN attention must know how many documents a row can have"
    return refusal(dtype, head_dim)
