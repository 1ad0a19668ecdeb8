"""Steps of real programs add up; small ones by hand."""

import gzip
import json
from functools import cache
from typing import Any

import pytest

from muster.errors import BadInput
from muster.hardware import chip_by_name, parse_cluster
from muster.proof.costs import COLLECTIVE, COMPUTE, FROM_HOST, GUESSED, KERNEL, MAIN, TO_HOST
from muster.proof.hlo import compute_cycles, parse
from muster.proof.timeline import Timeline, time_program
from muster.proof.trace import trace_bytes, trace_document
from muster.roofline.host_link import host_bandwidth
from tests.proof.fixtures import NAMES, facts_of, program_of

V5P = parse_cluster("v5p:2x2x1")
CLOCK = 1.751e9  # of a v5p, as src/muster/hardware/data/chips/v5p.toml has it


@cache
def timed(name: str) -> Timeline:
    facts = facts_of(name)
    return time_program(
        program_of(name),
        parse_cluster(facts["plan"]["cluster"]["slice"]),
        mesh=facts["mesh"],
        coordinates=[tuple(place) for place in facts["coordinates"]],
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_what_the_main_core_does_and_waits_for(name: str) -> None:
    step = timed(name)
    assert step.seconds == pytest.approx(sum(cost.exposed for cost in step.costs), rel=1e-6)
    assert 0 <= step.exposed_communication <= step.communication * (1 + 1e-9)
    assert all(cost.exposed <= cost.seconds + 1e-12 for cost in step.costs)


@pytest.mark.parametrize("name", NAMES)
def test_compute_is_the_compilers_cycles_or_less(name: str) -> None:
    step = timed(name)
    clock = parse_cluster(facts_of(name)["plan"]["cluster"]["slice"]).chip.fact("core.clock_hz")
    assert clock is not None
    assert isinstance(clock.value, float)
    estimated = compute_cycles(program_of(name)).compute / clock.value
    assert 0.5 * estimated < step.of_kind(COMPUTE) <= estimated * (1 + 1e-9)


def test_a_wait_is_for_what_began_before_the_loop() -> None:
    step = time_program(parse(AROUND), V5P)
    costs = {cost.name: cost for cost in step.costs}
    assert costs["before"].count == costs["inside"].count == 1
    assert costs["before"].exposed == pytest.approx(costs["before"].seconds)
    assert costs["inside"].exposed == pytest.approx(costs["inside"].seconds)


@pytest.mark.parametrize("name", NAMES)
def test_no_track_does_two_things_at_once(name: str) -> None:
    step = timed(name)
    for track in {span.track for span in step.spans}:
        ordered = sorted(
            (span for span in step.spans if span.track == track), key=lambda span: span.begin
        )
        end = 0.0
        for span in ordered:
            assert span.begin >= end - 1e-9, (track, span)
            end = span.begin + span.seconds
        assert end <= step.seconds + 1e-9


def test_the_main_core_is_never_idle() -> None:
    step = timed("llama-v5p-fsdp-tensor")
    busy = sum(span.seconds for span in step.spans if span.track == MAIN)
    assert busy == pytest.approx(step.seconds, rel=1e-6)


def test_costliest_names_the_model() -> None:
    top = timed("llama-v5p-one-chip").costliest(10)
    assert len(top) == 10
    assert [cost.exposed for cost in top] == sorted((c.exposed for c in top), reverse=True)
    labels = {cost.label for cost in top}
    assert "forward layers btd,df->btf/dot_general (gated_mlp)" in labels
    assert "backward layers btd,df->btf/dot_general (gated_mlp)" in labels


def test_two_slices_talk_over_the_data_centre_network() -> None:
    step = timed("llama-v5p-two-slices")
    between = [
        cost for cost in step.costs if cost.collective and cost.collective.axes == ("slice",)
    ]
    assert sum(cost.count for cost in between) == 35
    assert all("all-reduce between slices" in cost.label for cost in between)
    assert sum(cost.exposed for cost in between) < sum(cost.seconds for cost in between)


def test_matmuls_hide_the_gathers_that_run_beside_them() -> None:
    step = timed("llama-v5e-fsdp16")
    beside = [c for c in step.costs if c.collective and c.collective.fused]
    assert sum(cost.count for cost in beside) == 12
    assert sum(c.exposed for c in beside) < 0.6 * sum(c.seconds for c in beside)


def test_mfu() -> None:
    step = Timeline(seconds=2.0, costs=(), spans=(), notes=())
    assert step.mfu(50.0, 100.0) == 0.25


CYCLES = '{"window_config":{"estimated_cycles":"1751000"}}'  # a millisecond
HAND = f"""HloModule hand, is_scheduled=true, num_partitions=4
%f (x: bf16[1024]) -> bf16[1024] {{
  %x = bf16[1024]{{0}} parameter(0)
  ROOT %n = bf16[1024]{{0}} negate(%x)
}}
ENTRY %main (x: bf16[4096,16384]) -> bf16[1024] {{
  %x = bf16[4096,16384]{{1,0}} parameter(0)
  %s = (bf16[4096,16384]{{1,0}}, bf16[4096,65536]{{1,0}}) all-gather-start(%x), \
replica_groups={{{{0,1,2,3}}}}, dimensions={{1}}
  %a = bf16[1024]{{0}} fusion(%x), kind=kLoop, calls=%f, backend_config={CYCLES}
  %d = bf16[4096,65536]{{1,0}} all-gather-done(%s)
  ROOT %b = bf16[1024]{{0}} fusion(%d), kind=kLoop, calls=%f, backend_config={CYCLES}
}}
"""


def grouped(kind: str, groups: str) -> Timeline:
    """A step of one collective; of four devices."""
    text = f"""HloModule g, is_scheduled=true, num_partitions=4
ENTRY %main (x: f32[4096]) -> f32[4096] {{
  %x = f32[4096]{{0}} parameter(0)
  ROOT %g = f32[4096]{{0}} {kind}(%x), {groups}
}}
"""
    return time_program(parse(text), V5P)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("all-reduce", "replica_groups=[4,1]<=[4]"),
        ("all-reduce", "replica_groups=mesh['a'=1,'b'=4] {'a'}"),
        ("collective-permute", "source_target_pairs={}"),
        ("collective-permute", "source_target_pairs={{0,0},{1,1}}"),
    ],
)
def test_devices_by_themselves_exchange_nothing(kind: str, groups: str) -> None:
    step = grouped(kind, groups)
    assert step.seconds == 0
    assert step.notes == ()


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("all-reduce", "replica_groups=garbage"),
        ("all-reduce", "replica_groups=[1,4]<=[5]"),
        ("all-reduce", "replica_groups={{0,1,2,3},{4,5,6,7}}"),
        ("all-reduce", "replica_groups=[1,1000000000]<=[1000000000]"),
        ("collective-permute", "source_target_pairs={{0,1,2}}"),
    ],
)
def test_groups_that_cannot_be_are_of_all_devices_and_named(kind: str, groups: str) -> None:
    step = grouped(kind, groups)
    assert step.seconds > 0
    (note,) = step.notes
    assert note.startswith("not understood: the groups ")
    assert groups.partition("=")[2] in note


def test_a_gather_is_waited_for_only_beyond_what_runs_beside_it() -> None:
    step = time_program(parse(HAND), V5P, mesh={"fsdp": 4})
    gather = step.communication
    assert gather > 1e-3
    assert step.seconds == pytest.approx(1e-3 + gather, rel=1e-3)
    assert step.exposed_communication == pytest.approx(gather - 1e-3)
    (cost,) = [cost for cost in step.costs if cost.kind == COLLECTIVE]
    assert cost.collective is not None
    assert cost.collective.array_bytes == 4096 * 65536 * 2


def test_a_program_without_a_schedule_is_refused() -> None:
    with pytest.raises(BadInput, match="not scheduled"):
        time_program(parse(HAND.replace(", is_scheduled=true", "")), V5P)


def test_gpus_are_refused() -> None:
    with pytest.raises(BadInput, match="TPUs"):
        time_program(parse(HAND), parse_cluster("h100:8"))


AROUND = """HloModule a, is_scheduled=true, num_partitions=4
%body (p: bf16[1024,1024]) -> bf16[1024,1024] {
  %p = bf16[1024,1024]{1,0} parameter(0)
  %inside = bf16[1024,1024]{1,0} collective-permute-start(%p), \
source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT %got = bf16[1024,1024]{1,0} collective-permute-done(%inside)
}
ENTRY %main (x: bf16[1024,1024]) -> bf16[1024,1024] {
  %x = bf16[1024,1024]{1,0} parameter(0)
  %before = bf16[1024,1024]{1,0} collective-permute-start(%x), \
source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  %called = bf16[1024,1024]{1,0} call(%x), to_apply=%body
  ROOT %end = bf16[1024,1024]{1,0} collective-permute-done(%before)
}
"""


def test_what_another_core_exchanges_begins_as_it_is_fed() -> None:
    step = time_program(parse(ELSEWHERE), V5P)
    costs = {cost.name: cost for cost in step.costs}
    both = costs["first"].seconds + costs["second"].seconds
    assert costs["work"].seconds > costs["first"].seconds > 0
    assert costs["first"].exposed == 0
    assert costs["second"].exposed == pytest.approx(costs["second"].seconds)
    assert step.seconds == pytest.approx(costs["work"].seconds + costs["second"].seconds)
    assert step.communication == pytest.approx(both)


ELSEWHERE = """HloModule e, is_scheduled=true, num_partitions=4
%gather (p: bf16[256,1024]) -> bf16[1024,1024] {
  %p = bf16[256,1024]{1,0} parameter(0)
  ROOT %g = bf16[1024,1024]{1,0} all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}
}, execution_thread="sparsecore"
ENTRY %main (x: bf16[256,1024]) -> bf16[1024,1024] {
  %x = bf16[256,1024]{1,0} parameter(0)
  %first = ((), (), (s32[8192])) custom-call-start(), custom_call_target="TODO(b/1)", \
called_computations={%gather}
  %fed = ((bf16[256,1024]), bf16[1024,1024], (s32[8192])) custom-call-update(%first, %x)
  %second = ((), (), (s32[8192])) custom-call-start(), custom_call_target="TODO(b/1)", \
called_computations={%gather}
  %work = bf16[1024,1024]{1,0} fusion(%x), kind=kOutput, calls=%none, \
backend_config={"window_config":{"estimated_cycles":"6000000"}}
  %got = bf16[1024,1024]{1,0} custom-call-done(%fed)
  %fed2 = ((bf16[256,1024]), bf16[1024,1024], (s32[8192])) custom-call-update(%second, %x)
  ROOT %end = bf16[1024,1024]{1,0} custom-call-done(%fed2)
}
"""


@pytest.mark.parametrize(("core", "at_once"), [("0", False), ("1", True)])
def test_a_sparse_core_runs_one_collective_at_a_time(core: str, at_once: bool) -> None:
    """Over different axes of the torus, so that only the core can be what they wait for."""
    program = parse(QUEUED.replace("SECOND", core))
    step = time_program(program, V5P, mesh={"fsdp": 2, "tensor": 2})
    one = next(cost.seconds for cost in step.costs if cost.name == "first")
    assert step.seconds == pytest.approx(one if at_once else 2 * one)


QUEUED = """HloModule q, is_scheduled=true, num_partitions=4
%inner (p: bf16[512,1024]) -> bf16[1024,1024] {
  %p = bf16[512,1024]{1,0} parameter(0)
  ROOT %g = bf16[1024,1024]{1,0} all-gather(%p), replica_groups={{0,1},{2,3}}, dimensions={0}
}, execution_thread="sparsecore"
%outer (p: bf16[512,1024]) -> bf16[1024,1024] {
  %p = bf16[512,1024]{1,0} parameter(0)
  ROOT %g = bf16[1024,1024]{1,0} all-gather(%p), replica_groups={{0,2},{1,3}}, dimensions={0}
}, execution_thread="sparsecore"
ENTRY %main (x: bf16[512,1024]) -> bf16[1024,1024] {
  %x = bf16[512,1024]{1,0} parameter(0)
  %first = ((), (), (s32[1])) call-start(), async_execution_thread="sparsecore", \
to_apply=%inner, backend_config={"sparse_core_config":{"core_ids":["0"]}}
  %fed = ((bf16[512,1024]), bf16[1024,1024]) call-update(%first, %x)
  %second = ((), (), (s32[1])) call-start(), async_execution_thread="sparsecore", \
to_apply=%outer, backend_config={"sparse_core_config":{"core_ids":["SECOND"]}}
  %fed2 = ((bf16[512,1024]), bf16[1024,1024]) call-update(%second, %x)
  %got = bf16[1024,1024]{1,0} call-done(%fed)
  ROOT %end = bf16[1024,1024]{1,0} call-done(%fed2)
}
"""


MATMULS = """HloModule m, is_scheduled=true
ENTRY %main (a: bf16[8192,8192]) -> bf16[8192,8192] {
  %a = bf16[8192,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %guessed = bf16[8192,8192]{1,0:T(8,128)(2,1)} dot(%a, %a), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, backend_config={"window_config":{"estimated_cycles":"6000000"}}
  %believed = bf16[8192,8192]{1,0:T(8,128)(2,1)} dot(%a, %guessed), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, backend_config={"window_config":{"estimated_cycles":"4300000"}}
  %i = s8[8192,8192]{1,0:T(8,128)(4,1)} convert(%a)
  %integers = s32[8192,8192]{1,0:T(8,128)} dot(%i, %i), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, backend_config={"window_config":{"estimated_cycles":"6000000"}}
  %e = f8e4m3fn[8192,8192]{1,0:T(8,128)(4,1)} convert(%a)
  %narrow = bf16[8192,8192]{1,0:T(8,128)(2,1)} dot(%e, %e), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, backend_config={"window_config":{"estimated_cycles":"6000000"}}
  ROOT %copy = bf16[8192,8192]{0,1:T(8,128)(2,1)} copy(%believed), \
backend_config={"window_config":{"estimated_cycles":"9000000"}}
}
"""


def test_a_schedule_is_quicker_than_what_was_guessed_before_it() -> None:
    seconds = {c.name: c.seconds for c in time_program(parse(MATMULS), V5P).costs}
    assert seconds["guessed"] == pytest.approx(2 * 8192**3 / (0.95 * 4.59e14), rel=1e-3)
    assert seconds["believed"] == pytest.approx(4.3e6 / CLOCK, rel=1e-3)
    assert seconds["integers"] == pytest.approx(2 * 8192**3 / (0.95 * 9.18e14), rel=1e-3)
    assert seconds["narrow"] == pytest.approx(6e6 / CLOCK, rel=1e-3)
    assert seconds["copy"] == pytest.approx(2 * 8192**2 * 2 / (0.55 * 2.765e12), rel=1e-3)


MOVED = """HloModule m, is_scheduled=true
%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%x, %y)
}
ENTRY %main (a: bf16[4,4,32,8192,128], b: bf16[8,8192,4096]) -> bf16[6,8192,4096] {
  %a = bf16[4,4,32,8192,128]{4,3,2,1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[8,8192,4096]{2,1,0:T(8,128)(2,1)} parameter(1)
  %zero = bf16[]{:T(256)} constant(0)
  %reduce = bf16[4,32,8192,128]{3,2,1,0:T(8,128)(2,1)} reduce(%a, %zero), dimensions={0}, \
to_apply=%add, backend_config={"window_config":{"estimated_cycles":"16976904"}}
  %zeros = bf16[16,2,4096,64,128]{4,3,2,1,0:T(8,128)(2,1)} broadcast(%zero), dimensions={}, \
backend_config={"window_config":{"estimated_cycles":"24215616"}}
  %pad = bf16[14,8192,4096]{2,1,0:T(8,128)(2,1)} pad(%b, %zero), padding=3_3x0_0x0_0, \
backend_config={"window_config":{"estimated_cycles":"11524118"}}
  ROOT %slice = bf16[6,8192,4096]{2,1,0:T(8,128)(2,1)} slice(%b), \
slice={[0:6], [0:8192], [0:4096]}, backend_config={"window_config":{"estimated_cycles":"4970592"}}
}
"""


def test_what_only_moves_numbers_takes_what_its_bytes_take() -> None:
    """Estimates of v6e's compiler, and what it then scheduled: bundles of a round times rounds."""
    seconds = {
        c.name: c.seconds for c in time_program(parse(MOVED), parse_cluster("v6e:1x1")).costs
    }
    of_b = 8 * 8192 * 4096 * 2
    moved = {
        "reduce": 5 * 4 * 32 * 8192 * 128 * 2,
        "zeros": 16 * 2 * 4096 * 64 * 128 * 2,
        "pad": of_b + 14 * of_b // 8,
        "slice": 2 * of_b * 6 // 8,
    }
    scheduled = {"reduce": 211 * 4096, "zeros": 91 * 8192, "pad": 122 * 3648, "slice": 89 * 1536}
    for name, each in moved.items():
        assert seconds[name] == pytest.approx(each / (0.55 * 1.64e12), rel=0.01), name
        assert scheduled[name] / 1.75e9 < seconds[name], name


def test_features_count_as_whole_tiles() -> None:
    heads = """HloModule h, is_scheduled=true
ENTRY %main (a: bf16[8192,8192]) -> bf16[8192,128] {
  %a = bf16[8192,8192]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %w = bf16[8192,128]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %onto_a_head = bf16[8192,128]{1,0:T(8,128)(2,1)} convolution(%a, %w), \
dim_labels=bf_io->bf, backend_config={"window_config":{"estimated_cycles":"6000000"}}
}
"""
    (cost,) = time_program(parse(heads), parse_cluster("v6e-4")).costs
    tile = 256
    assert cost.seconds == pytest.approx(2 * 8192**2 * tile / (0.95 * 9.18e14), rel=1e-3)


KERNELS = """HloModule k, is_scheduled=true
ENTRY %main (q: bf16[2,8,1024,128]) -> bf16[2,8,1024,128] {
  %q = bf16[2,8,1024,128]{3,2,1,0} parameter(0)
  %k = bf16[2,2,1024,128]{3,2,1,0} parameter(1)
  %splash_fwd.1 = bf16[2,8,1024,128]{3,2,1,0} custom-call(%q, %k, %k), \
custom_call_target="tpu_custom_call", frontend_attributes={m={"x":"{\\"block_q\\": 512}"}}
  %mine = bf16[2,8,1024,128]{3,2,1,0} custom-call(%q), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"459000000000","bytes_accessed":"8"}}}
  ROOT %other = bf16[2,8,1024,128]{3,2,1,0} custom-call(%mine), custom_call_target="tpu_custom_call"
}
"""


def test_kernels() -> None:
    step = time_program(parse(KERNELS), V5P)
    seconds = {cost.name: cost.seconds for cost in step.costs}
    assert {cost.kind for cost in step.costs} == {KERNEL}
    # Two matmuls of 2 B N T S H, three of the four blocks of a causal sequence of two.
    ideal = 2 * 2 * 2 * 8 * 1024 * 1024 * 128 * 0.75 / 4.59e14
    softmax = 12 * 2 * 8 * 1024 * 1024 * 0.75 / (2 * 4 * 1024 * CLOCK)
    assert seconds["splash_fwd.1"] == pytest.approx(ideal + softmax, rel=1e-3)
    assert 1e-3 <= seconds["mine"] < 2e-3  # 459 GFLOP at 459 TFLOP/s, at what a matmul reaches
    array = 2 * 8 * 1024 * 128 * 2
    assert seconds["other"] == pytest.approx(2 * array / 2.765e12, rel=0.01)
    assert [note.partition(":")[0] for note in step.notes] == [
        "kernel splash_fwd",
        "kernel mine",
        "kernel other",
    ]


def test_a_head_of_128_fills_half_of_a_matrix_unit_of_256() -> None:
    kernels = KERNELS.replace("splash_fwd", "splash_dq")
    seconds = {
        name: time_program(parse(kernels), parse_cluster(name)).costs[0].seconds
        for name in ("v5p:2x2x1", "v6e-4")
    }
    flops = 3 * 2 * 2 * 8 * 1024 * 1024 * 128 * 0.75
    ops = 5 * 2 * 8 * 1024 * 1024 * 0.75
    assert seconds["v5p:2x2x1"] == pytest.approx(
        flops / 4.59e14 + ops / (2 * 4096 * CLOCK), rel=1e-3
    )
    assert seconds["v6e-4"] == pytest.approx(2 * flops / 9.18e14 + ops / (4096 * CLOCK), rel=1e-3)


def test_what_has_no_estimate_is_timed_from_its_bytes_and_said() -> None:
    step = timed("llama-v5p-one-chip")
    assert step.of_kind(GUESSED) < 0.02 * step.seconds
    assert "dynamic-update-slice without an estimate: timed from its bytes" in step.notes


def test_a_trace_opens_in_perfetto() -> None:
    step = timed("llama-v5p-fsdp-tensor")
    content = trace_bytes(step, name="tiny on v5p:2x2x4", compressed=True)
    document: dict[str, Any] = json.loads(gzip.decompress(content))
    events = document["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(step.spans)
    last = max(event["ts"] + event["dur"] for event in complete)
    assert last == pytest.approx(step.seconds * 1e6, rel=1e-6)
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads[0] == MAIN
    assert {"ICI x up", "ICI y down", "ICI z up"} <= set(threads.values())
    assert all(event["tid"] in threads for event in complete)


def test_loops_are_unrolled_a_few_times_in_the_trace() -> None:
    step = timed("llama-v5p-one-chip")
    document = trace_document(step, name="x")
    repeated = [e for e in document["traceEvents"] if "times more" in e["name"]]
    assert [event["name"] for event in repeated] == ["1 times more of the same"] * len(repeated)
    assert repeated


def test_offloaded_activations_cross_the_hosts_link_once_each_way() -> None:
    """Of each of four layers: Q, K, V, attention's output, its sums, the residual, gate and up."""
    step = timed("llama-v6e-offload")
    T, D, F, heads, layers = 1024, 1024, 4096, 8, 4
    kept = 2 * T * (5 * D + 2 * F) + 4 * heads * T
    link = host_bandwidth(chip_by_name("v6e"))
    for track in (TO_HOST, FROM_HOST):
        copied = sum(span.seconds for span in step.spans if span.track == track)
        assert copied == pytest.approx(layers * kept / link, rel=1e-6)
