"""What the search ranks, for sixty-odd questions: to show that a change of it changes no answer.

    PYTHONPATH=OLD/src python benchmarks/rankings.py write old.json
    PYTHONPATH=src python benchmarks/rankings.py write new.json
    python benchmarks/rankings.py compare old.json new.json

OLD is a work tree of the version to compare with. Compared are the best and every other mesh within
the share of it that is worth showing: layout, remat, step and memory, in their order, and which is
chosen. Where nothing fits, what is closest. CPU seconds and candidates are printed side by side.
"""

import json
import sys
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.search import WORTH_SHOWING, Choice, Restrictions, measure, search
from muster.planner.workload import make_workload
from muster.roofline.remat import parse_remat
from muster.units import parse_batch

QUESTIONS = """
llama-3-70b v5p:16x20x28 4M
llama-3-70b v5p:16x20x28 4M --minimize cost
llama-3-70b v5p:16x20x28 4M --minimize chips
llama-3-70b v5p:16x20x28 4M --remat full
llama-3-70b v5p:16x20x28 4M --fix tensor=8
llama-3-70b v5p:16x20x28 4M --fix data=4 --fix sequence=2
llama-3-70b v5p:8x8x16 4M
llama-3-70b 4xv5p:16x20x28 4M
llama-3-70b 4xv5p:8x8x8 1024seq --minimize cost
llama-3-70b v5p:8x8x8 1M --max-chips 256
llama-3-70b v6e-256 2M
llama-3-70b v6e-256 2M --minimize chips
llama-3-70b v5litepod-256 1M
llama-3-70b h100:1024 4M
llama-3-70b h100:1024 4M --minimize cost
llama-3-70b h100:1024 4M --remat outputs
llama-3-70b h100:1024 4M --fix stage=8
llama-3-70b h100:1000 1000seq
llama-3-70b h100:64 1M
llama-3-70b 2xh100:512 4M
llama-3-70b gb200:576 4M
llama-3-70b b200:256 2M --minimize chips
llama-3-70b a100:512 4M
llama-3-70b h100:512 512seq@8192
llama-3-8b v5litepod-16 64seq
llama-3-8b v4:4x4x8 1M
llama-3-8b h100:8 64seq
llama-3-8b h100:64 512seq
llama-3-8b cpu:8 8seq@512
llama-3-8b v3-8 32seq
llama-3-8b h100:32 32seq@32768
llama-3-8b v5p:4x4x4 64seq@131072
llama-3-8b v7x:4x4x4 2M
llama-3.1-405b 8xv5p:16x20x28 16M
llama-3.1-405b 8xv5p:16x20x28 16M --minimize cost
llama-3.1-405b 8xv5p:16x20x28 4M
llama-3.1-405b h100:16384 16M@8192
llama-3.1-405b h100:2048 2048seq@8192
llama-3.1-405b v5p:16x16x16 1024seq@8192
llama-3.1-405b v6e-256 256seq
llama-3.1-405b h100:64 64seq
llama-3.1-405b v5litepod-256 1M --remat full
llama-3.1-405b gb200:1152 1152seq@8192
deepseek-v3 h800:2048 15360seq
deepseek-v3 h800:2048 15360seq --minimize cost
deepseek-v3 h800:2048 15360seq --remat full
deepseek-v3 h800:2048 15360seq --fix stage=16 --fix expert=8
deepseek-v3 h800:2048 7680seq
deepseek-v3 h800:512 1920seq
deepseek-v3 v5p:16x16x16 4096seq
deepseek-v3 v5p:16x16x16 4096seq --minimize cost
deepseek-v3 2xv5p:8x16x16 4096seq
deepseek-v3 gb200:576 9216seq
deepseek-v3 h100:128 256seq
mixtral-8x7b h100:128 1024seq
mixtral-8x7b v5p:8x8x8 1024seq
mixtral-8x7b v5p:8x8x8 1024seq --fix expert=8
kimi-k2-instruct h100:256 1024seq --minimize cost
qwen3-235b-a22b h100:1024 2048seq
qwen3-235b-a22b v6e-256 512seq
gemma-2-9b v5p:8x8x8 1024seq
gemma-2-9b h100:64 256seq --remat outputs
gpt-oss-120b h100:256 1024seq
qwen3-next-80b-a3b h100:256 1024seq
llama-3-8b h100:64 1000seq
llama-3-70b v5p:8x8x8 3000seq
llama-3.1-405b h100:16384 2048seq@8192 --fix stage=16
llama-3-70b v5p:4x4x12 960seq@6144
""".strip().splitlines()


def answer(question: str) -> dict[str, Any]:
    """Search one line of `QUESTIONS`: model, hardware, batch[@sequence length], options."""
    model, hardware, batch, *options = question.split()
    said = dict.fromkeys(("--minimize", "--remat", "--max-chips"), "")
    fixed = {}
    for option, value in zip(options[::2], options[1::2], strict=True):
        said[option] = value
        if option == "--fix":
            axis, _, ways = value.partition("=")
            fixed[axis] = int(ways)
    batch, _, length = batch.partition("@")
    architecture, cluster = find_model(model), parse_cluster(hardware)
    workload = make_workload(architecture, parse_batch(batch), sequence_length=int(length or 4096))
    restrictions = Restrictions(
        fixed=fixed,
        remat=parse_remat(said["--remat"]) if said["--remat"] else None,
        max_chips=int(said["--max-chips"]) if said["--max-chips"] else None,
    )
    minimize: Any = said["--minimize"] or "time"
    started = time.process_time()
    found = search(architecture, cluster, workload, restrictions, minimize=minimize)
    seconds = time.process_time() - started
    values = [measure(minimize, each.layout.chips_used, each.seconds) for each in found.ranked]
    shown = [
        _line(choice)
        for choice, value in zip(found.ranked, values, strict=True)
        if value <= WORTH_SHOWING * values[0]
    ]
    closest = [_line(found.closest)] if found.closest and not shown else []
    return {
        "chosen": _line(found.chosen) if found.chosen else None,
        "ranked": shown,
        "closest": closest,
        "examined": found.examined,
        "seconds": seconds,
    }


def _line(choice: Choice) -> list[Any]:
    numbers = [choice.seconds, choice.memory.total, choice.memory.host]
    return [
        choice.cluster.name,
        list(astuple(choice.layout)),
        choice.remat.value,
        *(float(f"{number:.12g}") for number in numbers),
    ]


def write(file: Path) -> None:
    """Answer every question and keep the answers."""
    answers = {}
    for question in QUESTIONS:
        answers[question] = found = answer(question)
        sys.stderr.write(f"{found['seconds']:7.2f} s {found['examined']:7,}  {question}\n")
    file.write_text(json.dumps(answers, indent=1))


def compare(before: Path, after: Path) -> int:
    """Print where two files of answers differ; the number of questions that do."""
    old, new = (json.loads(file.read_text()) for file in (before, after))
    differing = 0
    for question in old:
        first, second = old[question], new[question]
        same = all(first.get(key) == second.get(key) for key in ("chosen", "ranked", "closest"))
        differing += not same
        sys.stdout.write(
            f"{'same' if same else 'DIFFERS':8}{len(first['ranked']):5} ranked"
            f"{first['seconds']:8.2f} -> {second['seconds']:5.2f} s"
            f"{first['examined']:8,} -> {second['examined']:6,}  {question}\n"
        )
        if not same:
            sys.stdout.write(_first_difference(first, second))
    total = [sum(each["seconds"] for each in answers.values()) for answers in (old, new)]
    sys.stdout.write(f"{differing} of {len(old)} differ; {total[0]:.1f} -> {total[1]:.1f} s\n")
    return differing


def _first_difference(first: dict[str, Any], second: dict[str, Any]) -> str:
    for key in ("ranked", "closest"):
        for index in range(max(len(first[key]), len(second[key]))):
            pair = [each[key][index : index + 1] for each in (first, second)]
            if pair[0] != pair[1]:
                return f"        {key} {index}: {pair[0]}\n        {' ' * len(key)}    {pair[1]}\n"
    return ""


if __name__ == "__main__":
    command, *files = sys.argv[1:]
    if command == "compare":
        sys.exit(bool(compare(*map(Path, files))))
    write(Path(files[0]))
