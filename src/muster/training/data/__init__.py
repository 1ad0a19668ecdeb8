"""From files of text to batches of token rows.

open_stream(config, vocab_size) -> Stream of Batch
"""

from muster.training.data.config import DataConfig
from muster.training.data.sources import Description
from muster.training.data.stream import Stream, open_stream

__all__ = ["DataConfig", "Description", "Stream", "open_stream"]
