"""Findings in compiled programs and in small ones written by hand; and where there are none."""

from functools import cache

import pytest

from muster.hardware import parse_cluster
from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof.findings import Finding, Seen, findings_of, refused_options, seen
from muster.proof.findings.communication import links_in_use, links_offered
from muster.proof.findings.matmuls import filled
from muster.proof.hlo import parse
from muster.proof.memory import MemoryVerdict
from muster.proof.timeline import time_program
from tests.proof.fixtures import NAMES, facts_of, program_of
from tests.proof.make_programs import LLAMA

GB = 10**9


def room(total: int, usable: int = 100 * GB) -> MemoryVerdict:
    return MemoryVerdict(
        arguments=0,
        temporaries=total,
        total=total,
        usable=usable,
        predicted_arguments=0.0,
        predicted_temporaries=0.0,
        predicted_total=0.0,
    )


@cache
def step_of(name: str, *, total: int = 2 * GB, planned: bool = True) -> Seen:
    facts = facts_of(name)
    plan = planned_run(facts["plan"], where=name)
    places = tuple(tuple(place) for place in facts["coordinates"])
    program = program_of(name)
    timeline = time_program(program, plan.cluster, mesh=facts["mesh"], coordinates=places)
    return seen(
        program,
        timeline,
        plan.cluster,
        mesh=facts["mesh"],
        places=places,
        planned=plan if planned else None,
        memory=room(total),
    )


def found(name: str, wanted: str, **how: object) -> list[Finding]:
    return [each for each in findings_of(step_of(name, **how)) if each.id == wanted]


def by_hand(
    text: str,
    hardware: str,
    *,
    mesh: dict[str, int] | None = None,
    places: tuple[tuple[int, ...], ...] = (),
    planned: PlannedRun | None = None,
) -> dict[str, Finding]:
    cluster, program = parse_cluster(hardware), parse(text)
    timeline = time_program(program, cluster, mesh=mesh, coordinates=places)
    step = seen(program, timeline, cluster, mesh=mesh or {}, places=places, planned=planned)
    return {each.id: each for each in findings_of(step)}


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_worth_a_line_and_none_costs_more_than_the_step(name: str) -> None:
    step = step_of(name)
    for each in findings_of(step):
        assert each.what
        assert each.change
        assert "\n" not in each.what + each.change
        assert each.of_memory or 0.01 <= each.cost_seconds / step.timeline.seconds <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_program_without_a_plan_has_findings_too(name: str) -> None:
    without = {each.id for each in findings_of(step_of(name, planned=False))}
    assert not without & {"spare-memory", "replicated"}
    assert without


def test_gathers_done_as_all_reduces() -> None:
    """With 64 shards of 1024 rows, 16 each, the compiler pads every shard and sums."""
    (gathers,) = found("llama-v5p-fsdp64", "gathered-by-reducing")
    # Two passes of four layers of 16.8 M bf16 weights, and the head.
    weights = 4 * 1024 * 1024 + 3 * 1024 * 4096
    assert f"{2 * (8 * weights + 32000 * 1024) / 1e6:.0f}" == "334"
    assert "14 a step over fsdp" in gathers.what
    for name in NAMES:
        if name != "llama-v5p-fsdp64":
            assert not found(name, "gathered-by-reducing"), name


def test_sums_that_are_not_scattered() -> None:
    (whole,) = found("llama-v5p-sequence", "reduced-whole")
    assert "over fsdp x sequence" in whole.what
    # 4 layers in bf16 and the table, and the head in float32.
    assert "331 MB" in whole.what
    assert not found("llama-v5p-one-chip", "reduced-whole")
    # Sums between replicas alone are all-reduces, and rightly; the table's is between shards too.
    (table,) = found("llama-v5p-hybrid", "reduced-whole")
    assert "1 a step over data x fsdp, 65.5 MB" in table.what


def test_collectives_that_stop_the_core_or_outlast_what_hides_them() -> None:
    stops = found("llama-v5p-fsdp-tensor", "synchronous-collective")
    assert any("all-gather over tensor" in each.what for each in stops)
    assert not any("permute" in each.what for each in stops)
    assert not found("llama-v5p-one-chip", "synchronous-collective")
    outlasts = found("llama-v5p-two-slices", "exposed-collective")
    assert [each.what.partition(":")[0] for each in outlasts] == ["all-reduce over slice"]
    assert not found("llama-v5p-hybrid", "exposed-collective")


def test_one_ring_where_the_torus_offers_more() -> None:
    rings = found("llama-v5p-sequence", "one-colour")
    assert any("all-gather over fsdp x sequence" in each.what for each in rings)
    assert not found("llama-v5p-fsdp64", "one-colour")  # six colors on three axes
    # Two by two chips without wrap-around: a ring uses all of their links.
    assert not found("llama-v6e-offload", "one-colour")


def test_links_of_a_chip() -> None:
    step = step_of("llama-v5p-fsdp64")
    everywhere = next(each for _, each in step.collectives if each.strategy.colors == 6)
    assert links_offered(step, everywhere) == (2, 2, 2)
    assert links_in_use(everywhere, (2, 2, 2)) == 6
    step = step_of("llama-v5p-sequence")
    ring = next(each for _, each in step.collectives if each.strategy.rings == (16,))
    assert links_offered(step, ring) == (1, 1, 1)  # no axis of 2x2x4 wraps around
    assert links_in_use(ring, (1, 1, 1)) == 2


STRIDED = """HloModule strided, is_scheduled=true, num_partitions=16
ENTRY %main (x: bf16[4096,16384]) -> bf16[4096,32768] {{
  %x = bf16[4096,16384]{{1,0}} parameter(0)
  ROOT %g = bf16[4096,32768]{{1,0}} all-gather(%x), replica_groups={groups}, dimensions={{1}}
}}
"""
PLACES = tuple((x, y, z, 0, 0) for x in range(2) for y in range(2) for z in range(4))


def test_groups_that_share_links() -> None:
    mesh = {"data": 8, "fsdp": 2}

    def findings(pairs: tuple[tuple[int, int], ...]) -> dict[str, Finding]:
        groups = [f"{{{line + a},{line + b}}}" for line in (0, 4, 8, 12) for a, b in pairs]
        text = STRIDED.format(groups="{" + ",".join(groups) + "}")
        return by_hand(text, "v5p:2x2x4", mesh=mesh, places=PLACES)

    shared = findings(((0, 2), (1, 3)))["shared-links"]
    assert "chips 2 apart" in shared.what
    assert shared.cost_seconds > 0
    assert "shared-links" not in findings(((0, 1), (2, 3)))


MATMUL = """HloModule m, is_scheduled=true
%f (a: bf16[1024,{K}], b: bf16[{K},{N}]) -> bf16[1024,{N}] {{
  %a = bf16[1024,{K}]{{1,0}} parameter(0)
  %b = bf16[{K},{N}]{{1,0}} parameter(1)
  ROOT %c = bf16[1024,{N}]{{1,0}} convolution(%a, %b), dim_labels=bf_io->bf
}}
ENTRY %main (a: bf16[1024,{K}], b: bf16[{K},{N}]) -> bf16[1024,{N}] {{
  %a = bf16[1024,{K}]{{1,0}} parameter(0)
  %b = bf16[{K},{N}]{{1,0}} parameter(1)
  ROOT %r = bf16[1024,{N}]{{1,0}} fusion(%a, %b), kind=kOutput, calls=%f, \
backend_config={{"window_config":{{"estimated_cycles":"1751000"}}}}
}}
"""


@pytest.mark.parametrize(
    ("K", "N", "hardware", "lost"),
    [
        (192, 256, "v5p:1x1x1", 0.25),  # contracted in two passes of 128, the second half empty
        (128, 96, "v5p:1x1x1", None),  # rows fill the other side
        (256, 256, "v5p:1x1x1", None),
        (128, 256, "v6e:1x1", 0.5),  # a unit of 256
    ],
)
def test_matmuls_that_do_not_fill_the_unit(
    K: int, N: int, hardware: str, lost: float | None
) -> None:
    text = MATMUL.format(K=K, N=N)
    seconds = time_program(parse(text), parse_cluster(hardware)).seconds
    all_found = by_hand(text, hardware)
    padded = all_found.get("padded-matmul")
    assert (padded is None) == (lost is None)
    if padded and lost:
        assert padded.cost_seconds == pytest.approx(lost * seconds)
        assert f"(1,024 x {K} x {N})" in padded.what


def test_a_matmul_is_as_slow_as_it_is_in_the_timeline() -> None:
    """Its bytes take longer than its FLOPs; both take far less than was guessed before."""
    text = MATMUL.format(K=128, N=128)
    seconds = time_program(parse(text), parse_cluster("v5p:1x1x1")).seconds
    at_peak = 2 * 1024 * 128 * 128 / 4.59e14
    slow = by_hand(text, "v5p:1x1x1")["slow-matmul"]
    assert slow.cost_seconds == pytest.approx(seconds - at_peak)
    assert f"at {at_peak / seconds:.0%} of the matrix unit" in slow.what
    assert "slow-matmul" not in by_hand(MATMUL.format(K=256, N=256), "v5p:1x1x1")


def test_filled() -> None:
    assert filled(4096, 8192, 28672, 256) == 1.0
    assert filled(4096, 8192, 28672 + 1, 256) == 1.0  # the rows lie along that side
    assert filled(100, 128, 100, 128) == pytest.approx(100 / 128)


def test_real_matmuls_of_whole_tiles_are_not_called_padded() -> None:
    assert not found("llama-v5p-one-chip", "padded-matmul")
    assert found("llama-7x-fsdp8", "padded-matmul")  # pieces of 128 on a unit of 256


def test_copies_of_what_was_gathered() -> None:
    (copies,) = found("llama-v5p-sequence", "relayout-after-gather")
    assert "64 rows of D" in copies.what
    assert not found("llama-v5p-one-chip", "relayout-after-gather")
    assert found("llama-v5p-one-chip", "relayout")


def test_copies_to_the_host() -> None:
    (moved,) = found("llama-v6e-offload", "host-transfer")
    assert "as planned" in moved.what
    for name in NAMES:
        if name != "llama-v6e-offload":
            assert not found(name, "host-transfer"), name


CALLBACK = """HloModule c, is_scheduled=true
ENTRY %main (x: f32[8]) -> token[] {
  %x = f32[8]{0} parameter(0)
  %t = token[] after-all()
  ROOT %o = token[] outfeed(%x, %t), outfeed_shape=f32[8]
}
"""


def test_what_the_host_is_asked_for() -> None:
    asked = by_hand(CALLBACK, "v5p:1x1x1")["host-callback"]
    assert "outfeed" in asked.what
    for name in NAMES:
        assert not found(name, "host-callback"), name


def test_recomputation_where_there_is_room() -> None:
    (spare,) = found("llama-v5p-sequence", "spare-memory")
    assert "--remat none" in spare.change
    assert "98% of HBM is free" in spare.what
    assert not found("llama-v5p-sequence", "spare-memory", total=99 * GB)
    assert not found("llama-v5p-fsdp-tensor", "spare-memory")  # it computes nothing again


TABLE = """HloModule t, is_scheduled=true, num_partitions=16
ENTRY %main (x: bf16[{rows},1024]) -> bf16[{rows},1024] {{
  ROOT %x = bf16[{rows},1024]{{1,0}} parameter(0), \
metadata={{op_name="state.params[\\'embedding\\']"}}
}}
"""


def test_weights_that_are_whole_in_the_program() -> None:
    document = dict(facts_of("llama-v5p-fsdp-tensor")["plan"])
    document["model"] = {"name": "wide", "config": LLAMA | {"vocab_size": 128000}}
    plan = planned_run(document, where="wide")
    mesh = {"fsdp": 8, "tensor": 2}
    whole = by_hand(TABLE.format(rows=128000), "v5p:2x2x4", mesh=mesh, planned=plan)["replicated"]
    assert "embedding (262 MB) is whole" in whole.what
    split = by_hand(TABLE.format(rows=16000), "v5p:2x2x4", mesh=mesh, planned=plan)
    assert "replicated" not in split
    for name in NAMES:
        assert not found(name, "replicated"), name


GATHERED = """HloModule g, is_scheduled=true, num_partitions=16
ENTRY %main (x: bf16[8000,8192]) -> bf16[128000,8192] {
  %x = bf16[8000,8192]{1,0} parameter(0)
  ROOT %g = bf16[128000,8192]{1,0} all-gather(%x), \
replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}, dimensions={0}, \
metadata={op_name="jit(f)/jvp()/embedding/all_gather"}
}
"""


def test_arrays_that_a_collective_makes_whole() -> None:
    whole = by_hand(GATHERED, "v5e:4x4", mesh={"fsdp": 16})["whole-array"]
    assert "2.10 GB" in whole.what
    assert "embedding/all_gather" in whole.what
    parts = by_hand(GATHERED, "v5e:4x4", mesh={"fsdp": 16, "tensor": 2})
    assert "whole-array" not in parts  # gathered over fsdp, still split by tensor


def test_options_that_the_compiler_refused() -> None:
    step = step_of("llama-v5p-one-chip")
    others = tuple(refused_options(["xla_tpu_x=1"]))
    assert [each.id for each in others] == ["unsupported-flag"]
    assert others[0] in findings_of(step, *others)
    assert "unsupported-flag" not in {each.id for each in findings_of(step)}
