"""Properties of every legal slice, and of every text that is not one."""

import math
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.hardware import (
    Shape,
    Slice,
    all_chips,
    chip_by_name,
    parse_cluster,
    slice_of,
)
from muster.hardware.shapes import (
    default_shape,
    is_legal,
    legal_shapes,
    nearest_counts,
    nearest_shapes,
    parse_shape,
    shapes_with,
)

from .lookup import rule_of

TPUS = [chip.id for chip in all_chips() if chip.slices]
GPUS = [chip.id for chip in all_chips() if chip.kind == "gpu"]
LEGAL = [(chip, shape) for chip in TPUS for shape in legal_shapes(rule_of(chip))]
FRAGMENTS = [
    *TPUS,
    *GPUS,
    "tpu",
    "cpu",
    "x",
    ":",
    "-",
    "=",
    " ",
    "_",
    "*",
    "4",
    "16",
    "0",
    "999",
    "lite",
]

slices = st.sampled_from(LEGAL).map(lambda pair: slice_of(chip_by_name(pair[0]), pair[1]))
near_names = st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join)
garbage = st.one_of(st.text(max_size=300), st.text(string.printable, max_size=130), near_names)


def test_there_are_as_many_legal_slices_as_expected() -> None:
    counts = {chip: len(legal_shapes(rule_of(chip))) for chip in TPUS}
    assert (counts["v2"], counts["v3"]) == (5, 8)
    assert counts["v5e"] == counts["v6e"] == 8
    cuboids = {
        tuple(sorted((a, b, c)))
        for a in range(1, 65)
        for b in range(1, 65 // a + 1)
        for c in range(1, 64 // (a * b) + 1)
    }
    assert counts["v4"] == len(cuboids) + 4
    assert counts["v4"] < counts["v5p"] < counts["v7x"]


@given(slices)
def test_the_canonical_name_is_read_back(slice_: Slice) -> None:
    assert parse_cluster(slice_.name).slice == slice_


@given(slices, st.integers(2, 64))
def test_the_canonical_name_of_several_slices_is_read_back(slice_: Slice, count: int) -> None:
    cluster = parse_cluster(f"{count}x{slice_.name}")
    assert cluster.chips == count * slice_.chips
    assert parse_cluster(cluster.name) == cluster


@given(slices)
def test_the_accelerator_type_is_read_back(slice_: Slice) -> None:
    if slice_.accelerator_type is not None:
        assert parse_cluster(slice_.accelerator_type).slice == slice_


def test_every_size_that_has_a_type_has_one_only() -> None:
    types = [slice_of(chip_by_name(chip), shape).accelerator_type for chip, shape in LEGAL]
    named = [each for each in types if each is not None]
    assert len(named) == len(set(named)) > 200


@given(slices)
def test_a_slice_is_consistent(slice_: Slice) -> None:
    rule = rule_of(slice_.chip)
    assert len(slice_.wrap) == len(slice_.shape) == rule.dims
    assert slice_.chips == math.prod(slice_.shape) <= math.prod(rule.max_pod_shape)
    assert (
        0 <= slice_.hosts * slice_.chip.chips_per_host - slice_.chips < slice_.chip.chips_per_host
    )
    assert slice_.devices == slice_.chips * slice_.chip.devices_per_chip
    assert slice_.torus_axes == len([dim for dim in slice_.shape if dim > 1])
    assert slice_.shape == (2, 2, 1) or list(slice_.shape) == sorted(slice_.shape)
    if rule.dims == 3:
        assert all(slice_.wrap) == all(dim % 4 == 0 for dim in slice_.shape) == any(slice_.wrap)


@given(st.sampled_from(TPUS), st.integers(1, 10_000))
def test_shapes_of_a_size_are_the_legal_ones(chip: str, chips: int) -> None:
    rule = rule_of(chip)
    shapes = shapes_with(rule, chips)
    assert set(shapes) == {shape for shape in legal_shapes(rule) if math.prod(shape) == chips}
    assert (default_shape(rule, chips) or shapes[:1]) in {(), shapes[:1], *shapes}


@given(st.sampled_from(TPUS), st.lists(st.integers(1, 300), min_size=2, max_size=3).map(tuple))
def test_only_legal_shapes_are_read_and_legal_ones_are_named(chip: str, shape: Shape) -> None:
    rule = rule_of(chip)
    text = f"{chip}:{'x'.join(map(str, shape))}"
    if is_legal(rule, shape):
        assert parse_cluster(text).slice.shape == shape
        return
    with pytest.raises(BadInput) as error:
        parse_cluster(text)
    named = [word.strip(",;()") for word in str(error.value).removeprefix(f"{text} ").split()]
    shapes = [word.rpartition(":")[2] for word in named if "x" in word and word[-1].isdigit()]
    assert shapes
    for each in shapes:
        assert is_legal(rule, parse_shape(each)), str(error.value)


@given(st.sampled_from(TPUS), st.lists(st.integers(1, 300), min_size=1, max_size=4).map(tuple))
def test_the_nearest_are_legal(chip: str, shape: Shape) -> None:
    rule = rule_of(chip)
    assert all(is_legal(rule, each) for each in nearest_shapes(rule, shape))
    assert all(shapes_with(rule, count) for count in nearest_counts(rule, math.prod(shape)))


@given(st.sampled_from(GPUS), st.integers(1, 100_000))
def test_gpus_fill_hosts(chip: str, count: int) -> None:
    per_host = chip_by_name(chip).chips_per_host
    fits = count % per_host == 0 or (count < per_host and per_host % count == 0)
    if fits:
        assert parse_cluster(f"{chip}:{count}") == parse_cluster(f"{count}x{chip}")
        return
    with pytest.raises(BadInput, match="nearest") as error:
        parse_cluster(f"{chip}:{count}")
    nearest = str(error.value).split("nearest: ")[1].split(" or ")
    counts = [parse_cluster(name).chips for name in nearest]
    assert min(counts) < count < max(counts)


@given(garbage)
@example("1" * 120)
@example("1x" * 60)
@example("v5p:" + "9" * 116)
@example("v5p:" + "x".join(["1"] * 58))
@example("v5p-" + "9" * 12)
@example("\N{KELVIN SIGN}v5p:4x4x4")
@example("v5p:4x4x4\x00")
@example("\ud800")
def test_any_text_is_a_cluster_or_one_short_line(text: str) -> None:
    try:
        cluster = parse_cluster(text)
    except BadInput as error:
        message = str(error)
        assert "\n" not in message
        assert 0 < len(message) < 300
        message.encode()
    else:
        assert parse_cluster(cluster.name) == cluster
