"""Checkpoints: what is saved, where, how damage is found, and how it comes back on any mesh."""

from muster.training.checkpoints.arrays import bytes_of
from muster.training.checkpoints.folder import SaveFailed, removed_if_refused
from muster.training.checkpoints.restoring import Restored
from muster.training.checkpoints.saving import Positions
from muster.training.checkpoints.store import Checkpoints

__all__ = ["Checkpoints", "Positions", "Restored", "SaveFailed", "bytes_of", "removed_if_refused"]
