"""Several compilations at once, each in its child process, within cores, memory and a budget.

Threads wait for the children. A thread that is told to stop raises where it waits, which ends its
child: so a Ctrl-C or the end of the budget leaves no process behind.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event

from muster.proof.child import Progress
from muster.tune.trial import Answer, Question

# The most that a child held on the set-ups of docs/verified-plans.md was 1.3 to 2.0 GB.
CHILD_BYTES = 2.0e9
LOOKED_AFTER_EVERY_SECONDS = 0.5
# A compilation begins only where so much of what one took so far is left of the budget.
LIKELY_TO_END = 0.75
_MEMINFO = Path("/proc/meminfo")

type Ask = Callable[[Question, Progress], Answer]
type Find = Callable[[Question], Answer | None]
type Told = Callable[[Question, str, float], None]


def _tell_nobody(question: Question, stage: str, seconds: float) -> None:
    del question, stage, seconds


class StoppedError(Exception):
    """A compilation that was ended before it was done."""


def memory_available(meminfo: Path = _MEMINFO) -> float | None:
    """Bytes that new processes can have without swapping; None where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text("utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return None


@dataclass(kw_only=True)
class Budget:
    """Seconds of compiling; what is found kept costs nothing.

    Attributes:
        seconds: all of them.
        spent: while at least one compilation ran.
    """

    seconds: float
    spent: float = 0.0
    ended: list[float] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.seconds - self.spent)

    def allows_another(self) -> bool:
        """Whether a compilation that begins now is likely to end in time."""
        if not self.left:
            return False
        usual = sorted(self.ended)[len(self.ended) // 2] if self.ended else 0.0
        return self.left >= LIKELY_TO_END * usual


@dataclass(frozen=True, kw_only=True)
class Started:
    """A compilation that runs."""

    question: Question
    at: float


class Jobs:
    """Asks the compiler, several questions at once."""

    def __init__(
        self,
        ask: Ask,
        find: Find,
        *,
        most: int,
        budget: Budget,
        told: Told = _tell_nobody,
        available: Callable[[], float | None] = memory_available,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask with `ask` what `find` does not have, `most` at once."""
        self.budget = budget
        self.child_bytes = CHILD_BYTES
        self.most = most
        self._ask, self._find = ask, find
        self._told, self._available, self._clock = told, available, clock
        self._counted = clock()  # up to when what runs has been counted

    def answers(
        self, questions: Sequence[Question], *, essential: bool = False, only_kept: bool = False
    ) -> Generator[tuple[Question, Answer]]:
        """Answers as they come; none for what the budget does not allow.

        Args:
            questions: the most promising first.
            essential: whether they are asked whatever the budget.
            only_kept: whether to give what is kept and compile nothing.

        Raises:
            BadInput: a question that has no answer at all.
        """
        waiting, running = deque(questions), dict[Future[Answer], Started]()
        stop = Event()
        pool = ThreadPoolExecutor(self.most)
        try:
            while waiting or running:
                while waiting and len(running) < self.most:
                    if (found := self._find(waiting[0])) is not None:
                        yield waiting.popleft(), found
                    elif not only_kept and (essential or self.budget.allows_another()):
                        if running and not self._has_room(len(running)):
                            break
                        if not running:
                            self._counted = self._clock()
                        question = waiting.popleft()
                        run = pool.submit(self._ask, question, partial(self._check, stop, question))
                        running[run] = Started(question=question, at=self._clock())
                    else:
                        waiting.popleft()
                yield from self._ended(running, stop, essential=essential)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _ended(
        self, running: dict[Future[Answer], Started], stop: Event, *, essential: bool
    ) -> Iterator[tuple[Question, Answer]]:
        """Wait a little, count the time, and give what is done."""
        if not running:
            return
        done, _ = wait(running, LOOKED_AFTER_EVERY_SECONDS, FIRST_COMPLETED)
        now = self._clock()
        self.budget.spent += now - self._counted
        self._counted = now
        if not essential and not self.budget.left:
            stop.set()
        for run in done:
            started = running.pop(run)
            try:
                answer = run.result()
            except StoppedError:
                continue
            if not answer.kept:
                self.budget.ended.append(self._clock() - started.at)
            self.child_bytes = max(self.child_bytes, float(answer.peak_rss_bytes))
            yield started.question, answer

    def _has_room(self, running: int) -> bool:
        """Whether memory suffices for one more, if those that run have not taken theirs yet."""
        available = self._available()
        return available is None or available >= (running + 1) * self.child_bytes

    def _check(self, stop: Event, question: Question, stage: str, seconds: float) -> None:
        """Told by the thread that waits for a child, twice a second."""
        if stop.is_set():
            raise StoppedError
        self._told(question, stage, seconds)
