"""Checkpoints of Hugging Face transformers: read into our weights, and written from them.

Both ways go tensor by tensor, so that the memory beside the weights is that of one tensor twice.
Names and layouts are those of `muster.sharding.hf_names`.
"""

from muster.training.huggingface.exporting import export_folder
from muster.training.huggingface.folder import tokenizer_files
from muster.training.huggingface.importing import import_folder

__all__ = ["export_folder", "import_folder", "tokenizer_files"]
