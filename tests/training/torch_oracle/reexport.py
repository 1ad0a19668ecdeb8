"""Import each folder into muster and export it again: `python reexport.py FROM TO [FROM TO ...]`.

Every other model goes through arrays whose vocabulary is padded, as one with tensor ways would.
"""

import sys
from pathlib import Path

from muster.models.hf_config import architecture_from_config, read_config
from muster.training.huggingface import export_folder, import_folder, tokenizer_files

MAX_SHARD_BYTES = 20_000  # so that small models come in several files


def main() -> None:
    folders = [Path(argument) for argument in sys.argv[1:]]
    for number, (source, target) in enumerate(zip(folders[::2], folders[1::2], strict=True)):
        config = read_config(source)
        model = architecture_from_config(config, name=source.name)
        padded = model.vocab_size + 58 if number % 2 else None
        dtype = str(config["dtype"])
        params = import_folder(source, model, dtype=dtype, padded_vocab=padded)
        export_folder(
            params,
            model,
            target,
            dtype=dtype,
            max_shard_bytes=MAX_SHARD_BYTES,
            tokenizer_files=tokenizer_files(source),
        )


if __name__ == "__main__":
    main()
