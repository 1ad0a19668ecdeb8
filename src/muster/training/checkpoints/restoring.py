"""Reading checkpoints: the newest that is whole, onto whatever mesh there is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from muster.errors import BadInput
from muster.training.checkpoints import arrays as reading
from muster.training.checkpoints import folder as files
from muster.training.checkpoints.folder import DATA, META, OPTIMIZER, PARAMS, Damaged
from muster.training.checkpoints.processes import first_fault, from_first
from muster.training.checkpoints.quiet import silence_orbax
from muster.training.checkpoints.saving import DATA_KEY, Positions, Tree
from muster.training.params import Params

WEIGHTS_ALONE = (PARAMS, DATA, META)  # what is read of a step but its optimizer state
JSON_FILE = "metadata"  # what orbax's JSON handler calls its file


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a checkpoint held, on the shardings that were asked for.

    Attributes:
        step: steps trained when it was saved.
        params: weights by name.
        optimizer: optimizer state in the structure asked for; None where none was asked for or
            the checkpoint holds weights alone (imported ones do).
        data: [rows] int64, position of every row's stream; None where it was not saved.
        meta: plan, config, options and versions as they were saved.
        skipped: one line for each newer checkpoint that could not be used, and for each save
            that was cut short; for the caller to print.
        damaged: those lines alone that are of checkpoints.
        casts: one line for each change of dtype; for the caller to print.
    """

    step: int
    params: Params
    optimizer: Tree
    data: Positions | None
    meta: dict[str, Any]
    skipped: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    casts: tuple[str, ...] = ()


class Reader:
    """Reads the steps of one folder; every process of a job makes the same calls.

    Args:
        folder: RUN_DIR/checkpoints.
        vocab_size: real rows of the vocabulary, if known.
    """

    def __init__(self, folder: Path, vocab_size: int | None) -> None:
        self.folder = folder
        self.vocab_size = vocab_size
        self._checked: set[tuple[int, str]] = set()  # (step, item) whose files were whole

    def steps(self) -> list[int]:
        """Committed steps with a readable record, rising."""
        return [step for step in files.step_folders(self.folder) if self._is_committed(step)]

    def _is_committed(self, step: int) -> bool:
        try:
            files.read_manifest(self.folder / str(step))
        except Damaged:
            return False
        return True

    def existing(self, step: int | None) -> int:
        """The step asked for, or the newest.

        Raises:
            BadInput: there is no such step.
        """
        present = self.steps()
        if not present:
            raise BadInput(f"there is no checkpoint in {self.folder}")
        if step is None:
            return present[-1]
        if step not in present:
            raise self._no_such(step, present)
        return step

    def _no_such(self, step: int, present: list[int]) -> BadInput:
        shown = ", ".join(str(other) for other in present)
        return BadInput(f"there is no step {step} in {self.folder}; there is {shown}")

    def _is_damaged(self, step: int, why: object) -> str:
        return f"checkpoint {self.folder / str(step)} is damaged: {why}"

    def shapes(self, step: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a step's weights, from its metadata alone."""
        try:
            stored = reading.stored_arrays(self.folder / str(step) / PARAMS)
        except Damaged as error:
            raise BadInput(self._is_damaged(step, error)) from error
        return {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in stored.items()
        }

    def meta(self, step: int | None) -> dict[str, Any]:
        """What was recorded beside the arrays of a step, or of the newest that still has it."""
        why: list[str] = []
        for candidate in self._candidates(step):
            folder = self.folder / str(candidate)
            try:
                files.check_files(folder, files.read_manifest(folder), [META])
                return self._read_json(candidate, META)
            except Damaged as error:
                why.append(self._is_damaged(candidate, error))
        raise self._none_usable(step, why)

    def restore(
        self,
        params: reading.Named,
        optimizer: Tree,
        *,
        step: int | None,
        part: bool,
    ) -> Restored:
        """Restore the newest step that is whole, or the one asked for; see `Checkpoints.restore`.

        Each attempt has two parts, and after each all processes agree on how it went: files are
        compared with the record (a share of the checksums in each process), then arrays are read.
        """
        silence_orbax()
        skipped: list[str] = []
        for candidate in self._candidates(step):
            fault, restored = self._attempt(candidate, params, optimizer, part=part)
            if restored is not None:
                cut_short = self._cut_short() if step is None else []
                return replace(restored, skipped=(*skipped, *cut_short), damaged=tuple(skipped))
            skipped.append(self._is_damaged(candidate, fault))
        raise self._none_usable(step, skipped)

    def newest_whole(self, step: int | None) -> tuple[int, tuple[str, ...]]:
        """The newest step whose weights are whole, or the one asked for, and what is damaged."""
        skipped: list[str] = []
        for candidate in self._candidates(step):
            fault = first_fault(self._fault_of_files(candidate, WEIGHTS_ALONE))
            if not fault:
                return candidate, tuple(skipped)
            skipped.append(self._is_damaged(candidate, fault))
        raise self._none_usable(step, skipped)

    def _none_usable(self, step: int | None, why: list[str]) -> BadInput:
        if step is not None:
            return BadInput(why[0])
        return BadInput(f"no checkpoint in {self.folder} can be used; {'; '.join(why)}")

    def _candidates(self, step: int | None) -> list[int]:
        """Steps to try, the newest first, as process 0 sees them: others may not see them yet."""
        present: list[int] = json.loads(from_first(json.dumps(files.step_folders(self.folder))))
        if not present:
            raise BadInput(f"there is no checkpoint in {self.folder}")
        if step is None:
            return present[::-1]
        if step not in present:
            raise self._no_such(step, present)
        return [step]

    def _attempt(
        self, step: int, params: reading.Named, optimizer: Tree, *, part: bool
    ) -> tuple[str, Restored | None]:
        """What is wrong with a step, or what it holds."""
        items = WEIGHTS_ALONE if optimizer is None else (*WEIGHTS_ALONE, OPTIMIZER)
        if fault := first_fault(self._fault_of_files(step, items)):
            return fault, None
        fault, restored = "", None
        try:
            restored = self._read(step, params, optimizer, part=part)
        except Damaged as error:
            fault = str(error)
        fault = first_fault(fault)
        return fault, None if fault else restored

    def _fault_of_files(self, step: int, items: tuple[str, ...]) -> str:
        """Compare the files of a step with its record, once in the life of this object."""
        folder = self.folder / str(step)
        new = [item for item in items if (step, item) not in self._checked]
        try:
            manifest = files.read_manifest(folder)
            files.check_files(
                folder, manifest, new, share=jax.process_index(), of=jax.process_count()
            )
        except Damaged as error:
            return str(error)
        self._checked.update((step, item) for item in new)
        return ""

    def _read(self, step: int, params: reading.Named, optimizer: Tree, *, part: bool) -> Restored:
        folder = self.folder / str(step)
        manifest = files.read_manifest(folder)
        self._check_vocabulary(folder, manifest.vocab_size)
        wanted: dict[str, reading.Named] = {PARAMS: params}
        if optimizer is not None and OPTIMIZER in manifest.items:
            wanted[OPTIMIZER] = reading.flatten(optimizer)
        stored = {
            item: reading.stored_arrays(folder / item) if (folder / item).is_dir() else {}
            for item in wanted
        }
        for item, named in wanted.items():
            reading.check_same(
                stored[item],
                named,
                vocab_size=self.vocab_size and manifest.vocab_size,
                what=f"checkpoint {folder}" if item == PARAMS else f"optimizer state of {folder}",
                kind="model" if item == PARAMS else "optimizer",
                part=part and item == PARAMS,
            )
        read = {
            item: reading.read_arrays(folder / item, stored[item], named)
            for item, named in wanted.items()
        }
        data = self._read_json(step, DATA)[DATA_KEY] if DATA in manifest.items else None
        return Restored(
            step=manifest.step,
            params=read[PARAMS],
            optimizer=_like(optimizer, read.get(OPTIMIZER)),
            data=None if data is None else np.asarray(data, np.int64),
            meta=self._read_json(step, META),
            casts=tuple(
                line
                for item, named in wanted.items()
                for line in reading.casts(stored[item], named, item)
            ),
        )

    def _check_vocabulary(self, folder: Path, saved: int | None) -> None:
        if saved and self.vocab_size and saved != self.vocab_size:
            raise BadInput(
                f"checkpoint {folder} is of another model:"
                f" its vocabulary has {saved} words, this one {self.vocab_size}"
            )

    def _read_json(self, step: int, item: str) -> dict[str, Any]:
        try:
            text = (self.folder / str(step) / item / JSON_FILE).read_text()
            value: dict[str, Any] = json.loads(text)
        except (OSError, ValueError) as error:
            raise Damaged(f"{item} cannot be read ({type(error).__name__})") from error
        return value

    def _cut_short(self) -> list[str]:
        names = json.loads(from_first(json.dumps(files.unfinished(self.folder))))
        return [
            f"{self.folder / name} is a save that was cut short; the next save removes it"
            for name in names
        ]


def _like(tree: Tree, arrays: Mapping[str, jax.Array] | None) -> Tree:
    """Arrays by path back in the structure of a tree."""
    if arrays is None:
        return None
    leaves = [arrays[name] for name in reading.flatten(tree)]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)
