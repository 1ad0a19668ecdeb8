"""What is held and not legal: the rule that it breaks, and nothing named legal that is not."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.models.architecture import Architecture
from muster.planner.build import make_plan
from muster.planner.choice import AXES
from muster.planner.refusal import refusal
from muster.planner.search import Restrictions, search
from muster.roofline.workload import Workload
from tests.planner.plans import plan_of
from tests.planner.small import CLUSTERS, models, workloads

GPUS, TPUS = "h100:64", "v5p:4x4x4"
_LEGAL = re.compile(r"legal ([a-z]+)[a-z ]*: (\d[\d, ]*)")
_TOGETHER = re.compile(r"([a-z]+)=(\d+)")
_MAX_CHIPS = re.compile(r"--max-chips of ([\d,]+) or more")


def refused(
    model: str, hardware: str, batch: str, fixed: dict[str, int], most: int | None = None
) -> str:
    restrictions = Restrictions(fixed=fixed, max_chips=most)
    with pytest.raises(BadInput) as error:
        plan_of(model, hardware, batch, restrictions=restrictions)
    line = str(error.value)
    assert line.startswith("no legal layout of")
    assert "\n" not in line
    assert len(line) < 300
    return line


@pytest.mark.parametrize(
    ("model", "hardware", "fixed", "rule", "nearest"),
    [
        (
            "qwen2-7b",
            GPUS,
            {"tensor": 8},
            "28 heads do not split 8 ways",
            "legal tensor ways: 1, 2, 4",
        ),
        # 16 and 32 ways would leave the domain of 8 GPUs, so they are not named.
        (
            "llama-3-8b",
            GPUS,
            {"tensor": 3},
            "32 heads do not split 3 ways",
            "legal tensor ways: 1, 2, 4, 8",
        ),
        (
            "llama-3-70b",
            GPUS,
            {"tensor": 16},
            "leaves the scale-up domain of 8 GPUs",
            "legal tensor ways: 1, 2, 4, 8",
        ),
        ("llama-3-70b", GPUS, {"expert": 2}, "has no experts to split", "legal expert ways: 1"),
        (
            "deepseek-v3",
            "h100:512",
            {"expert": 3},
            "256 experts do not split 3 ways",
            "legal expert ways: 1, 2, 4, 8, 16, 32, 64",
        ),
        (
            "llama-3-70b",
            TPUS,
            {"sequence": 3},
            "a sequence of 4,096 is cut into equal pieces of 128 tokens or more",
            "legal sequence ways: 1, 2, 4, 8, 16, 32",
        ),
        (
            "qwen3-next-80b-a3b",
            TPUS,
            {"sequence": 2},
            "36 of 48 layers are recurrent",
            "legal sequence ways: 1",
        ),
        # 17 stages divide 34 = 32 layers, embedding and head, but no slice has such chips.
        ("llama-3-8b", GPUS, {"stage": 5}, "32 layers do not make 5 stages", "1, 2, 4, 8, 16, 32"),
        ("llama-3-8b", GPUS, {"stage": 17}, "has a multiple of 17 chips", "1, 2, 4, 8, 16, 32"),
        ("llama-3-70b", TPUS, {"stage": 2}, "pipelines are planned on GPUs", "legal stages: 1"),
        (
            "llama-3-70b",
            TPUS,
            {"fsdp": 3},
            "1,024 sequences do not split 3 ways",
            "legal fsdp ways: 1, 2, 4, 8, 16, 32, 64",
        ),
        (
            "llama-3-70b",
            TPUS,
            {"fsdp": 64, "tensor": 2},
            "these ways are 128 chips of a slice of 64",
            "with the rest held, legal fsdp ways: 1, 2, 4, 8, 16, 32, or legal tensor ways: 1",
        ),
        (
            "llama-3-8b",
            GPUS,
            {"data": 64, "fsdp": 64},
            "these ways are 4,096 chips of a slice of 64",
            "legal data ways: 1, or legal fsdp ways: 1",
        ),
        (
            "llama-3-8b",
            GPUS,
            {"microbatches": 7},
            "1,024 sequences do not make 7 microbatches",
            "legal microbatches: 1, 2, 4, 8, 16, 32, 64",
        ),
        (
            "llama-3-8b",
            GPUS,
            {"microbatches": 10**6},
            "do not make 1000000 microbatches",
            "legal microbatches: 16, 32, 64, 128, 256, 512, 1024",
        ),
        (
            "llama-3-8b",
            GPUS,
            {"stage": 4, "microbatches": 1},
            "4 stages need 4 microbatches or more, not 1",
            "legal stages: 1, or nearest legal microbatches: 4, 8, 16, 32, 64, 128, 256",
        ),
        (
            "llama-3-8b",
            GPUS,
            {"microbatches": 1024, "data": 2},
            "1,024 sequences over 2 ways do not make 1024 microbatches",
            "legal data ways: 1, or nearest legal microbatches: 8, 16, 32, 64, 128, 256, 512",
        ),
        (
            "llama-3-8b",
            GPUS,
            {"fsdp": 8, "stage": 8},
            "in a pipeline replicas share the optimizer's state",
            "legal stages: 1, or legal fsdp ways: 1",
        ),
        (
            "llama-3-8b",
            GPUS,
            {"tensor": 3, "stage": 5},
            "32 heads do not split 3 ways",
            "nearest legal: stage=4 tensor=4, or stage=4 tensor=2",
        ),
    ],
)
def test_one_line_with_the_rule_and_the_nearest_legal(
    model: str, hardware: str, fixed: dict[str, int], rule: str, nearest: str
) -> None:
    line = refused(model, hardware, "1024seq", fixed)
    assert rule in line
    assert nearest in line.partition(rule)[2]


def test_slices_that_only_smaller_slices_could_have() -> None:
    line = refused("llama-3-8b", TPUS, "3000seq", {"data": 3})
    assert "has a multiple of 3 chips; legal data ways: 1, 2, 4, 8" in line


@pytest.mark.parametrize(
    ("hardware", "fixed", "most", "rule", "nearest"),
    [
        (
            GPUS,
            {"fsdp": 64},
            8,
            "these ways are 64 chips of the 8 that may be used",
            "legal fsdp ways: 1, 2, 4, 8, or --max-chips of 64 or more",
        ),
        ("4xv5p:4x4x4", {}, 3, "4 slices take a chip each or more", "--max-chips of 4 or more"),
        ("v4:2x2x4", {}, 3, "no slice of v4 has as few as 3 chips", "--max-chips of 4 or more"),
    ],
)
def test_fewer_chips_than_what_is_held_takes(
    hardware: str, fixed: dict[str, int], most: int, rule: str, nearest: str
) -> None:
    line = refused("llama-3-8b", hardware, "1024seq", fixed, most)
    assert rule in line
    assert nearest in line


@given(
    architecture=models(),
    hardware=st.sampled_from(CLUSTERS),
    workload=workloads,
    fixed=st.dictionaries(
        st.sampled_from(AXES), st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16, 64]), max_size=3
    ),
    most=st.sampled_from([None, None, 1, 4, 8]),
)
@settings(max_examples=60, deadline=None)
def test_what_is_named_legal_is_not_refused_next(
    architecture: Architecture,
    hardware: str,
    workload: Workload,
    fixed: dict[str, int],
    most: int | None,
) -> None:
    cluster = parse_cluster(hardware)
    if workload.batch_sequences % cluster.slices:
        return
    restrictions = Restrictions(fixed=fixed, max_chips=most)
    found = search(architecture, cluster, workload, restrictions)
    if found.ranked or found.closest:
        return
    line = refusal(architecture, cluster, workload, restrictions)
    tries = []
    for axis, numbers in _LEGAL.findall(line):
        tries += [({**fixed, _axis(axis): int(each)}, most) for each in re.findall(r"\d+", numbers)]
    together = line.partition("nearest legal: ")[2]
    for combination in filter(None, together.split(", or ")):
        changed = {axis: int(ways) for axis, ways in _TOGETHER.findall(combination)}
        chips = changed.pop("chips", most)
        tries.append(({**fixed, **changed}, chips))
    if enough := _MAX_CHIPS.search(line):
        tries.append((fixed, int(enough[1].replace(",", ""))))
    assert tries or not (fixed or most), line  # where nothing is held there is nothing to change
    for ways, chips in tries:
        make_plan(
            architecture,
            cluster,
            workload,
            restrictions=Restrictions(fixed=ways, max_chips=chips),
        )


def _axis(word: str) -> str:
    return "stage" if word == "stages" else word
