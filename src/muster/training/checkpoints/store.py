"""Checkpoints of a run: saved in the background, restored onto whatever mesh there is.

Built on orbax's `CheckpointManager` and `PyTreeCheckpointHandler`, its long-kept API; its newer
`v1` still lives under `experimental` in 0.12. The manager brings the asynchronous write, the
barriers between hosts, the commit by rename and the deletion of old steps. Reading goes to the
handler directly: it has no barriers, so that a process that meets a damaged file can tell the
others (a vote) instead of leaving them waiting for it.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from muster.errors import BadInput
from muster.training.checkpoints import arrays as reading
from muster.training.checkpoints import folder as files
from muster.training.checkpoints.folder import DATA, META, OPTIMIZER, PARAMS, Damaged, SaveFailed
from muster.training.checkpoints.processes import first_fault, from_first
from muster.training.params import Params
from muster.units import format_bytes

type Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
type Tree = Any  # a pytree of arrays, or of their abstract forms

JSON_FILE = "metadata"  # what orbax's JSON handler calls its file
JSON_KEY = "position"


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
        casts: one line for each change of dtype; for the caller to print.
    """

    step: int
    params: Params
    optimizer: Tree
    data: Positions | None
    meta: dict[str, Any]
    skipped: tuple[str, ...]
    casts: tuple[str, ...]


class Checkpoints:
    """The checkpoints under one folder, for a trainer that saves or for one that only reads.

    Every process of a job makes one and calls the same methods in the same order. Only folders of
    a file system are served (local disk, NFS, a mounted bucket), one job at a time.

    Args:
        folder: RUN_DIR/checkpoints.
        vocab_size: real rows of the vocabulary. Where the checkpoint has the same, rows of zeros
            beyond it may differ in number: a layout pads V to a multiple of its tensor ways.
        keep_last: newest steps to keep; the older are deleted after the next one is committed.
        keep_every: also keep every step that is a multiple of this.
        asynchronous: whether `save` returns while files are still being written.
        checksums: whether each file's CRC-32 is recorded and compared. Taking them reads back
            what was written, on process 0 in the background.
    """

    def __init__(
        self,
        folder: Path,
        *,
        vocab_size: int | None = None,
        keep_last: int = 3,
        keep_every: int | None = None,
        asynchronous: bool = True,
        checksums: bool = True,
    ) -> None:
        assert keep_last >= 1
        self.folder = folder.absolute()
        self.vocab_size = vocab_size
        self.keep_last = keep_last
        self.keep_every = keep_every
        self.asynchronous = asynchronous
        self.checksums = checksums
        self._manager: Any = None  # orbax.checkpoint.CheckpointManager, made at the first save
        self._saving: tuple[int, tuple[str, ...], int] | None = None  # step, items, bytes
        self._restored_step: int | None = None
        self._last_saved: int | None = None
        self._checked: set[tuple[int, str]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_room(self, bytes_needed: int) -> None:
        """Make sure before training that two checkpoints of this size can be written.

        Raises:
            BadInput: it is no folder, cannot be written to, or its disk has too little space.
        """
        fault = ""
        if jax.process_index() == 0:
            try:
                files.check_room(self.folder, bytes_needed)
            except BadInput as error:
                fault = str(error)
        if fault := first_fault(fault):
            raise BadInput(fault)

    def steps(self) -> list[int]:
        """Committed steps, rising; one whose record is unreadable is left out."""
        return [step for step in files.step_folders(self.folder) if self._is_committed(step)]

    def latest(self) -> int | None:
        """The newest committed step."""
        return max(self.steps(), default=None)

    def shapes(self, step: int | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a step's weights, from its metadata alone.

        Raises:
            BadInput: there is no such step, or it is damaged.
        """
        step = self._existing(step)
        try:
            stored = reading.stored_arrays(self.folder / str(step) / PARAMS)
        except Damaged as error:
            raise BadInput(f"checkpoint {self.folder / str(step)} is damaged: {error}") from error
        return {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in stored.items()
        }

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """What was recorded beside the arrays of a step: plan, config, options, versions.

        Raises:
            BadInput: there is no such step, or it is damaged.
        """
        step = self._existing(step)
        try:
            manifest = files.read_manifest(self.folder / str(step))
            files.check_files(self.folder / str(step), manifest, [META])
            return self._read_json(step, META)
        except Damaged as error:
            raise BadInput(f"checkpoint {self.folder / str(step)} is damaged: {error}") from error

    # Saving

    def save(
        self,
        step: int,
        *,
        params: Params,
        meta: Mapping[str, Any],
        optimizer: Tree = None,
        data: Positions | None = None,
    ) -> None:
        """Save one step; returns when the arrays are on the host, before they are on disk.

        The arrays may be donated as soon as it returns. Where the save before is still being
        written, waits for it first. A step that this object has just saved is not saved again.

        Args:
            step: steps trained.
            params: weights by name.
            meta: plan, config, options and versions, as JSON has them.
            optimizer: optimizer state; without it, the checkpoint holds weights alone.
            data: [rows] int64, position of every row's stream, the same on all hosts.

        Raises:
            SaveFailed: this save, or the one before in the background, could not be written.
            BadInput: the folder already holds this step or later ones of another run.
        """
        if step == self._last_saved:
            return
        import orbax.checkpoint as ocp  # noqa: PLC0415 -- a second of imports

        self.wait()
        if self._manager is None:
            self._make_room_for(step)
            self._manager = self._new_manager()
        trees = {PARAMS: dict(params)}
        items = [PARAMS, META]
        if optimizer is not None:
            items.append(OPTIMIZER)
            if state := reading.flatten(optimizer):
                trees[OPTIMIZER] = state
        parts = {
            item: ocp.args.PyTreeSave(tree, save_args=reading.save_args(tree))
            for item, tree in trees.items()
        }
        parts[META] = ocp.args.JsonSave(dict(meta))
        if data is not None:
            items.append(DATA)
            parts[DATA] = ocp.args.JsonSave({JSON_KEY: np.asarray(data, np.int64).tolist()})
        self._saving = (step, tuple(items), reading.bytes_of(trees))
        try:
            self._manager.save(step, args=ocp.args.Composite(**parts), force=True)
        except Exception as error:
            raise self._failed(error) from error
        self._last_saved = step
        if not self.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is on disk.

        Raises:
            SaveFailed: it could not be written; the steps before are untouched.
        """
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Wait until the last save is on disk and let go of orbax's threads.

        Raises:
            SaveFailed: it could not be written; the steps before are untouched.
        """
        self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def _new_manager(self) -> Any:
        import orbax.checkpoint as ocp  # noqa: PLC0415
        from orbax.checkpoint import checkpoint_managers as policies  # noqa: PLC0415

        silence_orbax()
        kept = [policies.LatestN(self.keep_last)]
        if self.keep_every is not None:
            kept.append(policies.EveryNSteps(self.keep_every))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept),
            cleanup_tmp_directories=True,
            lightweight_initialize=True,  # an unreadable old step must not stop a new one
            async_options=ocp.AsyncOptions(post_finalization_callback=self._before_commit),
        )
        return ocp.CheckpointManager(self.folder, options=options)

    def _before_commit(self) -> None:
        """Add our record to a step that is complete but has not got its name yet (process 0)."""
        assert self._saving is not None
        step, items, _ = self._saving
        (unfinished,) = self.folder.glob(f"{step}{files.UNFINISHED}*")
        files.write_manifest(
            unfinished,
            step=step,
            items=items,
            vocab_size=self.vocab_size,
            checksums=self.checksums,
        )

    def _make_room_for(self, step: int) -> None:
        """Before the first save: set aside what the run left behind by going back to a step."""
        fault = ""
        if jax.process_index() == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                present = files.step_folders(self.folder)
                if self._restored_step is not None:
                    for later in present:
                        if later > self._restored_step:
                            files.set_aside(self.folder, later)
                elif present and step <= present[-1]:
                    fault = (
                        f"{self.folder} already holds step {present[-1]};"
                        " resume that run or name another folder"
                    )
            except OSError as error:
                fault = f"cannot save checkpoints in {self.folder}: {error.strerror}"
        if fault := first_fault(fault):
            raise BadInput(fault)

    def _failed(self, error: Exception) -> SaveFailed:
        """One line about a save that did not work, and a fresh start for the next one."""
        assert self._saving is not None
        step, _, needed = self._saving
        manager, self._manager, self._last_saved = self._manager, None, None
        try:
            manager.close()
        except Exception:
            logging.getLogger(__name__).debug("closing after a failed save", exc_info=True)
        # What this run has saved so far is its own, also the step before this one.
        self._restored_step = max(self.steps(), default=-1)
        kept = f"step {self._restored_step} is kept" if self._restored_step >= 0 else "none before"
        return SaveFailed(
            f"could not save step {step} in {self.folder} (up to {format_bytes(needed)} needed):"
            f" {reading.first_line(error)}; {kept}"
        )

    # Restoring

    def restore(
        self,
        params: Mapping[str, jax.ShapeDtypeStruct],
        optimizer: Tree = None,
        *,
        step: int | None = None,
        part: bool = False,
    ) -> Restored:
        """Restore the newest checkpoint that is whole, or the one asked for.

        Arrays are read straight onto the shardings of the abstract ones (a leaf without one goes
        to this process's first device), whatever mesh or number of processes they were saved
        from. Dtypes follow the abstract ones too.

        Args:
            params: abstract weights by name.
            optimizer: abstract optimizer state; None to leave it unread.
            step: the step to restore; None for the newest that is whole.
            part: whether `params` may name fewer weights than the checkpoint has.

        Raises:
            BadInput: there is none, none is whole, or it is of another model.
        """
        silence_orbax()
        items = (PARAMS, DATA, META) if optimizer is None else (PARAMS, OPTIMIZER, DATA, META)
        skipped: list[str] = []
        for candidate in self._candidates(step):
            fault, restored = "", None
            try:
                files_fault = self._check(candidate, items)
            except Damaged as error:
                files_fault = str(error)
            fault = first_fault(files_fault)
            if not fault:
                try:
                    restored = self._read(candidate, params, optimizer, part=part)
                except Damaged as error:
                    fault = str(error)
                fault = first_fault(fault)
            if not fault:
                assert restored is not None
                self._restored_step = candidate
                cut = [] if step is not None else self._cut_short()
                return _with_skipped(restored, (*skipped, *cut))
            skipped.append(f"checkpoint {self.folder / str(candidate)} is damaged: {fault}")
        if step is not None:
            raise BadInput(f"{skipped[0]}; whole ones: {reading.named_steps(self.steps())}")
        raise BadInput(f"no checkpoint in {self.folder} can be used: {'; '.join(skipped)}")

    def _candidates(self, step: int | None) -> list[int]:
        """Steps to try, the newest first; as process 0 sees them, which others may not yet."""
        present: list[int] = json.loads(from_first(json.dumps(files.step_folders(self.folder))))
        if not present:
            raise BadInput(f"there is no checkpoint in {self.folder}")
        if step is None:
            return present[::-1]
        if step not in present:
            raise BadInput(
                f"there is no step {step} in {self.folder}; there is {reading.named_steps(present)}"
            )
        return [step]

    def _existing(self, step: int | None) -> int:
        present = self.steps()
        if step is None and present:
            return present[-1]
        if step is None:
            raise BadInput(f"there is no checkpoint in {self.folder}")
        if step not in present:
            raise BadInput(
                f"there is no step {step} in {self.folder}; there is {reading.named_steps(present)}"
            )
        return step

    def _is_committed(self, step: int) -> bool:
        try:
            files.read_manifest(self.folder / str(step))
        except Damaged:
            return False
        return True

    def _check(self, step: int, items: tuple[str, ...]) -> str:
        """Compare the files of a step with its record, once; each process sums up its share."""
        folder = self.folder / str(step)
        manifest = files.read_manifest(folder)
        new = [item for item in items if (step, item) not in self._checked]
        files.check_files(folder, manifest, new, share=jax.process_index(), of=jax.process_count())
        self._checked.update((step, item) for item in new)
        return ""

    def _read(
        self,
        step: int,
        params: Mapping[str, jax.ShapeDtypeStruct],
        optimizer: Tree,
        *,
        part: bool,
    ) -> Restored:
        folder = self.folder / str(step)
        manifest = files.read_manifest(folder)
        self._check_vocabulary(folder, manifest.vocab_size)
        wanted: dict[str, Mapping[str, jax.ShapeDtypeStruct]] = {PARAMS: params}
        if optimizer is not None and OPTIMIZER in manifest.items:
            wanted[OPTIMIZER] = reading.flatten(optimizer)
        stored = {
            item: reading.stored_arrays(folder / item) if (folder / item).is_dir() else {}
            for item in wanted
        }
        for item, named in wanted.items():
            what = f"checkpoint {folder}" if item == PARAMS else f"the optimizer state in {folder}"
            reading.check_same_model(
                stored[item],
                named,
                vocab_size=manifest.vocab_size if self.vocab_size is not None else None,
                what=what,
                part=part and item == PARAMS,
            )
        read = {
            item: reading.read_arrays(folder / item, stored[item], named)
            for item, named in wanted.items()
        }
        state = None
        if OPTIMIZER in read:
            leaves = [read[OPTIMIZER][name] for name in wanted[OPTIMIZER]]
            state = jax.tree.unflatten(jax.tree.structure(optimizer), leaves)
        data = self._read_json(step, DATA) if DATA in manifest.items else None
        return Restored(
            step=manifest.step,
            params=read[PARAMS],
            optimizer=state,
            data=None if data is None else np.asarray(data[JSON_KEY], np.int64),
            meta=self._read_json(step, META),
            skipped=(),
            casts=tuple(
                line
                for item, named in wanted.items()
                for line in reading.casts(stored[item], named, item)
            ),
        )

    def _check_vocabulary(self, folder: Path, saved: int | None) -> None:
        if None not in (saved, self.vocab_size) and saved != self.vocab_size:
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


def _with_skipped(restored: Restored, skipped: tuple[str, ...]) -> Restored:
    return Restored(**{**vars(restored), "skipped": skipped})


def silence_orbax() -> None:
    """Drop orbax's log records, which come by the dozen; what matters it raises, and we tell."""
    from absl import logging as absl_logging  # noqa: PLC0415 -- comes with orbax

    logger = absl_logging.get_absl_logger()
    if _not_from_orbax not in logger.filters:
        logger.addFilter(_not_from_orbax)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname.replace("\\", "/")
