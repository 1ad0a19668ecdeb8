"""Collectives that a layout causes, against hand counts."""

from dataclasses import replace

import pytest

from muster.hardware import parse_cluster
from muster.models.architecture import Architecture, Experts, Mlp
from muster.roofline.pipeline import dealt_layers, legal_pieces
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.software import MEGATRON, MEGATRON_2021, MEGATRON_DEEPSPEED, TORCH, XLA
from muster.roofline.step_time import StepModel, StepTime
from muster.roofline.traffic import (
    end_passes,
    sequence_seconds,
    splits_sequences,
    tensor_passes,
)
from muster.roofline.workload import Workload, usual_formats
from muster.sharding.mesh import Layout
from tests.roofline.cases import MIXERS, decoder, mixture, published

NONE = remat_policy(Remat.NONE)
FULL = remat_policy(Remat.FULL)
OFFLOAD = remat_policy(Remat.OFFLOAD)
LLAMA, LLAMA_70B = published("Llama-3-8B"), published("Llama-3-70B")
MIXTRAL = published("Mixtral-8x7B")
WORK = Workload(sequence_length=4096, batch_sequences=256)


def model_of(architecture: Architecture, name: str, work: Workload = WORK) -> StepModel:
    return StepModel(architecture, parse_cluster(name), work)


def test_experts_that_sequence_ways_shard_are_gathered() -> None:
    """64 sequence ways on 64 v5p chips: every chip gathers every expert, 2 B twice and 2 B back."""
    model = model_of(MIXTRAL, "v5p:4x4x4", replace(WORK, batch_sequences=1024))
    found = model.step(Layout(sequence=64, microbatches=1024), NONE)
    layers = sum(model.numbers(1, 1))
    assert layers > 45e9
    W = 3 * 180e9 * model.fitted.near
    floor = 1024 * 6 * layers * 63 / 64 / W
    assert found.traffic.fsdp == pytest.approx(floor, rel=0.05)
    assert found.traffic.fsdp > floor
    # Sequence and fsdp ways do the same to the weights of experts that expert ways deal out.
    by_sequence, by_fsdp = (
        model.step(each, NONE).traffic.fsdp
        for each in (Layout(expert=8, sequence=8), Layout(expert=8, fsdp=8))
    )
    assert by_sequence == pytest.approx(by_fsdp)


def test_embedding_and_head_are_gathered_once_and_scattered_once() -> None:
    """LLaMA-3 8B, 1.05e9 parameters outside its layers: 2 B there and 2 B back."""
    model = model_of(LLAMA, "v5p:8x8x8", replace(WORK, batch_sequences=512))
    found = model.step(Layout(fsdp=512), NONE).traffic.fsdp
    dense, _ = model.numbers(1, 1)
    outer = 2 * 128_256 * 4096 + 4096
    W = 3 * 180e9 * model.fitted.near
    assert found == pytest.approx((6 * dense + 4 * outer) * 511 / 512 / W, rel=0.02)
    tied = StepModel(replace(LLAMA, tied_embeddings=True), model.cluster, model.workload)
    table = 128_256 * 4096 + 4096
    less = (4 * outer - 6 * table) * 511 / 512 / W
    assert found - tied.step(Layout(fsdp=512), NONE).traffic.fsdp == pytest.approx(less, rel=0.02)


def test_experts_split_by_tensor_ways_gather_each_tokens_copies() -> None:
    """k D numbers a token where it was dispatched, D where every chip has all experts."""
    layers = mixture(L=4, D=64, F=128, N=8, K=8, H=8, V=100, E=8, k=3)
    shapes = StepModel(layers, parse_cluster("h100:8"), WORK).shapes
    here, away = (
        tensor_passes(shapes, NONE, sequence_sharded=True, dispatched=each)
        for each in (False, True)
    )
    assert (here.times, here.vectors) == (4 * 10, 4 * 10)
    assert (away.times, away.vectors) == (4 * 10, 4 * (5 + 3 * 5))
    experts = layers.layers[0].mlp
    assert isinstance(experts, Experts)
    shared = replace(layers.layers[0], mlp=replace(experts, shared=Mlp(d_ff=64), latent=32))
    shapes = StepModel(decoder((shared,) * 4, D=64, V=100), parse_cluster("h100:8"), WORK).shapes
    away = tensor_passes(shapes, NONE, sequence_sharded=True, dispatched=True)
    assert away.vectors == 4 * (5 + (3 / 2 + 1) * 5)  # latents of half the width; the shared expert


def test_dispatched_tokens_cost_a_step_their_tensor_traffic() -> None:
    model = model_of(MIXTRAL, "h200:64")
    spread = model.step(Layout(data=4, expert=4, tensor=4), NONE).traffic.tensor
    whole = model.step(Layout(data=16, tensor=4), NONE).traffic.tensor
    assert 1.4 < spread / whole < 1.6  # (5 + 2 * 5) / (5 + 5), and the ends


@pytest.mark.parametrize(("tensor", "heads"), [(1, 8), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_keys_and_values_are_copied_beyond_the_kv_heads(tensor: int, heads: int) -> None:
    """LLaMA-3 70B: 8 KV heads of 128; more tensor ways than that send whole heads all the same."""
    model = model_of(LLAMA_70B, "v5p:8x8x16")
    group = model.groups(Layout(sequence=8, tensor=tensor)).sequence
    tokens = 4096.0
    found = sequence_seconds(model.shapes, group, tokens, tensor)
    bytes_ = 2 * heads * 128 * 8 * tokens * 2  # keys and values, of 8 parts, 2 B each
    expected = 3 * 80 * (bytes_ * group.seconds_per_byte + group.latency_seconds)
    assert found == pytest.approx(expected)


def test_vocabulary_parallel_ends_gather_and_scatter() -> None:
    model = model_of(LLAMA, "h100:8", replace(WORK, batch_sequences=8))
    layout = Layout(tensor=8)
    groups = model.groups(layout)
    tokens = 8 * 4096.0
    vector = groups.tensor.all_gather(tokens * 4096 * 2)
    everything = model.step(layout, NONE).traffic.tensor
    layers, *_ = model.inner_traffic(layout, tokens, NONE)
    assert everything - layers == pytest.approx(5 * vector)
    assert end_passes(sequence_sharded=True) == 5
    old = StepModel(LLAMA, model.cluster, model.workload, software=MEGATRON_2021)
    layers, *_ = old.inner_traffic(layout, tokens, NONE)
    assert old.step(layout, NONE).traffic.tensor - layers == pytest.approx(4 * vector)


def test_both_ends_of_a_pipeline_sum_the_gradient_of_a_tied_table() -> None:
    tied = replace(LLAMA, tied_embeddings=True)
    layout = Layout(stage=4, data=1, microbatches=8)
    alone, joined = (
        StepModel(each, parse_cluster("h100:64"), WORK).step(layout, NONE) for each in (LLAMA, tied)
    )
    assert alone.traffic.data == 0
    table = (128_256 + 1) * 4096
    groups = StepModel(tied, parse_cluster("h100:64"), WORK).groups(layout)
    assert joined.traffic.data == pytest.approx(table * 2 * groups.next_stage_per_byte)
    assert joined.data == joined.traffic.data  # nothing hides it
    replicas = replace(layout, data=16)
    one, two = (
        StepModel(each, parse_cluster("h100:64"), WORK).outer_on_a_stage(replicas)
        for each in (LLAMA, tied)
    )
    assert two == table  # the whole table at each end ...
    assert one == pytest.approx(table, rel=1e-5)  # ... of which an untied model has one at either


def test_traffic_between_slices_hides_behind_what_is_left() -> None:
    """The backward pass is one: what hides traffic inside a slice does not hide DCN's too."""
    cluster = parse_cluster("2xv5p:4x4x4")
    few = replace(WORK, batch_sequences=128, sequence_length=128)
    found = StepModel(LLAMA, cluster, few).step(Layout(slice=2, data=64), NONE)
    hidden = found.traffic.data - found.data + found.traffic.dcn - found.dcn
    window = StepModel(LLAMA, cluster, few).layers(1.0, Layout(slice=2, data=64), NONE).backward
    assert 0 < hidden <= window * (1 + 1e-9)
    assert found.traffic.data - found.data > 0.5 * window


def seconds(name: str, layout: Layout, remat: Remat) -> StepTime:
    return model_of(LLAMA_70B, name).step(layout, remat_policy(remat))


def test_offloading_over_pcie_is_not_free() -> None:
    """Nothing is taken to hide it on H100; a Grace's memory is near enough, as runs show."""
    layout = Layout(fsdp=64, microbatches=4)
    plain, offloaded = (seconds("h100:64", layout, each) for each in (Remat.NONE, Remat.OFFLOAD))
    layers = model_of(LLAMA_70B, "h100:64").layers(1.0, layout, OFFLOAD)
    both_ways = 4 * 2 * layers.offloaded_bytes / 63e9
    assert offloaded.traffic.host == pytest.approx(both_ways)
    assert offloaded.host >= both_ways
    assert offloaded.total > plain.total + 0.9 * both_ways
    grace = seconds("gb200:64", layout, Remat.OFFLOAD)
    assert grace.traffic.host == pytest.approx(both_ways * 63e9 / 205e9)
    assert grace.host < 0.1 * grace.traffic.host


def test_layers_that_do_not_divide_can_be_interleaved() -> None:
    """LLaMA-3 405B: 126 layers, embedding and head are 128 on 16 stages of 8 (arXiv:2407.21783)."""
    model = StepModel(
        published("Llama-3.1-405B"),
        parse_cluster("h100:16384"),
        usual_formats(Workload(sequence_length=8192, batch_sequences=2048), MEGATRON),
    )
    layout = Layout(stage=16, data=128, tensor=8, microbatches=16, shards_optimizer=True)
    assert legal_pieces(126, 16, most=8) == (1, 2, 4, 8)
    plain, pieces = (model.step(replace(layout, virtual_stages=each), FULL) for each in (1, 8))
    assert pieces.bubble < 0.25 * plain.bubble
    assert pieces.total < 0.75 * plain.total
    assert dealt_layers(126, 16, 8, counts_ends=True) == (7, 8, 7)
    assert dealt_layers(82, 12, counts_ends=MEGATRON_DEEPSPEED.counts_ends) == (7, 7, 6)


def test_pieces_are_equal() -> None:
    for L in range(1, 130):
        for p in range(1, 17):
            for v in legal_pieces(L, p, most=8):
                assert v == 1 or L % (p * v) == 0 or (L + 2) % (p * v) == 0


def test_sequence_ways_split_attention_alone() -> None:
    assert splits_sequences(LLAMA)
    assert splits_sequences(published("DeepSeek-V3"))
    for name in ("Qwen3-Next-80B-A3B", "Qwen3.5-397B-A17B"):
        assert not splits_sequences(published(name))
    layer = LLAMA.layers[0]
    for mixer in MIXERS:
        recurrent = type(mixer).__name__ in {"Mamba2", "GatedDeltaNet"}
        mixed = decoder((layer, replace(layer, mixer=mixer)), D=64, V=100)
        assert splits_sequences(mixed) != recurrent


def test_formats_that_people_train_in() -> None:
    megatron = usual_formats(WORK, MEGATRON)
    assert (megatron.param_dtype, megatron.master_copy) == ("bf16", True)
    assert (megatron.gradient_dtype, megatron.reduce_dtype) == ("f32", "f32")
    assert usual_formats(WORK, TORCH).param_dtype == "f32"
    assert usual_formats(WORK, XLA) == WORK
