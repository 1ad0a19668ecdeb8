"""Memory of a step, against runs that publish theirs and against what must hold."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.hardware import parse_cluster, slice_of
from muster.models.architecture import Architecture, Attention, Experts, Layer, Mlp
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.software import (
    FLASH,
    MEGATRON,
    MEGATRON_DEEPSPEED,
    MUSTER,
    TORCH_COMPILED,
    UNFUSED,
    XLA,
    Software,
)
from muster.roofline.step_memory import (
    gradient_bytes,
    kept_per_token,
    microbatches_alive,
    stage_memory,
    step_memory,
)
from muster.roofline.step_time import StepModel
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.sharding.weights import weight_table
from muster.units import GIB
from tests.roofline.cases import published

LLAMA = published("Llama-3-8B")
FULL, NONE = remat_policy(Remat.FULL, whole_layer=True), remat_policy(Remat.NONE)
MIXED = Workload(
    sequence_length=4096, batch_sequences=16, param_dtype="bf16", reduce_dtype="f32",
    master_copy=True,
)  # fmt: skip


def cut_405b(layers: int) -> Architecture:
    """SimuMax's layer-reduced 405B, with 16 KV heads."""
    layer = Layer(
        mixer=Attention(num_heads=128, num_kv_heads=16, head_dim=128), mlp=Mlp(d_ff=53248)
    )
    return Architecture(
        name="405B-L4", family="llama", d_model=16384, vocab_size=128_256,
        layers=(layer,) * layers, tied_embeddings=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "measured_gb"),
    [
        (Layout(stage=2, data=4, microbatches=4, shards_optimizer=True), 93.50),
        (Layout(data=4, tensor=2, microbatches=4, shards_optimizer=True), 87.61),
        (Layout(data=2, tensor=4, microbatches=4, shards_optimizer=True), 56.79),
        (Layout(tensor=8, microbatches=4, shards_optimizer=True), 41.41),
    ],
)
def test_simumax_allocates_so_much(layout: Layout, measured_gb: float) -> None:
    """SimuMax' published runs on 8 B200, micro-batch 1: largest allocation of any rank."""
    sequences = 4 * layout.data
    work = replace(MIXED, batch_sequences=sequences)
    model = StepModel(cut_405b(4), parse_cluster("b200:8"), work, software=MEGATRON)
    assert step_memory(model, layout, NONE).allocated / 1e9 == pytest.approx(measured_gb, rel=0.1)


@pytest.mark.parametrize(("micro", "measured_gb"), [(1, 29), (2, 37), (4, 49), (8, 69)])
def test_bloom_takes_so_much(micro: int, measured_gb: float) -> None:
    """BLOOM's prototype of 181B: 12 stages, 8 tensor ways, 4 replicas, fp16, ZeRO-1."""
    layer = Layer(
        mixer=Attention(num_heads=64, num_kv_heads=64, head_dim=224),
        mlp=Mlp(d_ff=57344, gated=False),
    )
    bloom = Architecture(
        name="bloom-181b", family="bloom", d_model=14336, vocab_size=250_880,
        layers=(layer,) * 72, tied_embeddings=True,
    )  # fmt: skip
    work = Workload(
        sequence_length=2048, batch_sequences=2048, param_dtype="f16", reduce_dtype="f16",
        master_copy=True,
    )  # fmt: skip
    model = StepModel(
        bloom, parse_cluster("a100:384"), work, attention=UNFUSED, software=MEGATRON_DEEPSPEED
    )
    layout = Layout(stage=12, data=4, tensor=8, microbatches=512 // micro, shards_optimizer=True)
    assert step_memory(model, layout, FULL).total / 1e9 == pytest.approx(measured_gb, rel=0.1)


def test_torchtitan_takes_so_much() -> None:
    """LLaMA-3.1 8B on 8 H100, FSDP, one sequence of 32,768 each, full recomputation: 90.1 GB."""
    work = Workload(sequence_length=32768, batch_sequences=8, param_dtype="f32", reduce_dtype="f32")
    model = StepModel(
        published("Llama-3.1-8B"), parse_cluster("h100:8"), work, software=TORCH_COMPILED
    )
    assert step_memory(model, Layout(fsdp=8), FULL).total / 1e9 == pytest.approx(90.1, rel=0.1)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2)), st.sampled_from(list(Remat)),
)  # fmt: skip
def test_terms_are_positive_and_sum_up(
    tensor: int, stage: int, fsdp: int, pieces: int, remat: Remat
) -> None:
    layout = Layout(tensor=tensor, stage=stage, fsdp=fsdp, microbatches=8, virtual_stages=pieces)
    model = StepModel(LLAMA, parse_cluster(f"h100:{layout.chips_used}"), MIXED)
    policy = remat_policy(remat)
    fullest = step_memory(model, layout, policy)
    every = [stage_memory(model, layout, policy, each) for each in range(stage)]
    assert fullest.total == pytest.approx(max(each.total for each in every))
    for each in every:
        state = each.params + each.gradients + each.optimizer
        rest = each.activations + each.workspace + each.logits + each.gathered
        assert each.total == pytest.approx(state + rest + each.reserve)
        assert min(each.params, each.activations, each.host + each.activations) >= 0


@pytest.mark.parametrize("remat", [Remat.OUTPUTS, Remat.MINIMAL])
def test_recomputing_more_keeps_less(remat: Remat) -> None:
    model = StepModel(LLAMA, parse_cluster("v5p:2x2x1"), MIXED, software=XLA)
    kept = [
        step_memory(model, Layout(fsdp=4), remat_policy(each)).activations
        for each in (Remat.FULL, remat, Remat.NONE)
    ]
    assert kept == sorted(kept)


def test_more_hbm_never_hurts() -> None:
    cluster = parse_cluster("v5p:2x2x1")
    larger = replace(cluster.chip, hbm_bytes=2 * cluster.chip.hbm_bytes)
    roomy = replace(cluster, slice=replace(cluster.slice, chip=larger))
    small, large = (
        step_memory(StepModel(LLAMA, each, MIXED), Layout(fsdp=4), NONE)
        for each in (cluster, roomy)
    )
    # The loss takes more tokens at once, for less than a tenth of what there is more.
    assert small.total <= large.total
    assert large.total - small.total < 0.1 * (large.usable - small.usable)
    assert large.fits >= small.fits


def test_a_shared_out_optimizer_takes_its_share() -> None:
    model = StepModel(LLAMA, parse_cluster("h100:8"), MIXED)
    alone, shared = (
        step_memory(model, Layout(data=8, shards_optimizer=each), NONE).optimizer
        for each in (False, True)
    )
    assert alone == pytest.approx(8 * shared)


def test_an_unfused_kernel_keeps_its_scores() -> None:
    fused, unfused = (
        step_memory(
            StepModel(LLAMA, parse_cluster("a100:8"), MIXED, attention=kernel),
            Layout(data=8),
            NONE,
        ).activations
        for kernel in (FLASH, UNFUSED)
    )
    scores = 5 * 32 * 4096 * 2 * 4096 * 32  # bytes x heads x T x tokens x layers
    assert unfused - fused == pytest.approx(scores)


def test_gradients_are_summed_in_float32_where_they_travel_so() -> None:
    cluster = parse_cluster("h100:8")
    assert gradient_bytes(StepModel(LLAMA, cluster, MIXED, software=MEGATRON)) == 4
    assert gradient_bytes(StepModel(LLAMA, cluster, MIXED, software=MEGATRON_DEEPSPEED)) == 6


def test_an_interleaved_pipeline_holds_more_at_its_start() -> None:
    assert microbatches_alive(0, 8, 1, 64) == 8
    assert microbatches_alive(0, 8, 8, 64) == 8 + 7 / 8
    assert microbatches_alive(7, 8, 1, 64) == 1
    assert microbatches_alive(0, 8, 1, 4) == 4


def test_full_recomputation_keeps_no_expert_outputs() -> None:
    """As `saved_tensors` has it: DeepSeek-V3 keeps its layers' inputs, 61 x 7168 x 2 B a token."""
    deepseek = published("DeepSeek-V3")
    workload = Workload(sequence_length=4096, batch_sequences=512)
    model = StepModel(deepseek, parse_cluster("v5p:8x8x8"), workload)
    kept, again, host = kept_per_token(model, remat_policy(Remat.FULL), 1)
    assert kept == 61 * 7168 * 2
    assert again > 0
    assert host == 0


def test_norms_after_blocks_do_not_hide_what_a_policy_keeps() -> None:
    """Gemma-2's layers, bytes a token: `outputs` keeps two D-vectors a layer, `full` one."""
    gemma = published("Gemma-2-9B")
    L, D = gemma.num_layers, gemma.d_model
    workload = Workload(sequence_length=4096, batch_sequences=512)
    model = StepModel(gemma, parse_cluster("v5p:8x8x8"), workload)
    kept = {each: kept_per_token(model, remat_policy(each), 1)[0] for each in Remat}
    assert kept[Remat.FULL] == 2 * L * D
    assert kept[Remat.OUTPUTS] == 2 * kept[Remat.FULL]
    attention, mlp = gemma.layers[0].mixer, gemma.layers[0].mlp
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    heads = (2 * attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
    matmuls = 3 * D + heads + 2 * mlp.d_ff  # input, both blocks' results, what is between
    assert kept[Remat.MINIMAL] == L * (2 * matmuls + 4 * attention.num_heads)


def test_a_chip_of_two_devices_is_no_single_pool() -> None:
    """Each half of a v7x has half of the HBM (94.74 GiB by the compiler) and gathers for itself.

    And each has the head's gradient whole.
    """
    model = StepModel(LLAMA, parse_cluster("v7x:4x4x4"), MIXED)
    chip = model.cluster.chip
    assert chip.devices_per_chip == 2
    assert chip.hbm_bytes / 2 == pytest.approx(94.74 * GIB, rel=1e-4)
    half = replace(chip, devices_per_chip=1)
    one_pool = StepModel(LLAMA, replace(model.cluster, slice=slice_of(half, (4, 4, 4))), MIXED)
    layout = Layout(fsdp=16, tensor=4)
    halves, pool = (step_memory(each, layout, NONE) for each in (model, one_pool))
    assert halves.gathered == 2 * pool.gathered > 0
    assert pool.logits < halves.logits < 2 * pool.logits
    own = [each.total - each.gathered - each.logits for each in (halves, pool)]
    assert own[0] == pytest.approx(own[1])
    # What replicas do not shard, the two devices of a chip do.
    assert step_memory(model, Layout(data=16, tensor=4), NONE).gathered == halves.gathered


MODELS = ("Llama-3-8B", "Mixtral-8x7B", "Gemma-2-9B", "Llama-3.1-405B", "Qwen3-30B-A3B")
SOFTWARE = (XLA, MEGATRON, MEGATRON_DEEPSPEED, TORCH_COMPILED)
two_ways = st.sampled_from((1, 2, 4))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(MODELS), st.sampled_from(SOFTWARE), two_ways, two_ways, two_ways, two_ways,
    two_ways, st.sampled_from((1, 2, 3, 4)), st.booleans(), st.booleans(),
)  # fmt: skip
def test_all_chips_together_hold_the_whole_state(
    name: str, software: Software, data: int, fsdp: int, sequence: int, expert: int, tensor: int,
    stage: int, shards_optimizer: bool, over_slices: bool,
) -> None:  # fmt: skip
    """No layout makes parameters, gradients or moments vanish: what is split is split once."""
    model_ = published(name)
    if not any(isinstance(layer.mlp, Experts) for layer, _ in model_.layer_groups):
        expert = 1
    layout = Layout(
        slice=2, data=data, fsdp=fsdp, sequence=sequence, expert=expert, tensor=tensor,
        stage=stage, microbatches=8, shards_optimizer=shards_optimizer,
        shards_over_slices=over_slices,
    )  # fmt: skip
    cluster = parse_cluster("2xv5p:16x16x16" if software is XLA else "h100:8192")
    model = StepModel(model_, cluster, MIXED, software=software)
    stages = [stage_memory(model, layout, NONE, each) for each in range(stage)]
    chips = layout.chips_used // stage
    numbers = sum(w.count for w in weight_table(model_) if w.trainable and w.component != "tower")
    assert chips * sum(each.params for each in stages) >= 2 * numbers * (1 - 1e-9)
    assert chips * sum(each.gradients for each in stages) >= 2 * numbers * (1 - 1e-9)
    assert chips * sum(each.optimizer for each in stages) >= 12 * numbers * (1 - 1e-9)


def test_zero_1_deals_the_state_of_experts_to_their_replicas_alone() -> None:
    """DeepSeek-V3 on 256 H100: 8 stages, 4 x 8 ways of data, of which 8 deal out the experts."""
    deepseek = published("DeepSeek-V3")
    model = StepModel(deepseek, parse_cluster("h100:256"), replace(MIXED, batch_sequences=1024))
    layout = Layout(stage=8, data=4, expert=8, microbatches=8, shards_optimizer=True)
    whole = 12 * sum(w.count for w in weight_table(deepseek) if w.trainable)
    each = step_memory(model, layout, NONE).optimizer
    assert each >= whole / 256
    assert each < 1.2 * whole / 256


def test_xla_keeps_logits_in_half_precision_and_reuses_their_place() -> None:
    """LLaMA-3.1 70B on 256 v6e, five sequences of 8,192 a chip: MaxText ran it, and 6 bytes a logit
    would be 32 of the chip's 33.5 GB. What a layer computes again takes the logits' place."""
    work = Workload(sequence_length=8192, batch_sequences=1280, optimizer_dtype="bf16")
    model = StepModel(published("Llama-3.1-70B"), parse_cluster("v6e:16x16"), work, software=XLA)
    logits = 2 * 5 * 8192 * 128_256
    none, full = (
        step_memory(model, Layout(fsdp=256), remat_policy(each))
        for each in (Remat.NONE, Remat.FULL)
    )
    assert (none.workspace, none.logits) == (0, logits)
    assert full.workspace > logits
    assert full.logits == 0


def test_a_loss_in_chunks_keeps_a_chunk_and_the_heads_gradient() -> None:
    work = Workload(sequence_length=8192, batch_sequences=64)
    cluster = parse_cluster("v5p:2x2x1")
    whole, chunks = (
        step_memory(StepModel(LLAMA, cluster, work, software=each), Layout(fsdp=4), NONE).logits
        for each in (XLA, MUSTER)
    )
    assert whole == 2 * 16 * 8192 * 128_256
    at_once = int(cluster.chip.hbm_bytes / 32 / (4 * LLAMA.vocab_size))
    assert chunks == (6 * at_once + 4 * LLAMA.d_model) * LLAMA.vocab_size


def test_embedding_and_head_count_as_layers_where_the_software_says_so() -> None:
    """405B on 8 stages: 15 layers and the embedding at the start, or 16 and the embedding."""
    model_ = published("Llama-3.1-405B")
    layout = Layout(stage=8, tensor=8, data=16, microbatches=64)
    first = {
        counts: stage_memory(
            StepModel(
                model_, parse_cluster("h100:1024"), replace(MIXED, batch_sequences=1024),
                software=replace(MEGATRON, counts_ends=counts),
            ),
            layout, FULL, 0,
        )
        for counts in (True, False)
    }  # fmt: skip
    assert first[True].activations == pytest.approx(15 / 16 * first[False].activations)
    assert first[True].params < first[False].params


def test_sums_over_microbatches_take_four_bytes_a_parameter_of_their_own() -> None:
    """LLaMA-3 405B on 512 v5p in 4 microbatches, as compiled: the sums alone are 3.2 GB a chip."""
    work = Workload(sequence_length=4096, batch_sequences=512)
    model = StepModel(published("Llama-3.1-405B"), parse_cluster("v5p:8x8x8"), work)
    one, four = (
        step_memory(model, Layout(fsdp=64, tensor=8, microbatches=m), NONE).gradients
        for m in (1, 4)
    )
    assert four / one == pytest.approx((2 + 4) / 2)
    assert four - one == pytest.approx(4 * 405.85e9 / 512, rel=1e-3)
