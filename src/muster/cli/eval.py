"""`muster eval`: loss and perplexity of a model on data, or on given token ids with its logits."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.extras import needs_training
from muster.cli.files import check_writable
from muster.cli.notes import say_damaged
from muster.cli.options import JSON, Strict, step_number
from muster.cli.paths import NamedPath, expanded
from muster.errors import BadInput
from muster.models.hf_config import printable
from muster.units import parse_count

if TYPE_CHECKING:
    from muster.training.evaluate import Evaluation, Ids

DTYPES = ("float32", "bfloat16")


@click.command(name="eval", cls=Strict)
@click.argument("source", metavar="DIR|CKPT", type=NamedPath("folder"))
@click.option(
    "--data",
    multiple=True,
    type=NamedPath("file or folder"),
    metavar="PATH",
    help="Text to predict, as in `muster train`.",
)
@click.option(
    "--ids",
    type=NamedPath("file"),
    metavar="F.npy",
    help="Token ids to predict, whole numbers [batch, T].",
)
@click.option(
    "--logits",
    "logits_file",
    type=NamedPath("file"),
    metavar="OUT.npy",
    help="With --ids: write the logits, float32 [batch, T, vocabulary].",
)
@click.option("--step", metavar="N", help="Of a run's checkpoints.  [default: the newest]")
@click.option(
    "--seq",
    metavar="N",
    help="With --data.  [default: the run's, or the model's context up to 1024]",
)
@click.option("--batch", default="8", show_default=True, metavar="N", help="Rows, with --data.")
@click.option("--batches", metavar="N", help="With --data: the first N only.")
@click.option(
    "--tokenizer",
    metavar="FILE",
    help="With --data: a tokenizer.json or its folder, or `bytes`.  [default: the model's own]",
)
@click.option("--text-key", default="text", show_default=True, metavar="KEY")
@click.option("--dtype", default="float32", show_default=True, metavar="DTYPE")
@JSON
@needs_training
def eval_(
    source: Path,
    data: tuple[Path, ...],
    ids: Path | None,
    logits_file: Path | None,
    step: str | None,
    seq: str | None,
    batch: str,
    batches: str | None,
    tokenizer: str | None,
    text_key: str,
    dtype: str,
    as_json: bool,
) -> None:
    """Evaluate a Hugging Face folder, a run's folder or a checkpoint."""
    from muster.training.devices import start_single

    if dtype not in DTYPES:
        raise BadInput(f"--dtype {dtype!r}; choose from {', '.join(DTYPES)}")
    if bool(data) == (ids is not None):
        raise BadInput("give --data PATH or --ids F.npy, one of the two")
    if logits_file is not None and ids is None:
        raise BadInput("--logits is of given token ids; give --ids F.npy with it")
    if not source.exists():
        raise BadInput(f"no folder {source}; give a Hugging Face folder, a run or a checkpoint")
    if logits_file is not None:
        check_writable(logits_file, "--logits")
    if tokenizer is not None:
        tokenizer = str(expanded(tokenizer, "--tokenizer", "file"))
    of = _Model(source=source, step=step_number(step), dtype=dtype)
    rows = _ids(ids) if ids is not None else None
    start_single()
    if rows is not None:
        answer = _of_ids(of, rows, logits_file)
    else:
        answer = _of_data(of, data, seq, batch, batches, tokenizer, text_key)
    _report(answer, dtype, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class _Model:
    source: Path
    step: int | None
    dtype: str


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What came out; `tokenizer` is None for given ids, `step` for a Hugging Face folder."""

    result: "Evaluation"
    sequence_length: int
    tokenizer: str | None
    step: int | None


def _of_ids(of: _Model, rows: "Ids", logits_file: Path | None) -> _Answer:
    from muster.training.evaluate import check_ids, evaluate_ids, load, look

    known, length = look(of.source, of.step), rows.shape[1]
    check_ids(rows, known.architecture)
    loaded = load(known, sequence_length=length, dtype=of.dtype, step=of.step)
    say_damaged(loaded.damaged, loaded.step)
    result, logits = evaluate_ids(loaded, rows, wants_logits=logits_file is not None)
    if logits_file is not None:
        _write(logits_file, logits)
    return _Answer(result=result, sequence_length=length, tokenizer=None, step=loaded.step)


def _of_data(
    of: _Model,
    data: tuple[Path, ...],
    seq: str | None,
    batch: str,
    batches: str | None,
    tokenizer: str | None,
    text_key: str,
) -> _Answer:
    from muster.training.data import DataConfig
    from muster.training.evaluate import evaluate_data, load, look

    known = look(of.source, of.step)
    by, length = tokenizer or known.tokenizer, known.sequence_length
    if seq is not None:
        length = parse_count(seq, "--seq", binary=True)
    config = DataConfig(
        paths=data,
        sequence_length=length,
        batch_sequences=parse_count(batch, "--batch"),
        tokenizer=by,
        text_key=text_key,
    )
    config.check()
    most = parse_count(batches, "--batches") if batches is not None else None
    loaded = load(known, sequence_length=length, dtype=of.dtype, step=of.step)
    say_damaged(loaded.damaged, loaded.step)
    result = evaluate_data(loaded, config, most)
    return _Answer(result=result, sequence_length=length, tokenizer=by, step=loaded.step)


def _report(answer: _Answer, dtype: str, *, as_json: bool) -> None:
    result, length = answer.result, answer.sequence_length
    if as_json:
        document = {
            "muster": 1,
            "loss": _finite(result.loss),
            "tokens": result.tokens,
            "perplexity": _finite(result.perplexity),
            "dtype": dtype,
            "step": answer.step,
            "tokenizer": answer.tokenizer,
            "sequence_length": length,
        }
        click.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    click.echo(f"loss        {result.loss:.6f}  mean cross-entropy a token, natural logarithm")
    click.echo(f"perplexity  {result.perplexity:.4f}")
    click.echo(f"tokens      {result.tokens:,}  in rows of {length:,}, computed in {dtype}")
    if answer.tokenizer is not None:
        click.echo(f"tokens by   {printable(Path(answer.tokenizer))}")
    if answer.step is not None:
        click.echo(f"step        {answer.step:,}")


def _finite(number: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return number if math.isfinite(number) else None


def _ids(path: Path) -> "Ids":
    import numpy as np

    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"{path} is not a regular file; give a .npy file of token ids")
        # Mapped, so that a header cannot claim more than the file holds.
        array = np.load(path, allow_pickle=False, mmap_mode="r")
    except FileNotFoundError:
        raise BadInput(f"no file {path}") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, OverflowError, MemoryError, TypeError):
        raise BadInput(f"{path} is not a .npy file of numbers") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "iu":
        shape = getattr(array, "shape", ())
        raise BadInput(
            f"{path} must hold whole numbers [batch, T]; it holds "
            f"{getattr(array, 'dtype', type(array).__name__)} {list(shape)}"
        )
    if min(array.shape) == 0 or array.shape[1] < 2:
        raise BadInput(f"{path} of shape {list(array.shape)} has no next token to predict")
    return array


def _write(path: Path, logits: object) -> None:
    import numpy as np

    try:
        with path.open("wb") as stream:
            np.save(stream, logits)  # type: ignore[arg-type]
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
