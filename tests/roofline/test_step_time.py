"""The predicted step: what must hold whatever the constants are."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.hardware import Cluster, Loopback, Slice, Switched, Torus, parse_cluster, slice_of
from muster.roofline.flops import training_flops
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import PARTS, RematPolicy, remat_policy
from muster.roofline.software import (
    DOT_PRODUCT,
    FLASH,
    MEGATRON,
    MEGATRON_2021,
    MEGATRON_DEEPSPEED,
    TORCH,
    UNFUSED,
    XLA,
    AttentionKernel,
    Software,
)
from muster.roofline.step_time import StepModel, StepTime, predict_step
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from tests.roofline.cases import published

LLAMA = published("Llama-3-8B")
MIXTRAL = published("Mixtral-8x7B")
CLUSTERS = ("h100:64", "a100:64", "gb200:64", "v5p:4x4x4", "v5e:8x8", "2xv6e:4x8", "cpu:64")
SOFTWARE = (XLA, MEGATRON, MEGATRON_2021, MEGATRON_DEEPSPEED, TORCH)
NONE = remat_policy(Remat.NONE)
WORK = Workload(sequence_length=4096, batch_sequences=256)
ways = st.sampled_from((1, 2, 4, 8))
policies = st.one_of(
    st.builds(remat_policy, st.sampled_from(list(Remat)), whole_layer=st.booleans()),
    st.builds(
        RematPolicy,
        name=st.just("custom"),
        rerun=st.frozensets(st.sampled_from(PARTS)),
        elementwise=st.booleans(),
        offloaded=st.frozensets(st.sampled_from((*PARTS, "input"))),
        layers_share=st.floats(0, 1),
    ),
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """64 chips, dealt to the axes one factor of two at a time."""
    sizes = dict.fromkeys(("stage", "data", "fsdp", "sequence", "expert", "tensor"), 1)
    for axis in draw(st.lists(st.sampled_from(list(sizes)), min_size=6, max_size=6)):
        sizes[axis] *= 2
    return replace(
        Layout(**sizes),  # type: ignore[arg-type]
        microbatches=draw(ways),
        virtual_stages=draw(st.sampled_from((1, 2))),
        shards_optimizer=draw(st.booleans()),
    )


def fitting(cluster: Cluster, layout: Layout) -> Layout:
    return replace(layout, slice=cluster.slices)


def step(
    name: str,
    layout: Layout,
    remat: RematPolicy = NONE,
    *,
    software: Software | None = None,
    attention: AttentionKernel = FLASH,
) -> StepTime:
    cluster = parse_cluster(name)
    return predict_step(
        LLAMA, cluster, WORK, fitting(cluster, layout), remat=remat, attention=attention,
        software=software,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CLUSTERS), layouts(), policies, st.sampled_from(SOFTWARE),
    st.sampled_from((FLASH, UNFUSED, DOT_PRODUCT)),
)  # fmt: skip
def test_terms_are_finite_and_sum_to_the_step(
    name: str, layout: Layout, remat: RematPolicy, software: Software, kernel: AttentionKernel
) -> None:
    found = step(name, layout, remat, software=software, attention=kernel)
    assert all(0 <= seconds < 1e6 for seconds in found.terms.values())
    assert sum(found.terms.values()) == pytest.approx(found.total)
    assert found.compute > 0
    assert found.hbm > 0
    traffic = found.traffic
    for kind in ("fsdp", "tensor", "sequence", "expert", "data", "dcn"):
        assert getattr(found, kind) <= getattr(traffic, kind) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CLUSTERS), layouts(), policies, st.sampled_from(SOFTWARE))
def test_doubling_every_bandwidth_never_hurts(
    name: str, layout: Layout, remat: RematPolicy, software: Software
) -> None:
    cluster = parse_cluster(name)
    layout = fitting(cluster, layout)
    fast = _with_twice_the_bandwidth(cluster)
    before = StepModel(LLAMA, cluster, WORK, software=software).step(layout, remat)
    after = StepModel(LLAMA, fast, WORK, software=software).step(layout, remat)
    assert after.total <= before.total * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(("h100:64", "v5p:4x4x4")), layouts(), policies)
def test_more_microbatches_reduce_the_bubble(name: str, layout: Layout, remat: RematPolicy) -> None:
    more = replace(layout, microbatches=2 * layout.microbatches)
    assert step(name, more, remat).bubble <= step(name, layout, remat).bubble * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from((("h100:64", TORCH), ("v5p:4x4x4", XLA), ("v5e:8x8", XLA), ("cpu:64", XLA))),
    layouts(), policies,
)  # fmt: skip
def test_axes_that_do_the_same_cost_the_same(
    on: tuple[str, Software], layout: Layout, remat: RematPolicy
) -> None:
    """Expert ways shard a dense model's weights and batch as FSDP's do; and the traffic of weights
    and gradients is the same where sequence ways shard them."""
    name, software = on
    other = replace(layout, fsdp=layout.fsdp * layout.expert, expert=1)
    one, two = (step(name, each, remat, software=software) for each in (layout, other))
    assert one.total == pytest.approx(two.total)
    turned = replace(layout, fsdp=layout.sequence, sequence=layout.fsdp)
    three = step(name, turned, remat, software=software)
    assert one.traffic.fsdp == pytest.approx(three.traffic.fsdp)
    assert one.traffic.data == pytest.approx(three.traffic.data)


@pytest.mark.parametrize("tensor", [1, 4, 8])
def test_a_turned_slice_costs_the_same(tensor: int) -> None:
    cluster = parse_cluster("v5p:4x8x16")
    turned = replace(cluster, slice=_turned(cluster.slice))
    layout = Layout(fsdp=512 // tensor, tensor=tensor)
    one, two = (StepModel(LLAMA, each, WORK).step(layout, NONE).total for each in (cluster, turned))
    assert one == pytest.approx(two)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(CLUSTERS), layouts(), st.sampled_from(list(Remat)))
def test_recomputing_costs_compute(name: str, layout: Layout, remat: Remat) -> None:
    plain = step(name, layout).compute
    again = step(name, layout, remat_policy(remat)).compute
    whole = step(name, layout, remat_policy(Remat.FULL, whole_layer=True)).compute
    assert plain <= again * (1 + 1e-9) <= whole * (1 + 1e-8)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CLUSTERS), layouts(), st.sampled_from((0.25, 1.0, 64.0)))
def test_recomputing_never_pays(name: str, layout: Layout, slower: float) -> None:
    """The same work hides traffic once: what runs again hides no more than it takes."""
    cluster = parse_cluster(name)
    if isinstance(cluster.chip.network, Torus):
        W = cluster.chip.network.axis_bidi_bandwidth / slower
        dcn = cluster.chip.network.dcn_bandwidth_per_chip / slower
        network = replace(cluster.chip.network, axis_bidi_bandwidth=W, dcn_bandwidth_per_chip=dcn)
        chip = replace(cluster.chip, network=network)
        cluster = replace(cluster, slice=replace(cluster.slice, chip=chip))
    model = StepModel(LLAMA, cluster, WORK)
    layout = fitting(cluster, layout)
    plain = model.step(layout, replace(NONE, elementwise=True)).total
    for part in ("gate", "mixing"):
        again = RematPolicy(name="custom", rerun=frozenset({part}))
        # The tensor traffic of what runs again is more traffic, not less.
        assert plain <= model.step(layout, again).total * (1 + 1e-9)


def test_compute_is_the_model_flops_at_the_fitted_rates() -> None:
    """One chip, no recomputation: between the FLOPs at the matmul's rate and a fifth more."""
    cluster = parse_cluster("v5p:1x1x1")
    model = StepModel(LLAMA, cluster, replace(WORK, batch_sequences=4))
    found = model.step(Layout(), NONE)
    flops = 4 * training_flops(LLAMA, 4096).model
    at_best = flops / model.unit.flops
    assert at_best < found.compute < 1.25 * at_best


def test_unfused_scores_move_through_hbm() -> None:
    layout = Layout(data=8, tensor=8)
    assert step("a100:64", layout, attention=UNFUSED).hbm > step("a100:64", layout).hbm


def test_blocking_software_hides_nothing() -> None:
    found = step("a100:64", Layout(data=8, tensor=8), software=MEGATRON_2021)
    assert found.tensor == pytest.approx(found.traffic.tensor)
    assert found.data == pytest.approx(found.traffic.data)


def test_interleaving_divides_the_bubble() -> None:
    layout = Layout(stage=8, data=8, microbatches=16)
    plain = step("h100:64", layout).bubble
    pieces = step("h100:64", replace(layout, virtual_stages=4)).bubble
    assert plain / 5 < pieces < plain / 2


def test_experts_exchange_tokens_where_they_are_spread() -> None:
    cluster = parse_cluster("h200:64")
    model = StepModel(MIXTRAL, cluster, WORK)
    spread = model.step(Layout(data=8, expert=8), NONE)
    assert spread.expert > 0
    assert model.step(Layout(data=64), NONE).expert == 0
    assert step("h100:64", Layout(data=8, expert=8)).expert == 0


def test_a_step_is_predicted_quickly_enough_for_a_search() -> None:
    model = StepModel(LLAMA, parse_cluster("h100:64"), WORK)
    found = model.step(Layout(data=64), NONE)
    assert model.step(Layout(data=64), NONE) == found
    assert len(model.__dict__["_layers"]) == 1  # kept


def _turned(slice_: Slice) -> Slice:
    a, b, c = slice_.shape
    return replace(slice_of(slice_.chip, slice_.shape), shape=(c, a, b), wrap=slice_.wrap)


def _with_twice_the_bandwidth(cluster: Cluster) -> Cluster:
    chip = cluster.chip
    match chip.network:
        case Torus() as torus:
            network: Torus | Switched | Loopback = replace(
                torus,
                axis_bidi_bandwidth=2 * torus.axis_bidi_bandwidth,
                link_bandwidth=2 * torus.link_bandwidth,
                dcn_bandwidth_per_chip=2 * torus.dcn_bandwidth_per_chip,
            )
        case Switched() as switched:
            network = replace(
                switched,
                scale_up_bandwidth=2 * switched.scale_up_bandwidth,
                scale_out_bandwidth=2 * switched.scale_out_bandwidth,
            )
        case Loopback() as loopback:
            network = replace(loopback, bandwidth=2 * loopback.bandwidth)
    facts = tuple(
        replace(fact, value=2 * fact.value)
        if fact.id == "host.pcie_bandwidth" and isinstance(fact.value, int | float)
        else fact
        for fact in chip.facts
    )
    fast = replace(chip, hbm_bandwidth=2 * chip.hbm_bandwidth, network=network, facts=facts)
    return replace(cluster, slice=replace(cluster.slice, chip=fast))


@pytest.mark.parametrize(
    ("name", "read"), [("Gemma-2-9B", True), ("Mixtral-8x7B", True), ("Llama-3-8B", False)]
)
def test_the_mlp_runs_again_to_its_end_where_the_backward_pass_reads_it(
    name: str, *, read: bool
) -> None:
    """Norms after blocks and routers read what the MLP gives; a residual sum does not."""
    workload = Workload(sequence_length=4096, batch_sequences=64)
    steps = StepModel(published(name), parse_cluster("v5p:4x4x4"), workload)
    whole, needed = (
        steps.layers(1.0, Layout(fsdp=64), remat_policy(Remat.FULL, whole_layer=each)).rerun
        for each in (True, False)
    )
    assert (needed == pytest.approx(whole)) == read
    assert needed <= whole * (1 + 1e-12)
