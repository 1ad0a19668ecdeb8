"""In MaxText's Python: compile one step and keep the text of its program.

ENV/bin/python -P child.py TRAIN_COMPILE TEXT.hlo.txt.gz FACTS.json SETTING=VALUE ...
"""

import gzip
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn


def child(arguments: Sequence[str]) -> None:
    """Compile, and end the process."""
    module, text, left, *settings = arguments
    train_compile = import_module(module)
    spec = find_spec(module.partition(".")[0])
    assert spec is not None
    assert spec.origin is not None
    compiles = train_compile.jit_and_compile

    def and_keep(func: Any, args: Any, kwargs: Any, mesh: Any, *others: Any) -> NoReturn:
        compiled = compiles(func, args, kwargs, mesh, *others)
        with gzip.open(text, "wt") as file:
            file.write(compiled.as_text())
        places = [[*device.coords, device.core_on_chip, 0] for device in mesh.devices.flat]
        versions = {name: version(name) for name in ("maxtext", "jax", "libtpu")}
        Path(left).write_text(json.dumps({"versions": versions, "places": places}))
        sys.exit(0)  # what else it would tell of the program takes longer than to compile it

    vars(train_compile)["jit_and_compile"] = and_keep
    base = Path(spec.origin).parent / "configs" / "base.yml"
    train_compile.main(["train_compile", str(base), *settings])


if __name__ == "__main__":
    child(sys.argv[1:])
