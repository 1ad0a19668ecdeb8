"""HLO text -> Program, whatever XLA printed it; what is not understood is counted.

HloModule name, is_scheduled=true, num_partitions=16
FileNames ... FunctionNames ... FileLocations ... StackFrames     tables of numbered lines
%computation (parameter: f32[]) -> f32[] {                        ENTRY before the one that runs
  ROOT %name = f32[]{:T(128)} opcode(%operand), attribute=..., backend_config={...}
}, execution_thread="sparsecore"
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from muster.errors import BadInput, shorten
from muster.models.hf_config import printable
from muster.proof.hlo.known import is_known_opcode, is_known_target
from muster.proof.hlo.nesting import check_nesting
from muster.proof.hlo.program import Computation, Op, Program
from muster.proof.hlo.scan import closing, depth_after, split, without_comments
from muster.proof.hlo.shape import shape_at

_HEADER = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*\)\s*->.*)?\{\s*$", re.DOTALL)
_OP = re.compile(r"\s+(ROOT\s+)?%?([\w.\-]+)\s+=\s+")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_END = re.compile(r'\}(?:,\s*execution_thread="([^"]*)")?\s*')
_NUMBERED = re.compile(r"(\d+) (.*)")
_PAIR = re.compile(r"(\w+)=(\d+)")
_DEVICES = re.compile(r"0*[1-9]\d{0,8}", re.ASCII)
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
# Their parentheses hold a value, which may contain anything.
_LITERALS = {"constant", "parameter", "iota"}
_MOST_FRAMES = 64
# Of one operation: a kernel's text in a string has some hundred.
_MOST_LINES = 10_000


@dataclass
class _Reading:
    """What has been read so far.

    Attributes:
        patience: lines that may still be looked through in vain for what closes an operation.
    """

    computations: dict[str, Computation] = field(default_factory=dict)
    tables: dict[str, dict[int, str]] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    entry: str = ""
    ended: bool = False  # whether the entry's last line was there
    patience: int = 100_000


def parse(text: str) -> Program:
    """Read a program.

    Raises:
        BadInput: the text is no HLO module, or not the whole of one.
    """
    try:
        return _parse(text.removeprefix("\ufeff").splitlines())
    except ValueError as error:  # such as a line of a table with a number of 5,000 digits
        raise BadInput(f"not an HLO program: {shorten(str(error))}") from None


def _parse(lines: list[str]) -> Program:
    head = next((line for line in lines if line.startswith("HloModule")), None)
    if head is None:
        raise BadInput("not an HLO program: no line begins with HloModule")
    attributes = _attributes(split(head)[1:])
    partitions, replicas = (
        _devices(attributes, key) for key in ("num_partitions", "replica_count")
    )
    reading = _Reading()
    _read_all(lines, reading)
    if not reading.computations:
        raise BadInput("this HLO program has no computations")
    if not reading.entry:
        raise BadInput("the file is cut: no ENTRY computation")
    if not reading.ended:
        raise BadInput("the file is cut: its ENTRY computation has no end")
    check_nesting(reading.computations, reading.entry)
    return Program(
        name=printable(head.removeprefix("HloModule").split(",")[0].strip()),
        scheduled=attributes.get("is_scheduled") == "true",
        partitions=partitions,
        replicas=replicas,
        computations=reading.computations,
        entry=reading.entry,
        frames=_frames(reading.tables),
        unknown=reading.unknown,
    )


def _devices(attributes: Mapping[str, str], key: str) -> int:
    written = attributes.get(key, "1")
    if not _DEVICES.fullmatch(written):
        shown = shorten(written)
        raise BadInput(f"not an HLO program: its {key}, {shown}, is no number of devices")
    return int(written)


def _read_all(lines: list[str], reading: _Reading) -> None:
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if line in _TABLES:
            place = _read_table(lines, place, reading.tables.setdefault(line, {}))
        elif line[:1] not in {"", " ", "}"} and line.rstrip().endswith("{"):
            place = _read_computation(lines, place, line, reading)
        elif line.strip() and not line.startswith("HloModule"):
            reading.unknown["line outside any computation"] += 1


def _read_table(lines: list[str], place: int, table: dict[int, str]) -> int:
    while place < len(lines) and (match := _NUMBERED.fullmatch(lines[place])):
        table[int(match.group(1))] = match.group(2)
        place += 1
    return place


def _read_computation(lines: list[str], place: int, header: str, reading: _Reading) -> int:
    match = _HEADER.match(header)
    if match is None:
        reading.unknown["computation header"] += 1
        return place
    ops, thread, is_ended = [], "", False
    while place < len(lines):
        line = lines[place]
        if ended := _END.fullmatch(line):
            thread, is_ended = ended.group(1) or "", True
            place += 1
            break
        whole, place = _whole_op(lines, place, reading)
        if not whole.strip():
            continue
        op = _op(whole)
        if op is None:
            reading.unknown["line that is no operation"] += 1
            continue
        ops.append(op)
        if not is_known_opcode(op.opcode):
            reading.unknown[f"opcode {op.opcode}"] += 1
        elif op.opcode == "custom-call" and not is_known_target(op.custom_call_target):
            reading.unknown[f"custom call {op.custom_call_target}"] += 1
    if ops:
        name = match.group(2)
        reading.computations[name] = Computation(name=name, ops=tuple(ops), thread=thread)
        if match.group(1):
            reading.entry, reading.ended = name, is_ended
    return place


def _whole_op(lines: list[str], place: int, reading: _Reading) -> tuple[str, int]:
    """The text of the operation that begins at a line; strings in it may hold line breaks.

    Where a line is cut, so that nothing closes what it opens, the operation is that line alone;
    after some of those no more lines are looked through for the end of others.
    """
    begun, last = place, min(len(lines), place + _MOST_LINES)
    open_, in_string = depth_after(lines[place], 0, in_string=False)
    place += 1
    while open_ > 0 or in_string:
        if place == last or (not in_string and _begins(lines[place])) or reading.patience < 0:
            reading.patience -= place - begun
            return lines[begun], begun + 1
        open_, in_string = depth_after(lines[place], open_, in_string=in_string)
        place += 1
    return "\n".join(lines[begun:place]), place


def _begins(line: str) -> bool:
    """Whether a line outside of strings begins an operation, or begins or ends a computation."""
    header = line[:1] not in {"", " ", "}"} and line.rstrip().endswith("{")
    return header or bool(_END.fullmatch(line) or _OP.match(line))


def _op(text: str) -> Op | None:
    match = _OP.match(text)
    if match is None:
        return None
    try:
        shape, end = shape_at(text, match.end())
        opcode = _OPCODE.match(text, end)
        if opcode is None:
            return None
        close = closing(text, opcode.end() - 1)
    except (ValueError, RecursionError):
        return None
    inside, kind = text[opcode.end() : close], opcode.group(1)
    return Op(
        name=match.group(2),
        opcode=kind,
        shape=shape,
        operands=(inside.strip(),) if kind in _LITERALS else _operands(inside),
        attributes=_attributes(split(text[close + 1 :].lstrip(", "))),
        is_root=match.group(1) is not None,
    )


def _operands(text: str) -> tuple[str, ...]:
    """Names of operands, printed with or without their shapes."""
    parts = split(without_comments(text))
    return tuple(part.rsplit(" ", 1)[-1].lstrip("%") for part in parts)


def _attributes(parts: list[str]) -> dict[str, str]:
    found = {}
    for part in parts:
        key, equals, value = part.partition("=")
        found[key.strip()] = value.strip() if equals else ""
    return found


def _frames(tables: Mapping[str, Mapping[int, str]]) -> dict[int, tuple[str, ...]]:
    """Stack frames, innermost first."""
    files, functions = tables.get("FileNames", {}), tables.get("FunctionNames", {})
    places = {}
    for number, text in tables.get("FileLocations", {}).items():
        fields = dict(_PAIR.findall(text))
        file = files.get(int(fields.get("file_name_id", 0)), "").strip('"').rsplit("/", 1)[-1]
        function = functions.get(int(fields.get("function_name_id", 0)), "").strip('"')
        places[number] = f"{file}:{fields.get('line', '?')} {function}"
    frames = {n: dict(_PAIR.findall(text)) for n, text in tables.get("StackFrames", {}).items()}
    # XLA has numbered parents from 0 for none, and from 1; a parent is never later than its child.
    shift = any(int(frame.get("parent_frame_id", 0)) >= n for n, frame in frames.items())
    parents = {n: int(frame.get("parent_frame_id", 0)) - shift for n, frame in frames.items()}
    own = {n: places.get(int(frame.get("file_location_id", 0)), "") for n, frame in frames.items()}
    return {number: tuple(_upwards(number, own, parents)) for number in frames}


def _upwards(number: int, own: Mapping[int, str], parents: Mapping[int, int]) -> Iterator[str]:
    for _ in range(_MOST_FRAMES):
        if number not in own:
            return
        yield own[number]
        number = parents[number]
