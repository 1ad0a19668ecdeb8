"""Memory of one training step on the fullest chip of each pipeline stage, term by term.

    parameters     in the format that they are kept in, over the ways that shard them
    gradients      the same; half-precision ones beside float32 sums where the software keeps both
    optimizer      moments and master copy, over the replicas too where those share it (ZeRO-1)
    activations    what the policy keeps of each layer, for every microbatch in flight
    workspace      what one layer computes again or fetches from the host, alive while its backward
                   pass runs, and what the next one fetches
    logits         of one microbatch, with their loss and derivative, on the last stage, and the
                   head's gradient where it is summed over chunks of tokens. They are
                   gone when the first layer runs again: where a compiler lays buffers out ahead of
                   the run, what they take beyond the workspace, whose place they have
    gathered       weights of two layers, one in use and one on its way, and the derivative of one;
                   all of the stage's where the software keeps them gathered in a pipeline; once for
                   each device, where a chip's HBM is not one pool (two devices of a TPU v2, v3, 7x)
    reserve        what the runtime and its communication buffers take, and fragmentation

Stage s of p holds min(m, p - s) microbatches under 1F1B; v pieces a stage keep (p - 1) / (p v) more
on the first (Narayanan et al., arXiv:2104.04473, section 2.2; Korthikanti et al., arXiv:2205.05198,
section 4.3 and 5). The first stage has the embedding, the last one the head; where those count as
layers (`roofline.pipeline`), the first stage has a layer less.

Legend: p stages, v pieces a stage, m microbatches, V vocabulary, N heads, T sequence length.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from muster.models.architecture import Attention, LatentAttention, Layer
from muster.roofline.loss_chunks import loss_bytes, tokens_at_once
from muster.roofline.memory import MOMENTS, dtype_bytes
from muster.roofline.pipeline import dealt_layers
from muster.roofline.remat import MIXING, SavedTensor, saved_tensors
from muster.roofline.remat_policy import RematPolicy
from muster.roofline.step_time import StepModel
from muster.sharding.mesh import Layout

# A GPU's driver context, library workspaces and NCCL's buffers; taken, not fitted. What the TPU
# compiler was measured to allow already leaves out its own.
GPU_RUNTIME_BYTES = 3e9
# The caching allocator's blocks are not all of the size asked for: reserved over allocated is 1.02
# to 1.09 in SimuMax' runs. XLA lays buffers out ahead of the run.
GPU_FRAGMENTATION = 0.06
SCORE_BYTES = 5  # an unfused softmax keeps probabilities, a mask and what dropout leaves: 2 + 1 + 2
LAYERS_GATHERED = 2


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes on one chip of one stage; `host` waits outside its HBM.

    Attributes:
        stage: which stage this is, from 0.
        usable: what a program can use of the chip.
    """

    stage: int
    params: float
    gradients: float
    optimizer: float
    activations: float
    workspace: float
    logits: float
    gathered: float
    reserve: float
    host: float
    usable: float

    @property
    def total(self) -> float:
        """Bytes of HBM."""
        return self.allocated + self.reserve

    @property
    def allocated(self) -> float:
        """Bytes that the program asks for."""
        state = self.params + self.gradients + self.optimizer + self.gathered
        return state + self.activations + self.workspace + self.logits

    @property
    def fits(self) -> bool:
        """Whether the chip has as much."""
        return self.total <= self.usable


def step_memory(model: StepModel, layout: Layout, remat: RematPolicy) -> StepMemory:
    """The fullest stage's memory."""
    return max(
        (stage_memory(model, layout, remat, stage) for stage in _stages(layout.stage)),
        key=lambda memory: memory.total,
    )


def stage_memory(model: StepModel, layout: Layout, remat: RematPolicy, stage: int) -> StepMemory:
    """The memory of one chip of one stage."""
    a, w, soft = model.architecture, model.workload, model.software
    p, v, m = layout.stage, layout.virtual_stages, layout.microbatches
    first, middle, last = dealt_layers(a.num_layers, p, v, counts_ends=soft.counts_ends)
    own_layers = {0: first, p - 1: last} if p > 1 else {}
    share = own_layers.get(stage, middle) / a.num_layers
    tokens = w.batch_sequences * w.sequence_length / (layout.batch_ways * m * layout.sequence)

    # Embedding and head: both on a single stage, else one at each end (a tied one at both).
    dense, routed = model.numbers(layout.tensor, layout.expert)
    outer = model.outer_on_a_stage(layout) if stage in {0, p - 1} else 0.0
    groups = model.groups(layout)
    slices = layout.slice if layout.shards_over_slices else 1
    kept_numbers = model.held_numbers(layout, groups, layers_share=share, outer=outer)
    held = sum(kept_numbers) / slices
    optimized = model.optimized_numbers(layout, groups, kept_numbers) / slices
    half = dtype_bytes("bf16")
    optimizer = MOMENTS[w.optimizer] * dtype_bytes(w.optimizer_dtype) + 4 * w.master_copy
    if soft.deepspeed and w.reduce_dtype != "f32":
        optimizer += dtype_bytes("f32")  # the shard's gradients, once more in float32

    kept, again, host = kept_per_token(model, remat, layout.tensor)
    alive = microbatches_alive(stage, p, v, m)
    sent = 0.0
    if soft.deepspeed and p > 1:
        alive = min(float(m), alive + 1)
        sent = tokens * alive * a.d_model * half
    # The devices of a chip split its share between them, but each gathers for itself.
    devices = model.cluster.chip.devices_per_chip
    gathered = 0.0
    if groups.weights.ways * devices > 1:
        holds = soft.holds_in_pipeline and p > 1
        weights = share * a.num_layers if holds else LAYERS_GATHERED
        gradients = weights if holds else 1
        if groups.routed.ways * devices == 1:
            routed = 0.0  # every chip has its experts whole
        each = (dense + routed) / a.num_layers
        gathered = each * (weights * model.gather + gradients * model.reduce)
        gathered += outer * model.gather / (1 if a.tied_embeddings or p > 1 else 2)
        gathered *= devices
    usable = float(model.cluster.chip.hbm_bytes)
    parts = {
        "params": held * dtype_bytes(w.param_dtype),
        "gradients": held * (gradient_bytes(model) + _sums_apart(model, m)),
        "optimizer": optimized * optimizer,
        "activations": tokens * share * alive * kept + sent,
        "workspace": tokens * again,
        "logits": _logits(model, tokens, layout.tensor),
        "gathered": gathered,
    }
    if stage < p - 1:
        parts["logits"] = 0.0
    if soft.reuses_buffers:
        parts["logits"] = max(0.0, parts["logits"] - parts["workspace"])
    reserve = 0.0
    if model.cluster.chip.kind == "gpu":
        reserve = GPU_RUNTIME_BYTES + GPU_FRAGMENTATION * sum(parts.values())
    waiting = tokens * share * alive * host
    return StepMemory(stage=stage, reserve=reserve, host=waiting, usable=usable, **parts)


def _logits(model: StepModel, tokens: float, tensor: int) -> float:
    """Bytes of one microbatch's logits with their loss and derivative."""
    a, soft, chip = model.architecture, model.software, model.cluster.chip
    words = a.vocab_size / tensor
    if not soft.own_loss:
        return tokens * words * soft.logit_bytes
    devices = chip.devices_per_chip
    each, memory = tokens / devices, chip.hbm_bytes / devices
    at_once = tokens_at_once(
        math.ceil(each), d_model=a.d_model, words=math.ceil(words), memory=memory
    )
    return devices * loss_bytes(each, at_once, d_model=a.d_model, words=words)


def _sums_apart(model: StepModel, microbatches: int) -> int:
    """Bytes per parameter of sums over microbatches, where they are kept beside gradients."""
    apart = model.software.sums_apart and microbatches > 1
    return dtype_bytes("f32") if apart else 0


def gradient_bytes(model: StepModel) -> int:
    """Bytes per parameter of the gradients that are kept."""
    w, soft = model.workload, model.software
    kept = dtype_bytes(w.gradient_dtype or w.param_dtype)
    sums = dtype_bytes("f32") if soft.accumulates_in_f32 and w.reduce_dtype == "f32" else 0
    return kept + sums if soft.deepspeed else max(kept, sums)


def kept_per_token(model: StepModel, remat: RematPolicy, tensor: int) -> tuple[float, float, float]:
    """Bytes of one token: kept by all layers, computed again by the largest one, on the host."""
    found = model.kept.get((tensor, remat))
    if found is None:
        found = model.kept[tensor, remat] = _count_kept(model, remat, tensor)
    return found


def _count_kept(model: StepModel, remat: RematPolicy, tensor: int) -> tuple[float, float, float]:
    kept = again = host = 0.0
    share = remat.layers_share
    for layer, copies in model.architecture.layer_groups:
        everything = on_chip = waiting = 0.0
        for saved in _tensors(model, layer):
            ways = saved.tensor_ways(tensor, sequence_sharded=model.software.sequence_sharded)
            each = saved.bytes_per_token / ways
            everything += each
            if not remat.keeps(saved.part):
                continue
            if saved.part in remat.offloaded:
                waiting += each
            else:
                on_chip += each
        kept += copies * (share * on_chip + (1 - share) * everything)
        host += copies * share * waiting
        again = max(again, everything - on_chip + waiting)
    return kept, again, host


def _tensors(model: StepModel, layer: Layer) -> Iterator[SavedTensor]:
    """Every tensor that the backward pass of a layer reads.

    A fused activation function computes its value again: only its inputs and the product are kept,
    or not even that.
    """
    mlp_gated = getattr(layer.mlp, "gated", False)
    fused = ("activation",) if model.software.keeps_products else ("activation", "product")
    for tensor in saved_tensors(model.architecture, layer):
        if not (mlp_gated and tensor.name.endswith(fused)):
            yield tensor
    if isinstance(layer.mixer, Attention | LatentAttention) and not model.kernel.fused:
        heads, T = layer.mixer.num_heads, model.workload.sequence_length
        yield SavedTensor(
            name="scores",
            part=MIXING,
            elements=heads * T,
            bytes_per_element=SCORE_BYTES,
            most_tensor_ways=heads,
        )


def microbatches_alive(stage: int, p: int, v: int, m: int) -> float:
    """Microbatches whose activations a stage holds at once.

    Interleaved, a stage runs 2 (p - s - 1) + (v - 1) p + 1 pieces forward before its first backward
    pass, each 1 / v of its layers (Megatron-LM, `schedules.py`).

    >>> microbatches_alive(0, 4, 1, 16), microbatches_alive(3, 4, 1, 16)
    (4.0, 1.0)
    >>> microbatches_alive(0, 4, 2, 16), microbatches_alive(0, 4, 1, 2)
    (5.5, 2.0)
    """
    pieces = p - stage if v == 1 else 2 * (p - stage - 1) + (v - 1) * p + 1
    return min(float(m), pieces / v)


def _stages(p: int) -> tuple[int, ...]:
    """The stages that can be the fullest: the first, the second and the last."""
    return tuple(dict.fromkeys((0, min(1, p - 1), p - 1)))
