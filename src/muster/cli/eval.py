"""`muster eval`: loss and perplexity of a model on data, or on given token ids with its logits."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from muster.cli.extras import needs_training
from muster.cli.options import JSON, step_number
from muster.errors import BadInput
from muster.units import parse_count

DTYPES = ("float32", "bfloat16")


@click.command(name="eval")
@click.argument("source", metavar="DIR|CKPT", type=click.Path(path_type=Path))
@click.option(
    "--data",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Text to predict, as in `muster train`.",
)
@click.option(
    "--ids",
    type=click.Path(path_type=Path),
    metavar="F.npy",
    help="Token ids to predict, whole numbers [batch, T].",
)
@click.option(
    "--logits",
    "logits_file",
    type=click.Path(path_type=Path),
    metavar="OUT.npy",
    help="With --ids: write the logits, float32 [batch, T, vocabulary].",
)
@click.option("--step", metavar="N", help="Of a run's checkpoints.  [default: the newest]")
@click.option("--seq", default="1024", show_default=True, metavar="N", help="With --data.")
@click.option("--batch", default="8", show_default=True, metavar="N", help="Rows, with --data.")
@click.option("--batches", metavar="N", help="With --data: the first N only.")
@click.option("--tokenizer", default="bytes", show_default=True, metavar="FILE")
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
    seq: str,
    batch: str,
    batches: str | None,
    tokenizer: str,
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
    start_single()
    from muster.training import evaluate as evaluation
    from muster.training.data import DataConfig

    at = step_number(step)
    if ids is not None:
        rows = _ids(ids)
        loaded = evaluation.load(source, sequence_length=rows.shape[1], dtype=dtype, step=at)
        result, logits = evaluation.evaluate_ids(loaded, rows, wants_logits=logits_file is not None)
        if logits_file is not None and logits is not None:
            _write(logits_file, logits)
    else:
        length = parse_count(seq, "--seq", binary=True)
        loaded = evaluation.load(source, sequence_length=length, dtype=dtype, step=at)
        config = DataConfig(
            paths=data,
            sequence_length=length,
            batch_sequences=parse_count(batch, "--batch"),
            tokenizer=tokenizer,
            text_key=text_key,
        )
        most = parse_count(batches, "--batches") if batches is not None else None
        result = evaluation.evaluate_data(loaded, config, most)
    if as_json:
        document = {"muster": 1, **asdict(result), "perplexity": result.perplexity, "dtype": dtype}
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(f"loss        {result.loss:.6f}  mean cross-entropy a token, natural logarithm")
        click.echo(f"perplexity  {result.perplexity:.4f}")
        click.echo(f"tokens      {result.tokens:,}  computed in {dtype}")


def _ids(path: Path):  # type: ignore[no-untyped-def]  # numpy is imported only here
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise BadInput(f"no file {path}") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError):
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
