"""The search, by examples: what it comes to, what it asks, and the terms that it must not lose."""

import pytest

from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.meshes import Meshes, filled_by
from muster.planner.search import (
    WORTH_SHOWING,
    Choice,
    Minimize,
    Restrictions,
    search,
)
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.step_memory import step_memory
from muster.roofline.step_time import StepModel
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from tests.planner.plans import plan_of, rule_of
from tests.roofline.cases import dense, published

POD = "v5p:16x20x28"
WORKLOAD = Workload(sequence_length=4096, batch_sequences=1024)


def ranked(
    model: str,
    hardware: str,
    workload: Workload = WORKLOAD,
    restrictions: Restrictions | None = None,
    minimize: Minimize = "time",
) -> tuple[Choice, ...]:
    found = search(
        find_model(model), parse_cluster(hardware), workload, restrictions, minimize=minimize
    )
    return found.ranked


# The book's conclusions (Part 6) come out by themselves.


def test_70b_on_a_pod_is_compute_bound_with_a_mix_near_2048_by_4() -> None:
    plan = plan_of("llama-3-70b", POD, "4M")
    assert plan.estimate.bound == "compute"
    assert plan.layout.tensor in {2, 4, 8}
    assert plan.layout.data * plan.layout.weight_shards in {1024, 2048, 4096}


def test_fsdp_alone_is_worse() -> None:
    """It needs two ways of tensor parallelism or more: 1024 sequences are for 1024 chips."""
    mixed = ranked("llama-3-70b", POD)[0]
    alone = ranked("llama-3-70b", POD, restrictions=Restrictions(fixed={"tensor": 1}))[0]
    whole = Restrictions(fixed={"tensor": 1, "sequence": 1})
    sequences = ranked("llama-3-70b", POD, restrictions=whole)[0]
    assert alone.seconds > 1.05 * mixed.seconds
    assert sequences.layout.chips_used == 1024
    assert sequences.seconds > 4 * mixed.seconds


def test_four_pods_are_barely_compute_bound() -> None:
    plan = plan_of("llama-3-70b", f"4x{POD}", "4M")
    rule = rule_of(plan, "fsdp-tensor")
    assert rule.bound is not None
    assert 1 < rule.value / rule.bound < 1.05
    one_pod = ranked("llama-3-70b", POD)[0]
    assert one_pod.seconds / 4 < plan.estimate.step_seconds < one_pod.seconds / 2


def test_405b_on_eight_pods_is_compute_bound_at_16m_and_not_at_4m() -> None:
    small, large = (plan_of("llama-3.1-405b", f"8x{POD}", batch) for batch in ("4M", "16M"))
    assert small.estimate.bound != "compute"
    assert large.estimate.bound == "compute"
    assert large.estimate.mfu > small.estimate.mfu + 0.1


# What the search leaves out and what it asks.


@pytest.mark.parametrize(
    ("layers", "stage", "pieces"),
    [
        (126, 16, (1, 2, 4, 8)),  # with embedding and head 128
        (126, 9, (1, 2, 7)),
        (80, 8, (1, 2, 5)),
        (61, 21, (1, 3)),
        (61, 16, (1,)),
        (61, 1, (1,)),
    ],
)
def test_pieces_that_a_stage_may_hold(layers: int, stage: int, pieces: tuple[int, ...]) -> None:
    meshes = Meshes(
        architecture=dense(L=layers, D=512, F=1024, N=8, K=4, H=64, V=1000),
        cluster=parse_cluster("h100:512"),
        workload=WORKLOAD,
        restrictions=Restrictions(),
        zero_1=True,
    )
    assert meshes.pieces(Layout(stage=stage)) == pieces


def test_a_pipeline_of_layers_that_do_not_divide_is_interleaved() -> None:
    """405B as Meta ran it: 126 layers on 16 stages, with embedding and head 8 pieces each."""
    held = Restrictions(fixed={"tensor": 8, "stage": 16, "data": 128})
    workload = Workload(sequence_length=8192, batch_sequences=2048)
    best = ranked("llama-3.1-405b", "h100:16384", workload, held)[0]
    assert best.layout.virtual_stages > 1


def test_microbatches_are_of_any_number_of_sequences() -> None:
    """1,000 sequences in microbatches of 1, 2, 4, 8 ... would be a quarter slower."""
    workload = Workload(sequence_length=4096, batch_sequences=1000)
    mesh = {"data": 4, "fsdp": 1, "sequence": 8, "tensor": 2}  # 250 sequences each
    free, *powers = (
        ranked("llama-3-8b", "h100:64", workload, Restrictions(fixed={**mesh, **microbatches}))
        for microbatches in ({}, *({"microbatches": m} for m in (125, 250, 1)))
    )
    assert free[0].seconds < 0.95 * min(each[0].seconds for each in powers if each)


@pytest.mark.parametrize(("hardware", "asked"), [("h100:64", Remat.OFFLOAD), ("h100:8", None)])
def test_policies_that_gpus_do_not_run_unless_asked(hardware: str, asked: Remat | None) -> None:
    """There keeping outputs is `full` by another name, as whole layers run again."""
    found = ranked("llama-3-8b", hardware, restrictions=Restrictions(remat=asked))
    remats = {each.remat for each in found}
    assert remats == {asked} if asked else not remats & {Remat.OFFLOAD, Remat.OUTPUTS}
    assert ranked("llama-3-8b", hardware, restrictions=Restrictions(remat=Remat.OUTPUTS))


def test_only_what_is_near_the_best_is_shown_and_it_all_is_in_order() -> None:
    found = ranked("llama-3-8b", "v5p:4x4x4")
    seconds = [each.seconds for each in found]
    assert seconds == sorted(seconds)
    assert sum(each <= WORTH_SHOWING * seconds[0] for each in seconds) > 5


@pytest.mark.parametrize("hardware", ["v5p:4x4x4", "v5e:8x8", "h100:64"])
def test_fewest_chips(hardware: str) -> None:
    few, cheap, fast = (
        ranked("llama-3-8b", hardware, minimize=minimize)[0]
        for minimize in ("chips", "cost", "time")
    )
    assert few.layout.chips_used <= cheap.layout.chips_used <= fast.layout.chips_used
    assert fast.seconds <= cheap.seconds <= few.seconds
    hours = [each.seconds * each.layout.chips_used for each in (cheap, few, fast)]
    assert hours[0] == min(hours)
    one_less = few.layout.chips_used - 1
    if one_less:
        fewer = Restrictions(max_chips=one_less)
        assert ranked("llama-3-8b", hardware, restrictions=fewer) == ()


def test_where_nothing_fits_the_closest_is_kept() -> None:
    found = search(find_model("llama-3-70b"), parse_cluster("v5e:4x4"), WORKLOAD)
    assert found.ranked == ()
    assert found.closest is not None
    assert not found.closest.memory.fits
    held = search(
        find_model("llama-3-70b"),
        parse_cluster("v5e:4x4"),
        WORKLOAD,
        Restrictions(fixed={"fsdp": 16}, remat=Remat.NONE),
    ).closest
    assert held is not None
    assert held.memory.total > found.closest.memory.total


def test_a_batch_that_does_not_split_over_the_slices_names_the_nearest() -> None:
    with pytest.raises(BadInput, match="nearest batches: 1020seq and 1026seq"):
        ranked("llama-3-8b", "6xv5p:4x4x4")


@pytest.mark.parametrize(
    ("hardware", "chips", "filled"),
    [
        (POD, 8960, [POD]),
        (POD, 8192, ["v5p:16x16x32"]),
        (POD, 1024, ["v5p:8x8x16", "v5p:4x16x16"]),
        (POD, 7, []),
        ("4xv5p:4x4x8", 64, ["4xv5p:4x4x4"]),
        ("v5p:4x4x16", 256, ["v5p:4x4x16"]),  # the shape that was given, not the most cube-like
        ("v5p:4x8x16", 256, ["v5p:4x8x8", "v5p:4x4x16"]),
        ("v5p:8x8x8", 256, ["v5p:4x8x8"]),
        ("v5e-256", 128, ["v5e:8x16"]),
        ("v5e-256", 96, []),
        ("h100:64", 24, ["h100:24"]),
        ("h100:64", 4, ["h100:4"]),
        ("h100:64", 12, []),
    ],
)
def test_what_a_layout_fills(hardware: str, chips: int, filled: list[str]) -> None:
    assert [each.name for each in filled_by(parse_cluster(hardware), chips)] == filled


# Terms that must be counted.


def test_gradients_between_slices_take_as_long_as_their_bytes() -> None:
    """8 FSDP ways of two slices: 2 x 2 bytes x 1/2 of each eighth, over 6.25 GB/s a chip."""
    model = StepModel(published("Llama-3-8B"), parse_cluster("2xv4:2x2x2"), WORKLOAD)
    step = model.step(Layout(slice=2, fsdp=8, microbatches=8), remat_policy(Remat.FULL))
    reached = model.cluster.chip.fact("network.dcn_bandwidth_per_chip")
    assert reached is not None
    assert isinstance(reached.value, int | float)
    by_hand = 2 * 8_030_261_248 / 8 / (reached.value * model.fitted.far)
    assert step.traffic.dcn == pytest.approx(by_hand, rel=1e-6)
    alone = model.step(Layout(fsdp=8, microbatches=8), remat_policy(Remat.FULL))
    assert alone.traffic.dcn == alone.dcn == 0


def test_weights_in_use_and_on_their_way_take_memory() -> None:
    """Two layers' weights and one's gradients, and half of the embedding and head, in bf16."""
    model = StepModel(published("Llama-3-8B"), parse_cluster("v5p:4x4x4"), WORKLOAD)
    memory = step_memory(model, Layout(fsdp=64), remat_policy(Remat.MINIMAL))
    layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 2 * 4096
    embedding = 128256 * 4096
    assert memory.gathered == pytest.approx(2 * (3 * layer + embedding), rel=1e-4)
    alone = step_memory(model, Layout(data=64), remat_policy(Remat.MINIMAL))
    assert alone.gathered == 0
    assert memory.total == pytest.approx(
        memory.params
        + memory.gradients
        + memory.optimizer
        + memory.activations
        + memory.workspace
        + memory.logits
        + memory.gathered
        + memory.reserve
    )


def test_what_a_layer_computes_again_takes_memory() -> None:
    """A layer's forward pass in one piece: all that its backward pass reads but its input."""
    model = StepModel(published("Llama-3-8B"), parse_cluster("v5p:4x4x4"), WORKLOAD)
    none, full = (
        step_memory(model, Layout(fsdp=64), remat_policy(remat))
        for remat in (Remat.NONE, Remat.FULL)
    )
    assert none.workspace == 0
    one_layer = (none.activations - full.activations) / 32
    assert full.workspace == pytest.approx(one_layer, rel=1e-6)
    assert full.workspace > 1e9


def test_an_assumed_best_layout_is_stable_under_restrictions_that_it_meets() -> None:
    best = ranked("llama-3-70b", POD)[0]
    fixed = {axis: getattr(best.layout, axis) for axis in ("data", "fsdp", "sequence", "tensor")}
    again = ranked("llama-3-70b", POD, restrictions=Restrictions(fixed=fixed, remat=best.remat))
    assert [each.layout for each in again] == [best.layout]
    assert again[0].seconds == pytest.approx(best.seconds)


def test_outputs_kept_on_gpus_run_again_whole() -> None:
    """Keeping outputs is `full` by another name there, so it computes as much again."""
    outputs, full = (
        plan_of("llama-3-8b", "h100:64", "4M", restrictions=Restrictions(remat=remat))
        for remat in (Remat.OUTPUTS, Remat.FULL)
    )
    assert outputs.estimate.flops == full.estimate.flops
    assert outputs.choice.seconds == full.choice.seconds
    tpu = plan_of("llama-3-8b", "v5p:4x4x4", "4M", restrictions=Restrictions(remat=Remat.OUTPUTS))
    assert tpu.estimate.flops.recompute < outputs.estimate.flops.recompute
