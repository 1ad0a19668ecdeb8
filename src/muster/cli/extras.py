"""Commands that need more than planning does: say so in one line where it is not installed."""

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec

from muster.cli.quiet import answers_alone
from muster.errors import BadInput

LIBRARIES = ("jax", "optax", "orbax", "grain", "safetensors", "tokenizers")


def needs_training[**Args, Out](command: Callable[Args, Out]) -> Callable[Args, Out]:
    """A command that asks for the `train` extra before it does anything."""

    @wraps(command)
    def checked(*args: Args.args, **kwargs: Args.kwargs) -> Out:
        missing = [name for name in LIBRARIES if find_spec(name) is None]
        if missing:
            raise BadInput(
                f"training needs {', '.join(missing)}: install muster with the extra for your "
                "devices, muster[train], muster[tpu] or muster[cuda] (uv run --extra train ...)"
            )
        with answers_alone():
            return command(*args, **kwargs)

    return checked
