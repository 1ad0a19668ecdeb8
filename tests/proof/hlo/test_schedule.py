"""How often what runs: against another count of the same text, and on loops of every kind."""

import re
from collections import Counter

import pytest

from muster.proof.hlo import compute_cycles, parse, walk
from muster.proof.hlo.trips import Loops
from tests.proof.fixtures import NAMES, program_of, text_of

LAYERS = 4
# Trip counts of every loop. Four layers; a matmul that is cut over n chips and sends both ways
# takes n / 2 steps, of which the compiler puts two into one body: 4 of 16 chips, 2 of 8, no loop
# of 4. Of two slices the backward pass has one layer outside of its loop; of offloaded activations
# both passes have.
LOOPS: dict[str, dict[int, int]] = {
    "llama-7x-fsdp8": {4: 23},
    "llama-v5e-fsdp16": {4: 18},
    "llama-v5p-fsdp-tensor": {2: 14, 4: 2},
    "llama-v5p-fsdp64": {4: 2},
    "llama-v5p-hybrid": {4: 2},
    "llama-v5p-one-chip": {4: 2},
    "llama-v5p-sequence": {4: 2},
    "llama-v5p-two-slices": {3: 1, 4: 1},
    "llama-v6e-offload": {3: 2},
    "llama-v6e-tensor4": {4: 2},
    "llama-v5p-parts": {4: 2},
    "mistral-v5p-window": {4: 2},
    "mixtral-v5p-expert4": {4: 16},
}
CYCLES = {
    "llama-7x-fsdp8": 12_019_607,
    "llama-v5e-fsdp16": 22_112_420,
    "llama-v5p-fsdp-tensor": 11_043_195,
    "llama-v5p-fsdp64": 8_849_199,
    "llama-v5p-hybrid": 8_065_961,
    "llama-v5p-one-chip": 12_436_683,
    "llama-v5p-sequence": 5_103_028,
    "llama-v5p-two-slices": 7_614_586,
    "llama-v6e-offload": 6_638_756,
    "llama-v6e-tensor4": 9_331_717,
    "llama-v5p-parts": 176_088_491,
    "mistral-v5p-window": 19_682_258,
    "mixtral-v5p-expert4": 13_546_774,
}
HEADER = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(.*\{$")
LOOP = re.compile(r" while\(.*condition=%([\w.\-]+), body=%([\w.\-]+)")
ESTIMATE = re.compile(r'"estimated_cycles":"(\d+)"')
LIMIT = re.compile(r"^  %constant[\w.\-]* = [su]32\[\]\S* constant\((\d+)\)", re.MULTILINE)


def bodies(text: str) -> dict[str, str]:
    """Computations as text, found without the reader that is tested."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if match := HEADER.match(line):
            lines = found.setdefault(match.group(1), [])
        lines.append(line)
    return {name: "\n".join(part) for name, part in found.items()}


def counted_again(text: str) -> int:
    """The cycles of a step: a body's own, and those of its loops."""
    parts = bodies(text)
    entry = re.search(r"^ENTRY %([\w.\-]+)", text, re.MULTILINE)
    assert entry is not None

    def cycles(name: str) -> int:
        own = sum(int(n) for n in ESTIMATE.findall(parts[name]) if int(n) < 2**62)
        return own + sum(
            trips(condition, body) * cycles(body) for condition, body in LOOP.findall(parts[name])
        )

    def trips(condition: str, body: str) -> int:
        (limit,) = LIMIT.findall(parts[condition])
        return int(limit) // (2 if "windowed_dot_general" in body else 1)

    return cycles(entry.group(1))


@pytest.mark.parametrize("name", NAMES)
def test_trip_counts(name: str) -> None:
    program = program_of(name)
    loops = Loops(program)
    found = Counter(
        loops.trips(computation, op)
        for computation in program.computations.values()
        for op in computation.ops
        if op.opcode == "while"
    )
    assert found == LOOPS[name]


@pytest.mark.parametrize("name", NAMES)
def test_cycles(name: str) -> None:
    cycles = compute_cycles(program_of(name))
    assert cycles.compute == CYCLES[name]
    assert cycles.uncertain == ()


@pytest.mark.parametrize("name", [name for name in NAMES if 3 not in LOOPS[name]])
def test_cycles_counted_another_way(name: str) -> None:
    assert compute_cycles(program_of(name)).compute == counted_again(text_of(name))


def loop(
    *, start: str, limit: str, step: int, direction: str, swapped: bool = False, known: str = ""
) -> str:
    sides = "%k, %i" if swapped else "%i, %k"
    return f"""HloModule m, is_scheduled=true
%cond (p: (s32[], s32[])) -> pred[] {{
  %p = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %k = s32[] {limit}
  ROOT %c = pred[] compare({sides}), direction={direction}
}}
%body (p: (s32[], s32[])) -> (s32[], s32[]) {{
  %p = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] get-tuple-element(%p), index=1
  %one = s32[] constant({step})
  %next = s32[] add(%i, %one)
  %work = f32[8]{{0}} custom-call(), custom_call_target="x", \
backend_config={{"window_config":{{"estimated_cycles":"5"}}}}
  ROOT %t = (s32[], s32[]) tuple(%next, %n)
}}
ENTRY %main (n: s32[]) -> s32[] {{
  %n = s32[] parameter(0)
  %start = s32[] {start}
  %limit = s32[] constant(6)
  %t = (s32[], s32[]) tuple(%start, %limit)
  %w = (s32[], s32[]) while(%t), condition=%cond, body=%body{known}
  ROOT %r = s32[] get-tuple-element(%w), index=0
}}
"""


CONSTANT = "constant(0)"


@pytest.mark.parametrize(
    ("text", "trips"),
    [
        (loop(start=CONSTANT, limit="constant(6)", step=1, direction="LT"), 6),
        (loop(start=CONSTANT, limit="constant(6)", step=1, direction="LE"), 7),
        (loop(start=CONSTANT, limit="constant(6)", step=4, direction="LT"), 2),
        (loop(start=CONSTANT, limit="constant(6)", step=2, direction="NE"), 3),
        (loop(start="constant(6)", limit="constant(0)", step=-2, direction="GT"), 3),
        (loop(start=CONSTANT, limit="constant(6)", step=1, direction="GT", swapped=True), 6),
        (loop(start=CONSTANT, limit="get-tuple-element(%p), index=1", step=1, direction="LT"), 6),
        (loop(start="constant(9)", limit="constant(6)", step=1, direction="LT"), 0),
        (
            loop(
                start="negate(%n)",
                limit="constant(6)",
                step=1,
                direction="LT",
                known=', backend_config={"known_trip_count":{"n":"17"}}',
            ),
            17,
        ),
    ],
)
def test_counted_loops(text: str, trips: int) -> None:
    program = parse(text)
    assert compute_cycles(program).compute == 5 * trips
    assert compute_cycles(program).uncertain == ()


@pytest.mark.parametrize(
    "text",
    [
        loop(start="negate(%n)", limit="constant(6)", step=1, direction="LT"),
        loop(start=CONSTANT, limit="constant(6)", step=0, direction="LT"),
        loop(start=CONSTANT, limit="constant(6)", step=4, direction="NE"),
        loop(start=CONSTANT, limit="get-tuple-element(%p), index=0", step=1, direction="LT"),
    ],
)
def test_a_loop_that_does_not_say_counts_once_and_is_named(text: str) -> None:
    program = parse(text)
    assert compute_cycles(program).compute == 5
    assert compute_cycles(program).uncertain == ("w",)


def test_a_loop_whose_number_is_added_up_too_often_is_not_known() -> None:
    """Forty sums, each of the one before it twice: 2**40 ways back to the constant."""
    sums = "\n".join(f"  %s{n + 1} = s32[] add(%s{n}, %s{n})" for n in range(40))
    text = loop(start="negate(%s40)", limit="constant(6)", step=1, direction="LT")
    text = text.replace(
        "  %start = s32[] negate", f"  %s0 = s32[] constant(1)\n{sums}\n  %start = s32[] copy"
    )
    assert compute_cycles(parse(text)).uncertain == ("w",)


def test_walk_goes_in_the_order_of_the_schedule() -> None:
    visits = list(walk(program_of("llama-v5p-one-chip")))
    inside = [number for number, visit in enumerate(visits) if visit.loops]
    assert inside == list(range(inside[0], inside[-1] + 1)) or len({v.loops for v in visits}) > 2
    assert {visit.times for visit in visits if visit.loops} <= {LAYERS, LAYERS + 1}


def test_the_sparse_cores_have_a_thread_of_their_own() -> None:
    threads = {visit.thread for visit in walk(program_of("llama-v5p-fsdp-tensor"))}
    assert threads == {"", "sparsecore"}
