"""Writing checkpoints in the background, and going on after a write that failed."""

import gc
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from muster.errors import BadInput
from muster.training.checkpoints import folder as files
from muster.training.checkpoints.arrays import bytes_of, flatten, reason, save_args
from muster.training.checkpoints.folder import DATA, META, OPTIMIZER, PARAMS, SaveFailed
from muster.training.checkpoints.processes import first_fault
from muster.training.checkpoints.quiet import silence_orbax
from muster.training.params import Params
from muster.units import format_bytes

type Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
type Tree = Any  # a pytree of arrays, or of their abstract forms

DATA_KEY = "position"


@dataclass(frozen=True, kw_only=True)
class SaveOptions:
    """How a run's checkpoints are written; see `Checkpoints` for each.

    Attributes:
        vocab_size: real rows of the vocabulary, if known.
        keep_last: newest steps to keep.
        keep_every: also keep multiples of this step.
        asynchronous: whether a save returns while files are still being written.
        checksums: whether each file's CRC-32 is recorded.
    """

    vocab_size: int | None
    keep_last: int
    keep_every: int | None
    asynchronous: bool
    checksums: bool


@dataclass(frozen=True, kw_only=True)
class _Save:
    """The save under way: its step, the items in it and the bytes of its arrays."""

    step: int
    items: tuple[str, ...]
    bytes: int


class Saver:
    """Writes steps into one folder; every process of a job makes the same calls.

    Args:
        folder: RUN_DIR/checkpoints.
        options: how they are written.
        committed_steps: the steps that are there and readable.
    """

    def __init__(
        self, folder: Path, options: SaveOptions, committed_steps: Callable[[], list[int]]
    ) -> None:
        self.folder = folder
        self.options = options
        self._committed_steps = committed_steps
        self._goes_on_from: int | None = None  # the step that this run restored or saved last
        self._manager: Any = None  # orbax.checkpoint.CheckpointManager, made at the first save
        self._save: _Save | None = None
        self._last_started: int | None = None

    def save(
        self,
        step: int,
        *,
        params: Params,
        meta: Mapping[str, Any],
        optimizer: Tree,
        data: Positions | None,
    ) -> None:
        """Copy the arrays to the host and start to write them; see `Checkpoints.save`."""
        if step == self._last_started:
            return
        import orbax.checkpoint as ocp  # noqa: PLC0415 -- a second of imports

        self.wait()
        if self._manager is None:
            self._make_way_for(step)
            self._manager = self._new_manager()
        items, trees, parts = [PARAMS, META], {PARAMS: dict(params)}, {}
        if optimizer is not None:
            items.append(OPTIMIZER)
            if state := flatten(optimizer):
                trees[OPTIMIZER] = state
        for item, tree in trees.items():
            parts[item] = ocp.args.PyTreeSave(tree, save_args=save_args(tree))
        parts[META] = ocp.args.JsonSave(dict(meta))
        if data is not None:
            items.append(DATA)
            parts[DATA] = ocp.args.JsonSave({DATA_KEY: np.asarray(data, np.int64).tolist()})
        self._save = _Save(step=step, items=tuple(items), bytes=bytes_of(trees))
        manager = self._manager
        self._attempt(lambda: manager.save(step, args=ocp.args.Composite(**parts), force=True))
        self._last_started = step
        if not self.options.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is on disk.

        Raises:
            SaveFailed: it could not be written; the steps before are untouched.
        """
        if self._manager is not None:
            self._attempt(self._manager.wait_until_finished)

    def close(self) -> None:
        """Wait, and let go of orbax's threads."""
        self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None
            self._goes_on_from = self._last_started

    def go_on_from(self, step: int) -> None:
        """Let the next save set aside all steps after this one, which was just restored.

        Raises:
            SaveFailed: the last save could not be written.
        """
        self.close()
        self._goes_on_from = step
        self._last_started = None

    def _new_manager(self) -> Any:
        import orbax.checkpoint as ocp  # noqa: PLC0415
        from orbax.checkpoint import checkpoint_managers as policies  # noqa: PLC0415

        silence_orbax()
        kept: list[Any] = [policies.LatestN(self.options.keep_last)]
        if self.options.keep_every is not None:
            kept.append(policies.EveryNSteps(self.options.keep_every))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept),
            cleanup_tmp_directories=True,
            lightweight_initialize=True,  # an unreadable old step must not stop a new one
            async_options=ocp.AsyncOptions(post_finalization_callback=self._before_commit),
        )
        return ocp.CheckpointManager(self.folder, options=options)

    def _before_commit(self) -> None:
        """Add our record to a step that is complete but has not got its name yet (process 0)."""
        save = self._save
        assert save is not None
        (unfinished,) = self.folder.glob(f"{save.step}{files.UNFINISHED}*")
        files.write_manifest(
            unfinished,
            step=save.step,
            items=save.items,
            vocab_size=self.options.vocab_size,
            checksums=self.options.checksums,
        )

    def _make_way_for(self, step: int) -> None:
        """Before the first save: set aside what the run left behind by going back to a step."""
        fault = ""
        if jax.process_index() == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                present = files.step_folders(self.folder)
                if self._goes_on_from is not None:
                    for later in present:
                        if later > self._goes_on_from:
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

    def _attempt(self, action: Callable[[], object]) -> None:
        """Do what may meet an error of the write, and tell it as one of ours."""
        failure = None
        try:
            action()
        except Exception as error:
            failure = self._failed(error)
        if failure is not None:
            # Outside of the handler, so that the error and the abandoned writes in its frames are
            # freed now, where `silence_orbax` keeps them quiet, and not as the process ends.
            gc.collect()
            raise failure

    def _failed(self, error: Exception) -> SaveFailed:
        """One line about a save that did not work, and a fresh start for the next one."""
        save, manager = self._save, self._manager
        assert save is not None
        self._manager = self._last_started = None
        try:
            manager.close()
        except Exception:  # the first error is the one to tell
            logging.getLogger(__name__).debug("closing after a failed save", exc_info=True)
        # Give the space back, as far as nothing writes there any more; the next save does the rest.
        if jax.process_count() == 1:
            for name in files.unfinished(self.folder):
                shutil.rmtree(self.folder / name, ignore_errors=True)
        kept = self._committed_steps()
        self._goes_on_from = kept[-1] if kept else -1
        free = shutil.disk_usage(self.folder).free
        return SaveFailed(
            f"could not save step {save.step} in {self.folder}: {reason(error)} (it takes up to"
            f" {format_bytes(save.bytes)}, {format_bytes(free)} are free);"
            f" {f'step {kept[-1]} is kept' if kept else 'there is none before it'}"
        )
