"""Programs as no compiler writes them, and some that one could: an answer or one line, soon."""

import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from muster.cli.inspect import inspect
from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.proof.hlo import parse
from muster.proof.timeline import time_program
from tests.proof.fixtures import text_of

ENTRY = """HloModule odd, is_scheduled=true
ENTRY %main (a: bf16[1024,1024]) -> bf16[1024,1024] {{
  %a = bf16[1024,1024]{{1,0:T(8,128)(2,1)}} parameter(0)
{lines}
}}
"""
KERNEL = 'custom_call_target="tpu_custom_call"'
V6E = parse_cluster("v6e:1x1")


def cycles(estimate: str) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{estimate}"}}}}'


def stated(flops: str) -> str:
    config = f'{{"custom_call_config":{{"cost_estimate":{{"flops":{flops}}}}}}}'
    return f"{KERNEL}, backend_config={config}"


def looked_at(tmp_path: Path, text: str, *options: str, on: str = "v6e:1x1") -> Result:
    file = tmp_path / "odd.hlo.txt"
    file.write_text(text, "utf-8")
    return CliRunner().invoke(inspect, [str(file), "--on", on, *options], standalone_mode=False)


def program(*lines: str) -> str:
    *others, last = (f"  {line}" for line in lines)
    return ENTRY.format(lines="\n".join([*others, last.replace("  %", "  ROOT %", 1)]))


ARRAY = "bf16[1024,1024]{1,0:T(8,128)(2,1)}"
SLOWLY = [
    "%r = bf16[1024,1024]{1,0} all-reduce(%a), replica_groups={{0}}, to_apply=%s",
    "%b = bf16[1024,1024]{1,0} bitcast(%b, %r)",
]


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize(
    "lines",
    [
        (f"%e = {ARRAY} exponential(%a), {cycles('0')}",),
        (f"%k = () custom-call(), {KERNEL}",),
        (f"%gmm = () custom-call(%a, %a), {KERNEL}",),
        *((f"%k = {ARRAY} custom-call(%a), {stated(n)}",) for n in ("NaN", "1e400", "-5", '"x"')),
        (f"%e = {ARRAY} exponential(%a), {cycles('-5')}",),
        SLOWLY,
    ],
    ids=lambda lines: lines[-1][:40] if not isinstance(lines, str) else lines,
)
def test_it_is_read_all_the_same(
    tmp_path: Path, lines: tuple[str, ...], options: tuple[str, ...]
) -> None:
    done = looked_at(tmp_path, program(*lines), *options)
    assert done.exception is None
    assert done.exit_code == 0
    if options:
        assert 0 <= json.loads(done.output)["step_seconds"] < 1
    else:
        assert re.search(r"^step \d", done.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "which"),
    [
        ("%c = () copy-start(%a)", "copy-start c"),
        (f"%s = ({ARRAY}, (), u32[]) slice-start(%a), slice={{[0:1024]}}", "slice-start s"),
        (f"%d = {ARRAY} dot(), lhs_contracting_dims={{1}}, {cycles('5')}", "dot d"),
    ],
)
def test_an_operation_that_cannot_be_is_named(tmp_path: Path, line: str, which: str) -> None:
    done = looked_at(tmp_path, program(line))
    assert isinstance(done.exception, BadInput)
    assert f"{which} is not as the TPU compiler writes it" in str(done.exception)


def bitcasts(joined: int) -> str:
    """Names of one result that are joined again and again: twice as many ways with each."""
    lines = ["%r0 = bf16[1024,1024]{1,0} all-reduce(%a), replica_groups={{0}}, to_apply=%s"]
    for number in range(joined):
        lines += [
            f"%x{number} = bf16[1024,1024]{{1,0}} bitcast(%r{number})",
            f"%y{number} = bf16[1024,1024]{{1,0}} bitcast(%r{number})",
            f"%r{number + 1} = bf16[1024,1024]{{1,0}} bitcast(%x{number}, %y{number})",
        ]
    return program(*lines)


def labelled(attributes: str) -> str:
    return f"%c = bf16[1024,1024]{{1,0}} convolution(%a, %a), {attributes}, {cycles('9')}"


ENDLESS = 'ENTRY %m (a: s32[]) -> s32[] {\n  %a = s32[] parameter(0), metadata={op_name="'


@pytest.mark.parametrize(
    "text",
    [
        bitcasts(40),
        program(labelled(f"dim_labels={'_' * 20_000}")),
        program(labelled(f"window={{{'a' * 40_000}}}, dim_labels=bf_io->bf")),
        "HloModule m, is_scheduled=true\n" + ENDLESS + '\\"' * 60_000,
        "HloModule m, is_scheduled=true\n" + ENDLESS + '"}, x={' + "/* " * 60_000,
        "HloModule m, is_scheduled=true\n" + (ENDLESS.partition("\n")[2] + "\n") * 8_000,
        program(*(f"%c{n} = {ARRAY} convolution(%a, %a), dim_labels=b0f_0io->b0f" for n in "abc")),
    ],
    ids=["bitcasts", "labels", "window", "string", "comments", "open strings", "odd labels"],
)
def test_nothing_takes_for_ever(tmp_path: Path, text: str) -> None:
    """Each took minutes, or would never have ended."""
    done = looked_at(tmp_path, text)
    assert done.exception is None or isinstance(done.exception, BadInput)


def test_a_long_queue_of_copies_is_read() -> None:
    lines = []
    for number in range(6_000):
        start = f"({ARRAY.replace(')}', ')S(1)}')}, {ARRAY}, u32[])"
        lines.append(f"%s{number} = {start} copy-start(%a)")
        lines.append(f"%d{number} = {ARRAY} copy-done(%s{number})")
    assert time_program(parse(program(*lines)), V6E).seconds > 0


def test_what_moves_within_a_chips_own_memory_takes_what_was_guessed() -> None:
    inside = ARRAY.replace(")}", ")S(1)}")
    lines = (
        f"%v = {inside} copy(%a), {cycles('3000')}",
        f"%w = {inside} reverse(%v), dimensions={{0}}, {cycles('2000')}",
        f"%h = {ARRAY.replace(')}', ')S(5)}')} copy(%a), {cycles('100000')}",
    )
    seconds = {cost.name: cost.seconds for cost in time_program(parse(program(*lines)), V6E).costs}
    clock = V6E.chip.fact("core.clock_hz")
    assert clock is not None
    assert isinstance(clock.value, float)
    for name, guessed in {"v": 3000, "w": 2000, "h": 100_000}.items():
        assert math.isclose(seconds[name], guessed / clock.value), name


def test_a_program_of_several_slices_is_read_on_its_own_hardware(tmp_path: Path) -> None:
    text = text_of("llama-v5p-two-slices")
    assert looked_at(tmp_path, text, on="2xv5p:2x2x2").exception is None
    assert isinstance(looked_at(tmp_path, text, on="v5p:4x4x4").exception, BadInput)


def test_a_program_of_another_chip_is_told_apart(tmp_path: Path) -> None:
    """Cycles of v5p at the clock of v5e, whose matrix units do half as much in each."""
    text = text_of("llama-v5p-parts")
    beyond = "the program's cycles are those of another chip"
    assert beyond in " ".join(looked_at(tmp_path, text, on="v5e-64").output.split())
    assert beyond not in " ".join(looked_at(tmp_path, text, on="v5p:4x4x4").output.split())


def test_chips_whose_places_are_not_told_are_said_to_be_taken_for_neighbours(
    tmp_path: Path,
) -> None:
    def said(name: str, on: str) -> bool:
        told = " ".join(looked_at(tmp_path, text_of(name), on=on).output.split())
        return "where each device stands is not in the program" in told

    assert said("llama-v5p-fsdp-tensor", "v5p:2x2x4")
    assert not said("llama-v5p-fsdp64", "v5p:4x4x4")  # groups of all chips need no places
