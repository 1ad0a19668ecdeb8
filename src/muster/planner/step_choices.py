"""How the compiled step is written where the numbers stay the same: the plan's `step` object.

    "step": {"layers_unrolled": 2, "loss_chunk_tokens": 2048,
             "attention_blocks": {"queries": 1024, "fused_backward": true}}

Whatever is not given has its default, and a plan whose step is all defaults has no such object. The
planner predicts no difference between them, so they are found by asking the compiler (`muster
tune`). Results differ by rounding alone: sums are added up in other orders.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Never

from muster.errors import BadInput, UnknownName, shorten

STEP = "step"
BLOCKS = "attention_blocks"
LANES = 128  # of a TPU's vector registers; every attention block is a multiple of them
MOST_BLOCK = 2**15  # tokens; no VMEM holds more
MOST_UNROLLED = 1024
MOST_CHUNK = 2**40  # tokens: more than any chip has


@dataclass(frozen=True, kw_only=True)
class AttentionBlocks:
    """Tokens of the TPU kernels' blocks, each at most; a divisor of the row is used.

    Attributes:
        queries: held in VMEM by the forward kernel.
        keys: brought to VMEM at once by the forward kernel.
        keys_computed: multiplied at once by the forward kernel.
        backward_queries: as `queries`, of the kernel for dK and dV.
        backward_keys: as `keys`, of the kernel for dK and dV.
        backward_keys_computed: as `keys_computed`, of the kernel for dK and dV.
        dq_queries: as `queries`, of the kernel for dQ.
        dq_keys: as `keys`, of the kernel for dQ.
        fused_backward: whether one kernel computes dQ as well, in parts that are then added up.
    """

    queries: int = 512
    keys: int = 512
    keys_computed: int = 512
    backward_queries: int = 512
    backward_keys: int = 512
    backward_keys_computed: int = 512
    dq_queries: int = 512
    dq_keys: int = 512
    fused_backward: bool = False

    def __str__(self) -> str:
        """What differs from the defaults, "512 tokens" where nothing does."""
        changed = _changed(self)
        named = (f"{name.replace('_', ' ')} {value}" for name, value in changed.items())
        return ", ".join(named).replace(" True", "") or f"{self.queries} tokens"


@dataclass(frozen=True, kw_only=True)
class StepChoices:
    """What can be chosen of a step without changing what it computes.

    Attributes:
        layers_unrolled: layers that one turn of the loop over layers runs: more let the compiler
            move work between them, and take longer to compile.
        loss_chunk_tokens: most tokens of a chip whose logits exist at once; None for a size that
            fits.
        gathers_at_once: whether a weight is gathered over all axes of the torus in one collective,
            not over one axis after the other; None for what the chip's compiler does better.
        attention_blocks: of the TPU's attention kernels; other devices have none.
    """

    layers_unrolled: int = 1
    loss_chunk_tokens: int | None = None
    gathers_at_once: bool | None = None
    attention_blocks: AttentionBlocks = field(default_factory=AttentionBlocks)

    def to_json(self) -> dict[str, object]:
        """What differs from the defaults, as the plan's `step` holds it; empty for nothing."""
        return _changed(self)


DEFAULT_STEP = StepChoices()


def _changed(held: Any) -> dict[str, object]:
    """Fields that differ from their defaults, those of parts inside too."""
    usual, found = type(held)(), dict[str, object]()
    for each in fields(held):
        value = getattr(held, each.name)
        if value != getattr(usual, each.name):
            inside = hasattr(value, "__dataclass_fields__")
            found[each.name] = _changed(value) if inside else value
    return found


def step_choices(document: Mapping[str, object], *, where: str) -> StepChoices:
    """Read the `step` of a plan; all defaults where there is none.

    Raises:
        BadInput: a key or a value that no step has.

    >>> step_choices({"step": {"layers_unrolled": 2}}, where="plan.json").to_json()
    {'layers_unrolled': 2}
    """
    held = document.get(STEP)
    if held is None:
        return DEFAULT_STEP
    step = _Object(held, f"{where}: {STEP}", tuple(each.name for each in fields(StepChoices)))
    chunk = step.held.get("loss_chunk_tokens")
    return StepChoices(
        layers_unrolled=step.whole("layers_unrolled", 1, MOST_UNROLLED),
        loss_chunk_tokens=(
            None if chunk is None else step.whole("loss_chunk_tokens", 1, MOST_CHUNK)
        ),
        gathers_at_once=(
            None if step.held.get("gathers_at_once") is None else step.flag("gathers_at_once")
        ),
        attention_blocks=_blocks(step.held.get(BLOCKS), f"{step.where}: {BLOCKS}"),
    )


def _blocks(held: object, where: str) -> AttentionBlocks:
    if held is None:
        return AttentionBlocks()
    blocks = _Object(held, where, tuple(asdict(AttentionBlocks())))
    values: dict[str, Any] = {
        name: blocks.flag(name) if isinstance(usual, bool) else blocks.lanes(name, usual)
        for name, usual in asdict(AttentionBlocks()).items()
    }
    return AttentionBlocks(**values)


class _Object:
    """An object of a plan whose keys are all known; `where` names it in messages."""

    def __init__(self, held: object, where: str, known: tuple[str, ...]) -> None:
        if not isinstance(held, Mapping):
            raise BadInput(f"{where} is {shorten(held)}; it must be an object")
        for key in held:
            if key not in known:
                raise UnknownName(f"key of {where}:", str(key), known)
        self.held, self.where = held, where

    def whole(self, key: str, usual: int, most: int) -> int:
        value = self.held.get(key, usual)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._refuse(key, "a whole number of at least 1")
        if value > most:
            self._refuse(key, f"at most {most:,}")
        return value

    def lanes(self, key: str, usual: int) -> int:
        value = self.whole(key, usual, MOST_BLOCK)
        if value % LANES:
            below, above = value // LANES * LANES, -(-value // LANES) * LANES
            nearest = f"{below} or {above}" if below else f"{above}"
            self._refuse(key, f"a multiple of {LANES}, such as {nearest}")
        return value

    def flag(self, key: str) -> bool:
        value = self.held.get(key, False)
        if not isinstance(value, bool):
            self._refuse(key, "true or false")
        return value

    def _refuse(self, key: str, wanted: str) -> Never:
        raise BadInput(f"{self.where}: {key} is {shorten(self.held[key])}; it must be {wanted}")
