"""A compiler that answers at once, from a formula, and remembers what it was asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Lock

from muster.hardware import parse_cluster
from muster.models.hf_config import architecture_from_config
from muster.planner.build import make_plan
from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof.child import Progress
from muster.roofline.workload import Workload
from muster.tune.jobs import Budget, Jobs
from muster.tune.trial import Answer, Question, Reading
from tests.proof.make_programs import LLAMA

USABLE = 100 * 10**9


@cache
def planned() -> PlannedRun:
    plan = make_plan(
        architecture_from_config(LLAMA, name="small"),
        parse_cluster("v5p:2x2x4"),
        Workload(sequence_length=1024, batch_sequences=64, param_dtype="bf16"),
    )
    return planned_run(plan.to_json(), where="x")


def answer(seconds: float, memory: int = 10**9) -> Answer:
    reading = Reading(
        step_seconds=seconds,
        cycles=round(seconds * 1e9),
        cycles_seconds=0.8 * seconds,
        kernel_seconds=0.1 * seconds,
        exposed_seconds=0.1 * seconds,
        memory_bytes=memory,
        temporaries_bytes=memory // 2,
        usable_bytes=USABLE,
    )
    return Answer(
        status="compiled",
        reading=reading,
        needed_bytes=memory,
        versions={"libtpu": "1"},
    )


@dataclass
class Compiler:
    """Answers by a formula; each question takes `takes` seconds of a clock of its own.

    Attributes:
        step: seconds of a plan's step, or the whole answer.
        kept: what was asked before, by the plan's own text.
        before: called before an answer.
    """

    step: Callable[[PlannedRun], float | Answer]
    takes: float = 10.0
    kept: dict[str, Answer] = field(default_factory=dict)
    asked: list[PlannedRun] = field(default_factory=list)
    now: float = 0.0
    before: Callable[[], object] = int
    lock: Lock = field(default_factory=Lock)

    def ask(self, question: Question, progress: Progress) -> Answer:
        del progress
        self.before()
        with self.lock:
            self.asked.append(question.planned)
            self.now += self.takes
            found = self.step(question.planned)
            done = found if isinstance(found, Answer) else answer(found)
            if done.status != "died":
                self.kept[key(question.planned)] = replace(done, kept=True)
        return done

    def find(self, question: Question) -> Answer | None:
        return self.kept.get(key(question.planned))

    def jobs(self, *, seconds: float = 1e6, most: int = 1) -> Jobs:
        return Jobs(
            self.ask,
            self.find,
            most=most,
            budget=Budget(seconds=seconds),
            available=lambda: None,
            clock=lambda: self.now,
        )


def key(plan: PlannedRun) -> str:
    return repr((plan.layout, plan.remat, plan.step, sorted(plan.compiler_options.items())))


def by_flags(gains: Mapping[str, float]) -> Callable[[PlannedRun], float]:
    """The planner's step, less the shares that its flags and step choices gain."""

    def step(plan: PlannedRun) -> float:
        seconds = plan.step_seconds
        words = [f"{name}={value}" for name, value in plan.compiler_options.items()]
        words += [f"{name}={value}" for name, value in plan.step.to_json().items()]
        for word in words:
            seconds *= 1 - gains.get(word, 0.0)
        return seconds

    return step
