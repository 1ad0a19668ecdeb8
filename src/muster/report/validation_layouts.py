"""The terminal's view of `muster validate --layouts`."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from rich.table import Table

from muster.report.terminal import QUIET, console, title
from muster.report.validation_table import skipped_table
from muster.report.words import counted
from muster.sharding.mesh import Layout
from muster.validation.ranks import LARGE_GAP, NEAR, Rank, Unranked

TOP = 5
SHORT = {
    "slice": "slice",
    "stage": "pp",
    "data": "dp",
    "fsdp": "fsdp",
    "sequence": "cp",
    "expert": "ep",
    "tensor": "tp",
}


def print_layouts(ranks: Sequence[Rank], unranked: Sequence[Unranked], population: int) -> None:
    """Print the summary, every set-up, and the reasons of large gaps."""
    out = console()
    setups = counted(population, "bf16 or fp16 set-up")
    remark = f"{len(ranks)} of {setups}, against the search's best"
    out.print(title("Published layouts", remark))
    if ranks:
        out.print(_summary_table(ranks))
        out.print()
        remark = "pp stages, dp replicas, cp sequence, m microbatches, v pieces a stage"
        out.print(title("Each set-up", remark))
        out.print(_ranks_table(ranks))
        odd = [rank for rank in _by_gain(ranks) if rank.odd]
        if odd:
            out.print()
            remark = f"the best gains more than {LARGE_GAP:.0%}, or loses more than {NEAR:.0%}"
            out.print(title("Why", remark))
            out.print(_reasons_table(odd))
    if unranked:
        out.print()
        out.print(title("Not searched", counted(len(unranked), "set-up")))
        out.print(skipped_table(each.reason for each in unranked))


def _by_gain(ranks: Iterable[Rank]) -> list[Rank]:
    """The largest predicted gain first."""
    return sorted(ranks, key=lambda rank: (-(rank.gain or 0.0), rank.group.id))


def _summary_table(ranks: Sequence[Rank]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("predicted gain, median", min_width=28)
    headings = ("any mesh", "same axes", "same mesh", f"in top {TOP}", f"within {NEAR:.0%}")
    for name in ("set-ups", *headings):
        table.add_column(name, justify="right", no_wrap=True)
    parts: tuple[tuple[str, Callable[[Rank], str]], ...] = (
        ("By source", lambda rank: rank.setup.run.source_group or "unnamed"),
        ("By chip", lambda rank: rank.setup.cluster.chip.id),
    )
    table.add_row("  all", *_summary_cells(ranks))
    for name, key in parts:
        table.add_row(title(name))
        by_key: dict[str, list[Rank]] = {}
        for rank in ranks:
            by_key.setdefault(key(rank), []).append(rank)
        for value, part in sorted(by_key.items(), key=lambda item: (-len(item[1]), item[0])):
            table.add_row(f"  {value}", *_summary_cells(part))
    return table


def _summary_cells(ranks: Sequence[Rank]) -> tuple[str, ...]:
    gains = [rank.gain for rank in ranks if rank.gain is not None]
    familiar = [rank.familiar_gain for rank in ranks if rank.familiar_gain is not None]
    same = [rank.published.total / rank.tuned.seconds - 1 for rank in ranks if rank.tuned]
    of_mesh = [rank.mesh_gain for rank in ranks if rank.mesh_gain is not None]
    top = sum(rank.rank is not None and rank.rank <= TOP for rank in ranks)
    near = sum(gain <= NEAR for gain in of_mesh)
    return (
        str(len(ranks)),
        f"{statistics.median(gains):+.0%}" if gains else "-",
        f"{statistics.median(familiar):+.0%}" if familiar else "-",
        f"{statistics.median(same):+.0%}" if same else "-",
        str(top),
        str(near),
    )


def _ranks_table(ranks: Iterable[Rank]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("first row", no_wrap=True)
    table.add_column("published", overflow="fold")
    table.add_column("best", overflow="fold")
    for rank in _by_gain(ranks):
        setup, best = rank.setup, rank.best
        table.add_row(
            "-" if rank.gain is None else f"{rank.gain:+.0%}",
            rank.rank_words,
            setup.id,
            f"{_ways(setup.layout)} {_remat(setup.remat.raw)}",
            f"{_ways(best.layout)} {best.remat.value}" if best else "nothing fits",
        )
    return table


def _ways(layout: Layout) -> str:
    """`pp4 dp8 tp8 m64 v12`."""
    ways = [
        f"{short}{size}" for axis, short in SHORT.items() if (size := getattr(layout, axis)) > 1
    ]
    ways.append(f"m{layout.microbatches}")
    if layout.virtual_stages > 1:
        ways.append(f"v{layout.virtual_stages}")
    return " ".join(ways)


def _remat(raw: str) -> str:
    return raw.split("(", maxsplit=1)[0].strip().split(" ")[0].lower() or "none"


def _reasons_table(odd: Iterable[Rank]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style=QUIET, overflow="fold", ratio=1)
    for rank in odd:
        gain = "-" if rank.gain is None else f"{rank.gain:+.0%}"
        table.add_row(gain, rank.setup.id, rank.reason)
    return table
