"""Every collective: tables counted by hand from the texts, and every form that one takes."""

import json
import re

import pytest

from muster.proof.hlo import collectives, parse, walk
from muster.proof.hlo.collectives import merged, mesh_of
from muster.proof.hlo.kinds import collective_inside
from muster.proof.hlo.program import Op
from muster.proof.hlo.shape import parse_shape
from muster.proof.hlo.strategy import strategy_of
from tests.proof.fixtures import NAMES, facts_of, program_of, text_of

type Row = tuple[str, tuple[str, ...], int, int, bool]

D, F, V, T, LAYERS = 1024, 4096, 32000, 1024, 4
# kind, axes, count, bytes that a chip sends, asynchronous; those of more than a megabyte.
# Numbers of the widths of LLaMA-3 8B: embedding or head, and a layer.
WIDE_ENDS, WIDE_LAYER = 4096 * 128256, 4096 * (2 * (32 + 8) * 128 + 3 * 14336)
TABLE: dict[str, set[Row]] = {
    "llama-v5p-fsdp-tensor": {
        # Two sequences of activations at the door of both blocks, forward and back, and once more
        # around the layers: gathered over 2 chips, so each sends half.
        ("all-gather", ("tensor",), 18, 18 * 2 * T * D * 2 // 2, False),
        ("reduce-scatter", ("tensor",), 18, 18 * 2 * T * D * 2 // 2, False),
        ("reduce-scatter", ("fsdp",), 1, D * V // 2 * 4 * 7 // 8, False),  # the head, in float32
        ("all-reduce", ("fsdp",), 1, 2 * V // 2 * D * 2 * 7 // 8, False),  # the embedding
        ("all-gather", ("fsdp",), 30, 116_064_256, False),
        ("collective-permute", ("fsdp",), 504, 150_994_944, True),
    },
    "llama-v5p-fsdp64": {("all-reduce", ("fsdp",), 16, 1_437_843_456, False)},
    "llama-v5p-two-slices": {
        ("all-reduce", ("fsdp",), 6, 578_945_024, False),
        ("all-gather", ("fsdp",), 58, 349_569_024, False),
        # Each chip's eighth of all gradients goes to the other slice and comes back: V (2 - 1).
        ("all-reduce", ("slice",), 35, 41_394_688, True),
    },
    "llama-v5e-fsdp16": {
        ("all-reduce", ("fsdp",), 2, 368_640_000, False),
        ("collective-permute", ("fsdp",), 1088, 329_777_152, True),
        ("all-gather", ("fsdp",), 2, 2 * V * D * 2 * 15 // 16, False),
        ("all-gather", ("fsdp",), 12, (D * D + 2 * D * F) * 2 * LAYERS * 15 // 16, True),
        ("all-gather", ("fsdp",), 8, 2 * D * D * 2 * LAYERS * 15 // 16, False),
    },
    "mixtral-v5p-expert4": {
        ("all-reduce", ("fsdp", "expert"), 2, 368_640_000, False),
        ("all-gather", ("fsdp", "expert"), 2, 2 * V * D * 2 * 15 // 16, False),
        ("collective-permute", ("fsdp", "expert"), 952, 107_094_016, True),
        ("all-gather", ("expert",), 28, 75_792_384, False),
        ("all-gather", ("fsdp",), 24, 24 * 2 * D * D * 2 * 3 // 4, False),
        ("reduce-scatter", ("expert",), 8, 51_904_512, False),
        ("reduce-scatter", ("fsdp",), 12, 12 * 2 * D * D * 2 * 3 // 4, False),
        ("collective-permute", ("expert",), 8, 1_572_864, True),
    },
    "llama-v5p-parts": {
        # Each end gathered once, layers twice; all scattered once, in the parts in which they are
        # multiplied, most of it over six orders and directions of the torus.
        (
            "all-gather",
            ("fsdp",),
            59,
            (2 * WIDE_ENDS + 2 * LAYERS * WIDE_LAYER) * 2 * 63 // 64,
            True,
        ),
        ("reduce-scatter", ("fsdp",), 16, 3_406_233_600, True),
        ("reduce-scatter", ("fsdp",), 28, 379_846_656, True),
    },
    "llama-7x-fsdp8": {
        ("collective-permute", ("fsdp",), 1428, 427_819_008, True),
        ("reduce-scatter", ("fsdp",), 2, (V * D * 2 + V * D * 4) * 15 // 16, True),
        ("all-gather", ("fsdp",), 2, 2 * V * D * 2 * 15 // 16, True),
    },
}


def rows(name: str) -> set[Row]:
    found = merged(collectives(program_of(name), facts_of(name)["mesh"]))
    table: dict[tuple[str, tuple[str, ...], bool, str], tuple[int, float]] = {}
    for each in found:
        if each.bytes_per_chip > 1e6:
            key = (each.kind, each.axes, each.asynchronous, str(each.strategy))
            count, bytes_ = table.get(key, (0, 0.0))
            table[key] = (count + each.count, bytes_ + each.bytes_per_chip)
    return {(k, axes, n, round(b), a) for (k, axes, a, _), (n, b) in table.items()}


@pytest.mark.parametrize("name", TABLE)
def test_collectives_of_real_programs(name: str) -> None:
    assert rows(name) == TABLE[name]


def test_gradients_in_parts_are_scattered_once() -> None:
    sent = sum(bytes_ for kind, _, _, bytes_, _ in rows("llama-v5p-parts") if "reduce" in kind)
    assert sent == (2 * WIDE_ENDS + LAYERS * WIDE_LAYER) * 2 * 63 // 64


def test_one_chip_exchanges_nothing() -> None:
    assert collectives(program_of("llama-v5p-one-chip")) == []


@pytest.mark.parametrize("name", NAMES)
def test_no_channel_of_the_text_is_lost(name: str) -> None:
    program = program_of(name)
    begun = {
        inner.attributes["channel_id"]
        for visit in walk(program)
        if (inner := collective_inside(program, visit.op)) is not None
    }
    received = set(re.findall(r" recv\(.*?channel_id=(\d+)", text_of(name)))
    assert begun | received == set(re.findall(r"channel_id=(\d+)", text_of(name)))


@pytest.mark.parametrize("name", NAMES)
def test_every_group_lies_along_axes_of_the_plan(name: str) -> None:
    for each in collectives(program_of(name), facts_of(name)["mesh"]):
        assert "unaligned" not in each.axes, each.name
        assert each.ways > 1 or not each.groups


@pytest.mark.parametrize("name", [n for n in NAMES if "slices" not in n and "one-chip" not in n])
def test_the_mesh_is_found_in_the_program(name: str) -> None:
    """One that lies on several axes of the torus is several there: fsdp_x, fsdp_y."""
    found: dict[str, int] = {}
    for axis, ways in mesh_of(program_of(name)).items():
        whole = axis.partition("_")[0]
        found[whole] = found.get(whole, 1) * ways
    assert found == facts_of(name)["mesh"]


def wrap(lines: str, more: str = "") -> str:
    return f"""HloModule m, is_scheduled=true, num_partitions=4
{more}
%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}
ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
{lines}
}}
"""


FUSED = """%keep (x: f32[8]) -> f32[4] {
  %x = f32[8]{0} parameter(0)
  %r = f32[8]{0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum
  %c = s32[] constant(0)
  ROOT %d = f32[4]{0} dynamic-slice(%r, %c), dynamic_slice_sizes={4}
}
%async (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %e = f32[8]{0} all-to-all(%x), replica_groups={{0,1,2,3}}, dimensions={0}
}, execution_thread="sparsecore"
"""
MESH = {"data": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("lines", "row"),
    [
        (
            "  %g = (f32[8]{0}, f32[16]{0}) all-gather-start(%x), replica_groups={{0,1},{2,3}}\n"
            "  ROOT %d = f32[16]{0} all-gather-done(%g)",
            ("all-gather", ("tensor",), 64, 32.0, True),
        ),
        (
            "  ROOT %g = f32[8]{0} all-reduce(%x), replica_groups={{0,2},{1,3}}, to_apply=%sum",
            ("all-reduce", ("data",), 32, 32.0, False),
        ),
        (
            "  ROOT %g = f32[2]{0} reduce-scatter(%x), replica_groups={}, to_apply=%sum",
            ("reduce-scatter", ("data", "tensor"), 32, 24.0, False),
        ),
        (
            "  ROOT %f = f32[4]{0} fusion(%x), kind=kCustom, calls=%keep",
            ("reduce-scatter", ("tensor",), 32, 16.0, False),
        ),
        (
            "  %s = (f32[8]{0}, f32[8]{0}, u32[]) async-start(%x), calls=%async\n"
            "  ROOT %d = f32[8]{0} async-done(%s)",
            ("all-to-all", ("data", "tensor"), 32, 24.0, True),
        ),
        (
            "  %s = ((), (), (s32[8192])) custom-call-start(), "
            'async_execution_thread="sparsecore", custom_call_target="TODO(b/1)", '
            "called_computations={%async}\n"
            "  %u = ((f32[8]{0}), f32[8]{0}, (s32[8192])) custom-call-update(%s, %x)\n"
            "  ROOT %d = f32[8]{0} custom-call-done(%u)",
            ("all-to-all", ("data", "tensor"), 32, 24.0, True),
        ),
        (
            "  %s = (f32[8]{0}, f32[8]{0}, u32[]) all-to-all-start(%x), calls=%async\n"
            "  ROOT %d = f32[8]{0} all-to-all-done(%s)",
            ("all-to-all", ("data", "tensor"), 32, 24.0, True),
        ),
        (
            "  %p = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%x), "
            "source_target_pairs={{0,1},{1,0},{2,3},{3,2}}\n"
            "  ROOT %d = f32[8]{0} collective-permute-done(%p)",
            ("collective-permute", ("tensor",), 32, 32.0, True),
        ),
        (
            "  ROOT %g = f32[8]{0} all-reduce(%x), replica_groups=<odd>, to_apply=%sum",
            ("all-reduce", ("unknown groups",), 32, 48.0, False),
        ),
        (
            "  ROOT %g = f32[8]{0} all-reduce(%x), replica_groups=[1,4]<=[5], to_apply=%sum",
            ("all-reduce", ("unknown groups",), 32, 48.0, False),
        ),
        (
            "  ROOT %p = f32[8]{0} collective-permute(%x), source_target_pairs={{0,1},{2,9}}",
            ("collective-permute", ("unknown groups",), 32, 32.0, False),
        ),
    ],
)
def test_every_form(lines: str, row: tuple[str, tuple[str, ...], int, float, bool]) -> None:
    (each,) = collectives(parse(wrap(lines, FUSED)), MESH)
    assert (
        each.kind,
        each.axes,
        each.array_bytes,
        each.bytes_per_chip,
        each.asynchronous,
    ) == row


def test_a_mesh_that_cannot_be_is_not_the_programs() -> None:
    lines = (
        "  %a = f32[8]{0} all-reduce(%x), replica_groups=mesh['big'=0] {'big'}, to_apply=%sum\n"
        "  ROOT %g = f32[8]{0} all-reduce(%a), replica_groups={{0,1},{2,3}}, to_apply=%sum"
    )
    assert mesh_of(parse(wrap(lines))) == {"device": 4}


def test_a_list_of_slices_that_is_none() -> None:
    """What cannot be read of what goes between slices is taken to be two of them."""
    said = '_xla_megascale_transfer_type="ALL_REDUCE",_xla_megascale_target="{:1}"'
    lines = (
        "  %s = (f32[8]{0}, u32[], token[]) send(%x), channel_id=1, "
        f"frontend_attributes={{{said}}}\n  ROOT %d = token[] send-done(%s)"
    )
    (each,) = collectives(parse(wrap(lines)))
    assert (each.axes, each.ways) == (("slice",), 2)


def test_strategies_in_words() -> None:
    said = {str(each.strategy) for each in collectives(program_of("llama-v5p-fsdp64"))}
    assert "UniDirectionNDRing, 6 colors, rings 4x4x4, xyz/yzx/zxy/xyz/yzx/zxy" in said
    sparse = {str(each.strategy) for each in collectives(program_of("llama-7x-fsdp8"))}
    assert "UniDirectionSparseCoreRing, 2 colors, rings 8" in sparse


def test_the_sparse_cores_rings_name_their_axes() -> None:
    """Six parts of the array at once: each axis of the torus in both directions."""
    ring = {"ring_type": "ICI_RING_TYPE_UNIDIR_CW", "core_count": "4"}
    colors = [
        {
            "phase_rings": [
                {**ring, "explicit_strategy_ring_dim": f"ICI_RING_DIM_{axis}_MESH"} for axis in axes
            ]
        }
        for axes in ("XYZ", "XYZ", "YZX", "YZX", "ZXY", "ZXY")
    ]
    config = {"ici_strategy_config": {"color_strategies": colors}}
    offload = {"collective_offload_config": {"all_gather_offload_config": config}}
    op = Op(
        name="g",
        opcode="all-gather",
        shape=parse_shape("bf16[8]"),
        attributes={"backend_config": json.dumps(offload)},
    )
    found = strategy_of(op)
    assert str(found).endswith("6 colors, rings 4x4x4, xyz/xyz/yzx/yzx/zxy/zxy")
    assert found.axes == (0, 1, 2)
    assert found.at_once == 3
