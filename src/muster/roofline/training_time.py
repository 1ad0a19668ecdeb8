"""How long a run takes and what it costs, at a given utilization.

    seconds = FLOPs / (chips * C * MFU)

Source: the book's Part 6, "Counting Parameters and FLOPs".

Legend: C peak FLOP/s of one chip.
"""

from dataclasses import dataclass

from muster.units import SECONDS_PER_DAY, SECONDS_PER_YEAR

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """A run's duration on a number of chips."""

    seconds: float
    chips: int

    @property
    def hours(self) -> float:
        """Wall-clock hours."""
        return self.seconds / SECONDS_PER_HOUR

    @property
    def days(self) -> float:
        """Wall-clock days."""
        return self.seconds / SECONDS_PER_DAY

    @property
    def years(self) -> float:
        """Wall-clock years of 365 days."""
        return self.seconds / SECONDS_PER_YEAR

    @property
    def chip_hours(self) -> float:
        """Hours times chips."""
        return self.hours * self.chips

    def cost(self, price_per_chip_hour: float) -> float:
        """What the chips cost, in the price's currency.

        >>> TrainingTime(seconds=7200.0, chips=8).cost(4.2)
        67.2
        """
        return self.chip_hours * price_per_chip_hour


def training_time(
    train_flops: float, *, chips: int, peak_flops: float, mfu: float = 1.0
) -> TrainingTime:
    """Duration of a run of `train_flops` on `chips` of `peak_flops` FLOP/s each.

    LLaMA-3 70B, 15e12 tokens, on one v5p, and on a pod at 40%:

    >>> round(training_time(6.3e24, chips=1, peak_flops=4.59e14).years)
    435
    >>> round(training_time(6.3e24, chips=8960, peak_flops=4.59e14, mfu=0.4).days)
    44
    """
    return TrainingTime(seconds=train_flops / (chips * peak_flops * mfu), chips=chips)


def time_of_steps(steps: float, step_seconds: float, *, chips: int) -> TrainingTime:
    """Duration of a run whose step time is known.

    >>> round(time_of_steps(12_525, 98.97, chips=1).hours)
    344
    """
    return TrainingTime(seconds=steps * step_seconds, chips=chips)


def steps(train_tokens: int, batch_tokens: int) -> int:
    """Optimizer steps that see at least `train_tokens`.

    >>> steps(15 * 10**12, 4 * 1024 * 1024)
    3576279
    """
    return -(-train_tokens // batch_tokens)


def step_seconds(
    *, flops_per_token: float, batch_tokens: int, chips: int, peak_flops: float, mfu: float
) -> float:
    """Seconds of one step at a given utilization."""
    train_flops = flops_per_token * batch_tokens
    return training_time(train_flops, chips=chips, peak_flops=peak_flops, mfu=mfu).seconds


def tokens_per_second_per_chip(*, flops_per_token: float, peak_flops: float, mfu: float) -> float:
    """Throughput of one chip at a given utilization.

    >>> round(tokens_per_second_per_chip(flops_per_token=4.2e11, peak_flops=4.59e14, mfu=0.4))
    437
    """
    return peak_flops * mfu / flops_per_token
