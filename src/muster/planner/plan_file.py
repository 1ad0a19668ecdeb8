"""Read a `plan.json` back: the choices that it holds, checked, for whoever carries them out."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Never, cast

from muster.errors import BadInput, UnknownName, shorten
from muster.hardware import Cluster, parse_cluster
from muster.hardware import Torus as TorusNetwork
from muster.models.architecture import Architecture
from muster.models.hf_config import architecture_from_config, printable
from muster.planner.given import read_given
from muster.planner.plan import SCHEMA
from muster.planner.step_choices import DEFAULT_STEP, StepChoices, step_choices
from muster.roofline.fabric import physical_axes
from muster.roofline.loss_chunks import tokens_at_once
from muster.roofline.memory import DTYPE_BYTES
from muster.roofline.remat import Remat, parse_remat
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.sharding.placing import Torus, placed

MOST_BYTES = 64 * 1024**2
MOST_OF_A_BATCH = 2**40  # tokens of a sequence, sequences of a batch: more than anyone has
MOST_OF_A_NUMBER = 1e100
MOST_TOKENS = 2**63
MOST_WAYS = 2**24  # more than anyone has chips
MOST_OF_AN_AXIS = 16  # letters and digits of a physical axis, as y:8
MOST_OF_AN_OPTION = 1000  # letters of a compiler option's name, or of its value
# Of estimate.memory_per_chip, bytes.
MEMORY_TERMS = (
    "params", "optimizer", "gradients", "activations", "logits", "workspace", "total",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What a plan decided.

    Attributes:
        cluster: the chips that the layout fills.
        step_seconds: what the plan predicts or assumes for one step.
        mfu: the same as a share of peak, in the 6N convention.
        flops_per_token: 6 x active parameters, which that MFU counts.
        document: the plan's whole JSON object.
        step: how the step is written.
        torus: the physical axes of each mesh axis, where they are others than the rule's.
    """

    architecture: Architecture
    cluster: Cluster
    workload: Workload
    layout: Layout
    remat: Remat
    step_seconds: float
    mfu: float
    flops_per_token: float
    document: Mapping[str, object]
    step: StepChoices = DEFAULT_STEP
    torus: Torus | None = None

    @property
    def compiler_options(self) -> Mapping[str, str]:
        """What the TPU compiler is asked for: the plan's own options, else the chip's."""
        held = self.document.get("compiler")
        options = held.get("options") if isinstance(held, Mapping) else None
        if isinstance(options, Mapping):
            return {str(name): _option(value) for name, value in options.items()}
        compiler = self.cluster.chip.compiler
        return compiler.options if compiler else {}

    @property
    def gathers_at_once(self) -> bool:
        """Whether weights are gathered over all axes of the torus in one collective.

        The plan's own choice, else what suits the chip's compiler.
        """
        if self.step.gathers_at_once is not None:
            return self.step.gathers_at_once
        compiler = self.cluster.chip.compiler
        return compiler.gathers_at_once if compiler else False

    @property
    def device_tokens(self) -> int:
        """Tokens of one device in one microbatch, as the loss sees them: over all tensor ways."""
        layout, workload = self.layout, self.workload
        chips = layout.batch_ways * layout.microbatches * layout.sequence
        tokens = workload.batch_sequences * workload.sequence_length
        return -(-tokens // (chips * self.cluster.chip.devices_per_chip))

    @property
    def loss_chunk_tokens(self) -> int:
        """Most tokens of one device whose logits exist at once.

        The plan's own choice, else what suits the chip's memory.
        """
        if self.step.loss_chunk_tokens is not None:
            return self.step.loss_chunk_tokens
        a, chip = self.architecture, self.cluster.chip
        return tokens_at_once(
            self.device_tokens,
            d_model=a.d_model,
            words=-(-a.vocab_size // self.layout.tensor),
            memory=chip.hbm_bytes / chip.devices_per_chip,
        )


def read_plan(path: Path) -> PlannedRun:
    """Read a plan file.

    Raises:
        BadInput: no such file, not JSON, not a plan of this schema, or a plan whose parts do not
            belong together.
    """
    where = printable(path)
    content = read_given(path, most_bytes=MOST_BYTES, kind="plan")
    try:
        document = json.loads(
            content.decode("utf-8-sig"), parse_float=_finite, parse_constant=_finite
        )
    except _NotFiniteError as error:
        raise BadInput(f"{where} holds {shorten(error.text)}, which is not finite") from None
    except (ValueError, RecursionError):
        raise BadInput(f"{where} is not a JSON file; `muster plan --out` writes plans") from None
    return planned_run(document, where=where)


class _NotFiniteError(Exception):
    """A number of a document that is none, as it is written there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):  # also of 1e400
        raise _NotFiniteError(text)
    return number


def is_plan(document: object) -> bool:
    """Whether a JSON document is a plan of some schema."""
    return isinstance(document, Mapping) and "muster" in document and "layout" in document


def planned_run(document: object, *, where: str) -> PlannedRun:
    """What a plan's JSON object decided.

    Raises:
        BadInput: as `read_plan`.
    """
    if not is_plan(document):
        raise BadInput(f"{where} is not a plan; `muster plan MODEL --on HARDWARE --out` writes one")
    part = _Part(cast("Mapping[str, object]", document), where)
    if part.holds.get("muster") is True or part.holds.get("muster") != SCHEMA:
        raise BadInput(
            f"{where} is a plan of schema {shorten(part.holds.get('muster'))}; this muster reads "
            f"{SCHEMA}: make the plan again"
        )
    model, cluster = part.part("model"), part.part("cluster")
    workload, estimate = part.part("workload"), part.part("estimate")
    config = model.part("config").holds
    _check_options(part)
    _check_optional(estimate)
    architecture = architecture_from_config(config, name=printable(model.text("name")))
    filled = cluster.text("filled" if "filled" in cluster.holds else "slice")
    run = PlannedRun(
        architecture=architecture,
        cluster=parse_cluster(filled, constants=str(cluster.holds.get("constants", "documented"))),
        workload=_workload(workload),
        layout=_layout(part.part("layout")),
        remat=parse_remat(workload.text("remat")),
        step_seconds=estimate.number("step_seconds"),
        mfu=estimate.number("mfu"),
        flops_per_token=estimate.number("flops_per_token"),
        document=part.holds,
        step=step_choices(part.holds, where=where),
    )
    _check(run, where)
    return replace(run, torus=_torus(part.part("layout"), run))


def _option(value: object) -> str:
    """A compiler option's value as the compiler takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_options(plan: "_Part") -> None:
    """Refuse compiler options that are none; a plan may have no word of them."""
    if plan.holds.get("compiler") is None:
        return
    compiler = plan.part("compiler")
    if compiler.holds.get("options") is None:
        return
    options = compiler.part("options")
    for name, value in options.holds.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or len(name) > MOST_OF_AN_OPTION:
            raise BadInput(
                f"{options.where}: {shorten(name)} is no option; they are like xla_tpu_x"
            )
        if not isinstance(value, (str, bool, int, float)) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise BadInput(
                f"{options.where}: {shorten(name)} is {shorten(value)}; it must be text, a number "
                "or true or false"
            )
        text = _option(value)
        if len(text) > MOST_OF_AN_OPTION or not text.isprintable():  # it stands on a line
            raise BadInput(
                f"{options.where}: {shorten(name)} is {shorten(text)}; it must be one line of at "
                f"most {MOST_OF_AN_OPTION:,} letters"
            )


def _check_optional(estimate: "_Part") -> None:
    """Refuse what a plan need not predict, where it does and the value is no number."""
    for key in ("flops_per_token_causal", "flops_per_token_recomputed"):
        if key in estimate.holds:
            estimate.count(key)
    if estimate.holds.get("memory_per_chip") is not None:
        memory = estimate.part("memory_per_chip")
        for key in MEMORY_TERMS:
            if key in memory.holds:
                memory.count(key)


def _check(run: PlannedRun, where: str) -> None:
    layout, workload = run.layout, run.workload
    if layout.chips_used > run.cluster.chips:
        raise BadInput(
            f"{where}: the layout takes {layout.chips_used:,} chips of {run.cluster.chips:,}"
        )
    if run.cluster.slices % layout.slice:
        raise BadInput(
            f"{where}: layout: slice is {layout.slice:,}, and {run.cluster.name} has "
            f"{run.cluster.slices:,}"
        )
    if workload.batch_sequences % (layout.batch_ways * layout.microbatches):
        raise BadInput(
            f"{where}: {workload.batch_sequences:,} sequences do not split over "
            f"{layout.batch_ways:,} batch ways and {layout.microbatches} microbatches"
        )
    if workload.sequence_length % layout.sequence:
        raise BadInput(
            f"{where}: sequences of {workload.sequence_length:,} tokens do not split "
            f"{layout.sequence} ways"
        )


def _layout(part: "_Part") -> Layout:
    values: dict[str, int | bool] = {}
    for field in fields(Layout):
        if field.name in part.holds:
            flag = field.name.startswith("shards_")
            values[field.name] = (
                part.flag(field.name) if flag else part.whole(field.name, most=MOST_WAYS)
            )
    return Layout(**values)  # type: ignore[arg-type]


def _torus(part: "_Part", run: PlannedRun) -> Torus | None:
    """The placement that a plan names; None where it names none, or the rule's."""
    held = part.holds.get("torus")
    if held is None:
        return None
    torus: dict[str, tuple[str, ...]] = {}
    for name, axes in part.part("torus").holds.items():
        if not isinstance(axes, list | tuple) or not all(map(_is_axis, axes)):
            raise BadInput(
                f"{part.where}: torus: {shorten(name)} is {shorten(axes)}; it must be a list of "
                'axes, as ["z", "y:8"]'
            )
        if axes:
            torus[name] = tuple(axes)
    if torus == dict(physical_axes(run.cluster, run.layout)):
        return None
    if not isinstance(run.cluster.chip.network, TorusNetwork):
        raise BadInput(f"{part.where}: torus: {run.cluster.chip.id} chips stand in none")
    try:
        placed(run.cluster.slice.shape, run.layout, torus)
    except BadInput as error:
        raise BadInput(f"{part.where}: {error}") from None
    return torus


def _is_axis(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_OF_AN_AXIS


def _workload(part: "_Part") -> Workload:
    """The sizes and formats of a run.

    A half-precision copy beside float32 masters trains as float32 parameters that are cast where
    they are used: the same numbers in the same memory.
    """
    master = "master_copy" in part.holds and part.flag("master_copy")
    return Workload(
        sequence_length=part.whole("sequence_length", most=MOST_OF_A_BATCH),
        batch_sequences=part.whole("batch_sequences", most=MOST_OF_A_BATCH),
        train_tokens=(
            None
            if part.holds.get("train_tokens") is None
            else part.whole("train_tokens", most=MOST_TOKENS)
        ),
        param_dtype="f32" if master else part.dtype("param_dtype"),
        compute_dtype=part.text("compute_dtype"),  # the trainer says in which it can compute
        optimizer_dtype=part.dtype("optimizer_dtype"),
        remat=part.text("remat"),
    )


@dataclass(frozen=True)
class _Part:
    """One object of a plan, read with checks; `where` names it in messages."""

    holds: Mapping[str, object]
    where: str

    def part(self, key: str) -> "_Part":
        value = self.holds.get(key)
        if not isinstance(value, Mapping):
            self._refuse(key, "an object")
        return _Part(value, f"{self.where}: {key}")

    def text(self, key: str) -> str:
        value = self.holds.get(key)
        if not isinstance(value, str):
            self._refuse(key, "text")
        return value

    def dtype(self, key: str) -> str:
        name = self.text(key)
        if name not in DTYPE_BYTES:
            raise UnknownName(f"number format of {self.where}: {key}:", name, DTYPE_BYTES)
        return name

    def flag(self, key: str) -> bool:
        value = self.holds.get(key)
        if not isinstance(value, bool):
            self._refuse(key, "true or false")
        return value

    def whole(self, key: str, *, most: int | None = None) -> int:
        value = self.holds.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._refuse(key, "a whole number of at least 1")
        if most is not None and value > most:
            self._refuse(key, f"at most {most:,}")
        return value

    def number(self, key: str) -> float:
        if (number := self._float(key)) is None or number <= 0:
            self._refuse(key, "a number above 0")
        return number

    def count(self, key: str) -> float:
        if (number := self._float(key)) is None or number < 0:
            self._refuse(key, "a number of at least 0")
        return number

    def _float(self, key: str) -> float | None:
        """A finite number; None where it is none."""
        value = self.holds.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        if value > MOST_OF_A_NUMBER:  # what is reckoned from it would not be finite
            self._refuse(key, f"at most {MOST_OF_A_NUMBER:g}")
        value = max(value, -1)  # below 0 all are the same; NaN stays
        return None if math.isnan(value) else float(value)

    def _refuse(self, key: str, wanted: str) -> Never:
        found = shorten(self.holds[key]) if key in self.holds else "missing"
        raise BadInput(f"{self.where}: {key} is {found}; it must be {wanted}")
