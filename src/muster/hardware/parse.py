"""Hardware names as people write them -> a Cluster, or one line that names the nearest legal ones.

- `4xv5p:16x20x28`, `v5p-4x8x68`: chips along every dim of the torus; before the x, slices;
- `v5p-128`: Cloud's accelerator type, a number of chips for v5e and v6e, of TensorCores for others;
- `h100:1024`, `v5p:8960`: a number of chips;
- `8xh100`: a number of GPUs, or of CPU devices.
"""

import math
import re

from muster.errors import BadInput, join_or, shorten
from muster.hardware.catalogue import DOCUMENTED, chip_by_name, find_id
from muster.hardware.chip import Chip, Switched
from muster.hardware.cluster import Cluster
from muster.hardware.shapes import (
    CUBE,
    Shape,
    SliceRule,
    default_shape,
    format_shape,
    is_legal,
    nearest_counts,
    nearest_shapes,
    shapes_with,
)
from muster.hardware.slice import Slice, slice_of

MOST_CHIPS = 2**20
_MOST_CHARACTERS = 120
_MOST_DIGITS = 12
_MOST_SHAPES_NAMED = 6

_SLICES = re.compile(r"(?P<slices>\d+)\s*[x*]\s*(?P<rest>\D.*)", re.ASCII)
_SIZED = re.compile(
    r"(?P<chip>[^:=]*?[^:=\s_-])(?:\s*(?P<separator>[:=_-])\s*|\s+)(?P<size>\d+(?:\s*x\s*\d+)*)",
    re.ASCII,
)
_TIMES = re.compile(r"(?P<chip>\D.*?)\s*x\s*(?P<size>\d+)", re.ASCII)


def parse_cluster(text: str, *, constants: str = DOCUMENTED) -> Cluster:
    """Read a hardware name.

    Args:
        text: `v5p:16x20x28`, `v5p-128`, `4xv5p:16x20x28`, `h100:1024`, `8xh100`, `cpu:8`.
        constants: the profile of constants of the chip: "documented" or "book".

    Raises:
        BadInput: not a legal slice; the message names the nearest legal ones.
        UnknownName: no such chip or profile.

    >>> parse_cluster("v5p-128").name, parse_cluster("4 x TPU v5 lite-256").name
    ('v5p:4x4x4', '4xv5e:16x16')
    """
    name = _clean(text)
    slices, rest = _split_slices(name)
    if slices is not None and (chip := _unsized(rest, constants)) is not None:
        return _counted_first(chip, slices)
    chip, separator, size = _split_size(rest, constants)
    if slices == 0:
        raise BadInput(f"{shorten(name)} asks for 0 slices; the least is 1")
    if chip.kind == "gpu":
        return _gpus(chip, _single(chip, size), slices or 1)
    one, notes = _one_slice(chip, separator, size)
    _check_total(one.chips * (slices or 1), chip)
    return Cluster(slice=one, slices=slices or 1, notes=notes)


def _clean(text: str) -> str:
    if len(text) > _MOST_CHARACTERS:
        raise BadInput(
            f"hardware is a short name such as v5p:4x4x4 or h100:64, not {len(text)} characters"
        )
    name = text.strip().replace("\N{MULTIPLICATION SIGN}", "x")
    if not name:
        raise BadInput("hardware is empty; write it like v5p:4x4x4, v5p-128, h100:64 or cpu:8")
    if not name.isascii() or not name.isprintable():
        raise BadInput(
            f"hardware {shorten(text)} has characters that no name has; write it like v5p:4x4x4"
        )
    return " ".join(name.lower().split())


def _split_slices(name: str) -> tuple[int | None, str]:
    match = _SLICES.fullmatch(name)
    return (_number(match["slices"]), match["rest"]) if match else (None, name)


def _unsized(rest: str, constants: str) -> Chip | None:
    return chip_by_name(rest, constants) if find_id(rest) else None


def _counted_first(chip: Chip, count: int) -> Cluster:
    """`8xh100`: of chips without slices the number counts chips."""
    if chip.slices is not None:
        raise BadInput(f"{count}x{chip.id} says how many slices, not how large; {_examples(chip)}")
    return Cluster(slice=_counted(chip, count))


def _split_size(rest: str, constants: str) -> tuple[Chip, str, Shape]:
    """Split chip from size. A name that is a chip as a whole (a100-80) has no size."""
    if (chip := _unsized(rest, constants)) is not None:
        raise BadInput(f"{rest} says no size; {_examples(chip)}")
    for pattern in (_SIZED, _TIMES):
        match = pattern.fullmatch(rest)
        if match and find_id(match["chip"]):
            chip = chip_by_name(match["chip"], constants)
            separator = match["separator"] if pattern is _SIZED else ":"
            return chip, separator or "-", _shape(match["size"])
    match = _SIZED.fullmatch(rest)
    head = match["chip"] if match else re.split(r"[:=]", rest, maxsplit=1)[0].strip()
    chip = chip_by_name(head, constants)
    raise BadInput(f"{shorten(rest)} has no size that is a shape or a count; {_examples(chip)}")


def _shape(size: str) -> Shape:
    shape = tuple(_number(dim) for dim in re.split(r"\s*x\s*", size))
    if 0 in shape:
        raise BadInput(f"size {shorten(size)} has a zero; the least is 1")
    return shape


def _number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise BadInput(f"{shorten(digits)} is more chips than muster plans, {MOST_CHIPS}")
    return int(digits)


def _one_slice(chip: Chip, separator: str, size: Shape) -> tuple[Slice, tuple[str, ...]]:
    rule = chip.slices
    if rule is None:
        return _counted(chip, _single(chip, size)), ()
    if len(size) > 1:
        return slice_of(chip, _legal(chip, rule, size)), ()
    if separator == "-":
        return slice_of(chip, _shape_of_type(chip, rule, size[0])), ()
    shape = _shape_of_count(chip, rule, size[0])
    return slice_of(chip, shape), _count_notes(chip, rule, shape)


def _legal(chip: Chip, rule: SliceRule, shape: Shape) -> Shape:
    """The shape itself, or a message that says which rule it breaks."""
    if is_legal(rule, shape):
        return shape
    name = f"{chip.id}:{format_shape(shape)}"
    ascending = next((each for each in _same_dims(rule, shape)), None)
    if ascending:
        raise BadInput(f"{name}: a shape's dims ascend; write {chip.id}:{format_shape(ascending)}")
    chips = math.prod(shape)
    if chips > math.prod(rule.max_pod_shape):
        pod = f"{math.prod(rule.max_pod_shape)} chips ({format_shape(rule.max_pod_shape)})"
        raise BadInput(f"{_short(name)} is {_count(chips)} chips; a {chip.id} pod ends at {pod}")
    if len(shape) != rule.dims:
        fit = shapes_with(rule, chips)[:1] or nearest_shapes(rule, shape)
        raise BadInput(f"{name}: {chip.id} has a {rule.dims}-D torus; write {_names(chip, fit)}")
    if rule.dims == 3 and shape[-1] > rule.longest_dim:
        why = f"a dim ends at {rule.longest_dim}"
    elif rule.dims == 3:
        why = f"dims are all multiples of {CUBE}, or the shape is {_listed(rule)}"
    else:
        why = f"shapes are {_listed(rule)}"
    raise BadInput(f"{name}: {why}; nearest: {_names(chip, nearest_shapes(rule, shape))}")


def _same_dims(rule: SliceRule, shape: Shape) -> tuple[Shape, ...]:
    chips = math.prod(shape)
    if chips > math.prod(rule.max_pod_shape):
        return ()
    return tuple(each for each in shapes_with(rule, chips) if sorted(each) == sorted(shape))


def _shape_of_type(chip: Chip, rule: SliceRule, number: int) -> Shape:
    """The shape of an accelerator type such as v5p-128."""
    name = f"{rule.type_prefix}-{_count(number)}"
    unit = "TensorCores" if rule.type_units_per_chip > 1 else "chips"
    chips, rest = divmod(number, rule.type_units_per_chip)
    shapes = () if rest else shapes_with(rule, chips)
    if not shapes or chips < rule.least_type_chips:
        raise BadInput(f"no {name}: it counts {unit}; nearest: {_types(rule, chips)}")
    shape = default_shape(rule, chips)
    if shape is None:
        raise BadInput(f"{name} ({chips} chips) has several shapes; write {_names(chip, shapes)}")
    return shape


def _shape_of_count(chip: Chip, rule: SliceRule, chips: int) -> Shape:
    """The shape of a bare count of chips: the one that the vendor documents, or the only one."""
    shapes = shapes_with(rule, chips)
    documented = [shape for shape in shapes if shape in rule.documented]
    if len(documented) == 1:
        return documented[0]
    if len(shapes) == 1:
        return shapes[0]
    if shapes:
        raise BadInput(
            f"{chip.id}:{chips} is {chips} chips in one of several shapes; "
            f"write {_names(chip, tuple(documented) or shapes)}"
        )
    pod = math.prod(rule.max_pod_shape)
    if chips > pod:
        raise BadInput(f"{chip.id}:{_count(chips)} is more chips than a {chip.id} pod has, {pod}")
    fits = tuple(shapes_with(rule, count)[0] for count in nearest_counts(rule, chips))
    raise BadInput(f"no {chip.id} slice has {chips} chips; nearest: {_names(chip, fits)}")


def _count_notes(chip: Chip, rule: SliceRule, shape: Shape) -> tuple[str, ...]:
    chips = math.prod(shape)
    if rule.type_units_per_chip == 1:
        return ()
    note = f"{chip.id}:{chips} is read as {chips} chips, {format_shape(shape)}"
    other = shapes_with(rule, chips // rule.type_units_per_chip)
    if other and chips % rule.type_units_per_chip == 0:
        half = chips // rule.type_units_per_chip
        note += f"; the accelerator type {rule.type_prefix}-{chips} is {half} chips"
    return (note,)


def _gpus(chip: Chip, count: int, groups: int) -> Cluster:
    """GPUs of several groups are joined by the same scale-out network as those of one."""
    total = groups * count
    notes = (f"{groups} x {count} GPUs are one cluster of {total} GPUs",) if groups > 1 else ()
    return Cluster(slice=_counted(chip, total), notes=notes)


def _single(chip: Chip, size: Shape) -> int:
    if len(size) > 1:
        total = math.prod(size)
        legal = _legal_count(chip, min(total, MOST_CHIPS))
        raise BadInput(
            f"{chip.id} has no torus, so no shape {_short(format_shape(size))}; "
            f"write a count: {chip.id}:{legal}"
        )
    return size[0]


def _counted(chip: Chip, count: int) -> Slice:
    """Chips without a torus: part of a host, or whole hosts."""
    if count < 1:
        raise BadInput(f"{chip.id}:{count} has no chips; the least is {chip.id}:1")
    _check_total(count, chip)
    per_host = chip.chips_per_host
    if chip.kind == "gpu" and not _fills_hosts(count, per_host):
        near = sorted({_legal_count(chip, count), _legal_count(chip, count, up=True)})
        raise BadInput(
            f"{chip.id}:{count} does not fill hosts of {per_host} GPUs; nearest: "
            f"{join_or(f'{chip.id}:{each}' for each in near)}"
        )
    return slice_of(chip, (count,))


def _fills_hosts(count: int, per_host: int) -> bool:
    return per_host % count == 0 if count < per_host else count % per_host == 0


def _legal_count(chip: Chip, count: int, *, up: bool = False) -> int:
    """The nearest count that fills hosts, from below or above."""
    if chip.kind != "gpu":
        return count
    step = 1 if up else -1
    while not _fills_hosts(count, chip.chips_per_host):
        count += step
    return count


def _check_total(chips: int, chip: Chip) -> None:
    if chips > MOST_CHIPS:
        raise BadInput(f"{_count(chips)} {chip.id} chips are more than muster plans, {MOST_CHIPS}")


def _examples(chip: Chip) -> str:
    """How to say a size of this chip."""
    rule = chip.slices
    if rule is None:
        per_host = chip.chips_per_host if isinstance(chip.network, Switched) else 8
        return f"write {chip.id}:{per_host}"
    shape = (CUBE,) * rule.dims
    number = math.prod(shape) * rule.type_units_per_chip
    return f"write {chip.id}:{format_shape(shape)} or {rule.type_prefix}-{number}"


def _names(chip: Chip, shapes: tuple[Shape, ...]) -> str:
    named = [f"{chip.id}:{format_shape(shape)}" for shape in shapes[:_MOST_SHAPES_NAMED]]
    more = len(shapes) - len(named)
    return f"{', '.join(named)} or one of {more} more" if more else join_or(named)


def _types(rule: SliceRule, chips: int) -> str:
    counts = sorted({max(rule.least_type_chips, count) for count in nearest_counts(rule, chips)})
    return join_or(f"{rule.type_prefix}-{count * rule.type_units_per_chip}" for count in counts)


def _listed(rule: SliceRule) -> str:
    return join_or(format_shape(shape) for shape in rule.listed)


def _count(number: int) -> str:
    """A count that stays short however large."""
    return str(number) if number < 10**_MOST_DIGITS else f"over 1e{_MOST_DIGITS}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
