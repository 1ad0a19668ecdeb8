"""Checkpoints of a run: the one class that a trainer, an importer or an exporter uses.

Built on orbax's `CheckpointManager` and `PyTreeCheckpointHandler`, its long-kept API; its newer
`v1` still lives under `experimental` in 0.12. The manager brings the asynchronous write, the
barriers between hosts, the commit by rename and the deletion of old steps. Reading goes to the
handler directly: it has no barriers, so that a process that meets a damaged file can tell the
others (a vote) instead of leaving them waiting for it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jax

from muster.errors import BadInput
from muster.training.checkpoints import folder as files
from muster.training.checkpoints.processes import first_fault
from muster.training.checkpoints.restoring import Reader, Restored
from muster.training.checkpoints.saving import Positions, SaveOptions, Saver, Tree
from muster.training.params import Params


class Checkpoints:
    """The checkpoints under one folder, for a trainer that saves or for one that only reads.

    Every process of a job makes one and calls the same methods in the same order. Only folders of
    a file system are served (local disk, NFS, a mounted bucket), for one job that writes at a time.

    Args:
        folder: RUN_DIR/checkpoints.
        vocab_size: real rows of the vocabulary. Where the checkpoint has the same, rows of zeros
            beyond it may differ in number: a layout pads V to a multiple of its tensor ways.
        keep_last: newest steps to keep; the older are deleted after the next one is committed.
        keep_every: also keep every step that is a multiple of this.
        asynchronous: whether `save` returns while files are still being written.
        checksums: whether each file's CRC-32 is recorded. Taking it reads back what was written,
            on process 0 in the background.

    Raises:
        BadInput: the folder is an address such as gs://bucket/run, or has a backslash in its path.
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
        files.check_no_address(folder)
        self.folder = folder.absolute()
        files.check_no_backslash(self.folder)
        self._reader = Reader(self.folder, vocab_size)
        options = SaveOptions(
            vocab_size=vocab_size,
            keep_last=keep_last,
            keep_every=keep_every,
            asynchronous=asynchronous,
            checksums=checksums,
        )
        self._saver = Saver(self.folder, options, self._reader.steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_room(self, bytes_needed: int) -> None:
        """Make sure before training that two checkpoints of this size can be written.

        Args:
            bytes_needed: bytes of one checkpoint on all hosts, see `bytes_of`.

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
        return self._reader.steps()

    def found(self) -> bool:
        """Whether there is a step at all, whole or not; its files are not looked at.

        True where `latest` is None says that all are damaged: no reason to start afresh.

        Raises:
            BadInput: the folder cannot be read.
        """
        return bool(files.step_folders(self.folder))

    def latest(self) -> int | None:
        """The newest committed step; its files are not looked at."""
        return max(self.steps(), default=None)

    def shapes(self, step: int | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a step's weights, from its metadata alone.

        Raises:
            BadInput: there is no such step, or it is damaged.
        """
        return self._reader.shapes(self._reader.existing(step))

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """What was recorded beside the arrays of a step: plan, config, options, versions.

        Args:
            step: the step; None for the newest of which this record is whole.

        Raises:
            BadInput: there is no such step, or it is damaged.
        """
        return self._reader.meta(step)

    def newest_whole(self, step: int | None = None) -> tuple[int, tuple[str, ...]]:
        """The step that `restore` would take for its weights, with no array read.

        Returns:
            The step, and one line for each newer checkpoint that cannot be used.

        Raises:
            BadInput: there is no such step, or none is whole.
        """
        return self._reader.newest_whole(step)

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
        After `restore`, the first save sets aside (renames) the steps that are later than the
        restored one, damaged or given up.

        Args:
            step: steps trained.
            params: weights by name.
            meta: plan, config, options and versions, as JSON has them.
            optimizer: optimizer state; without it, the checkpoint holds weights alone.
            data: [rows] int64, position of every row's stream, the same on all hosts.

        Raises:
            SaveFailed: this save, or the one before in the background, could not be written.
                Saving may go on: the next save starts afresh.
            BadInput: the folder already holds this step or later ones of another run.
        """
        self._saver.save(step, params=params, meta=meta, optimizer=optimizer, data=data)

    def wait(self) -> None:
        """Wait until the last save is on disk.

        Raises:
            SaveFailed: it could not be written; the steps before are untouched.
        """
        self._saver.wait()

    def close(self) -> None:
        """Wait until the last save is on disk and let go of orbax's threads.

        Raises:
            SaveFailed: it could not be written; the steps before are untouched.
        """
        self._saver.close()

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
            SaveFailed: the save before could not be written.
        """
        self.wait()
        restored = self._reader.restore(params, optimizer, step=step, part=part)
        self._saver.go_on_from(restored.step)
        return restored
