"""What `muster inspect` says of a row's program."""

import gzip
from dataclasses import dataclass

from muster.hardware import parse_cluster
from muster.proof.hlo import parse
from muster.proof.rates import rates_of
from muster.proof.reading import read_program
from published.compiling import NOT_COMPILED, Compiled
from published.settings import Row


@dataclass(frozen=True, kw_only=True)
class Read:
    """A row, compiled and read; seconds.

    Attributes:
        guessed: the compiler's estimated cycles over the clock.
        compute: what the reading makes of them.
    """

    row: Row
    compiled: Compiled
    guessed: float = 0.0
    compute: float = 0.0
    kernels: float = 0.0
    exposed: float = 0.0
    other: float = 0.0
    step: float = 0.0

    @classmethod
    def missing(cls, row: Row) -> "Read":
        """Nothing is known of a row."""
        return cls(row=row, compiled=Compiled(path=None, error=NOT_COMPILED))

    @property
    def unknown(self) -> bool:
        """Whether it was never tried here."""
        return self.compiled.error == NOT_COMPILED

    @property
    def error(self) -> float:
        """Of the step, in percent of the published one."""
        return 100 * (self.step / self.row.step - 1)


def read_row(row: Row, compiled: Compiled) -> Read:
    """What `muster inspect` says of a row."""
    if compiled.path is None:
        return Read(row=row, compiled=compiled)
    cluster = parse_cluster(row.hardware)
    reading = read_program(
        parse(gzip.decompress(compiled.path.read_bytes()).decode()),
        cluster,
        coordinates=compiled.places,
    )
    timeline = reading.timeline
    compute, kernels = timeline.of_kind("compute"), timeline.of_kind("kernel")
    exposed = timeline.exposed_communication
    return Read(
        row=row,
        compiled=compiled,
        guessed=reading.cycles.compute / rates_of(cluster.chip).clock,
        compute=compute,
        kernels=kernels,
        exposed=exposed,
        other=timeline.seconds - compute - kernels - exposed,
        step=timeline.seconds,
    )
