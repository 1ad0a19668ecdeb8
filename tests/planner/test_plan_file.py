"""Reading a plan back: everything it decided, and a line for everything that is wrong with it."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.planner.plan_file import is_plan, planned_run, read_plan
from tests.planner.plans import plan_of

PLAN = plan_of("llama-3-8b", "v5p-16", "64seq", tokens=10**12)
DOCUMENT: dict[str, Any] = json.loads(json.dumps(PLAN.to_json()))


def changed(**paths: Any) -> dict[str, Any]:
    """The plan with some values put in the place of others; `layout__fsdp=3` is layout.fsdp."""
    document = copy.deepcopy(DOCUMENT)
    for path, value in paths.items():
        *parents, last = path.split("__")
        part = document
        for parent in parents:
            part = part[parent]
        if value is ...:
            del part[last]
        else:
            part[last] = value
    return document


def test_a_plan_is_read_back_as_it_was_made(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(DOCUMENT), "utf-8")
    run = read_plan(file)
    assert run.layout == PLAN.choice.layout
    assert run.remat.value == PLAN.choice.remat.value
    assert run.architecture == PLAN.architecture
    assert run.workload.batch_sequences == 64
    assert run.workload.sequence_length == 4096
    assert run.workload.train_tokens == 10**12
    assert run.cluster.chip.id == "v5p"
    assert run.cluster.chips == PLAN.choice.layout.chips_used
    assert run.step_seconds == PLAN.estimate.step_seconds
    assert run.mfu == PLAN.estimate.mfu
    assert run.flops_per_token == PLAN.estimate.flops_per_token
    assert run.document == DOCUMENT


@pytest.mark.parametrize("value", [None, 3, [], {}, {"muster": 1}, {"layout": {}}, "plan"], ids=str)
def test_other_documents_are_no_plans(value: object) -> None:
    assert not is_plan(value)
    with pytest.raises(BadInput, match=r"p\.json is not a plan; `muster plan MODEL --on"):
        planned_run(value, where="p.json")


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ({"muster": 2}, "schema 2; this muster reads 1"),
        ({"model": 3}, "model is 3; it must be an object"),
        ({"model__config": ...}, "model: config is missing; it must be an object"),
        ({"workload__remat": "some"}, "some"),
        ({"workload__remat": None}, "remat is None; it must be text"),
        ({"workload__sequence_length": 0}, "sequence_length is 0; it must be a whole number"),
        ({"workload__batch_sequences": 64.0}, "batch_sequences is 64.0; it must be a whole"),
        ({"workload__train_tokens": -1}, "train_tokens is -1; it must be a whole number"),
        ({"layout__fsdp": "4"}, "fsdp is '4'; it must be a whole number of at least 1"),
        ({"layout__tensor": True}, "tensor is True; it must be a whole number"),
        ({"layout__shards_optimizer": 1}, "shards_optimizer is 1; it must be true or false"),
        ({"layout__fsdp": 1024}, "the layout takes 1,024 chips of 8"),
        (
            {"layout__fsdp": 4, "layout__slice": 2},
            "layout: slice is 2, and v5p:2x2x2 has 1",
        ),
        ({"workload__batch_sequences": 63}, "63 sequences do not split over 8 batch ways"),
        ({"estimate__mfu": "high"}, "mfu is 'high'; it must be a number"),
        ({"cluster": ...}, "cluster is missing; it must be an object"),
        ({"compiler": 3}, "compiler is 3; it must be an object"),
        ({"compiler__options": ["x"]}, "options is ['x']; it must be an object"),
        ({"compiler__options": {"--x": "1"}}, "compiler: options: '--x' is no option"),
        ({"compiler__options": {"x": [1]}}, "options: 'x' is [1]; it must be text, a number"),
        ({"compiler__options": {"x": None}}, "options: 'x' is None; it must be text, a number"),
        ({"estimate__flops_per_token_causal": "x"}, "flops_per_token_causal is 'x'; it must be"),
        ({"estimate__flops_per_token_recomputed": None}, "recomputed is None; it must be"),
        ({"estimate__flops_per_token": 1e300}, "flops_per_token is 1e+300; it must be at most"),
        ({"estimate__mfu": 10**400}, "it must be at most 1e+100"),
        ({"estimate__mfu": -(10**400)}, "it must be a number above 0"),
        ({"estimate__memory_per_chip": 3}, "memory_per_chip is 3; it must be an object"),
        ({"estimate__memory_per_chip": {"total": {}}}, "memory_per_chip: total is {}; it must"),
        ({"workload__sequence_length": 2**41}, "it must be at most 1,099,511,627,776"),
        ({"workload__batch_sequences": 10**60}, "it must be at most 1,099,511,627,776"),
        ({"workload__train_tokens": 10**400}, "it must be at most"),
        ({"layout__data": 10**400}, "data is 1000"),
        ({"layout__microbatches": 10**400}, "it must be at most 16,777,216"),
        ({"layout__torus": {"fsdp": ["x:" + "1" * 5000]}}, "it must be a list of axes, as"),
        ({"workload__param_dtype": "bf61"}, "workload: param_dtype: 'bf61'; did you mean bf16"),
        ({"workload__optimizer_dtype": "x"}, "optimizer_dtype: 'x'; choose from f32, bf16"),
        ({"compiler__options": {"x": "\x1b[31mred"}}, "options: 'x' is '\\x1b[31mred'; it must be"),
        ({"compiler__options": {"x": "a\nb"}}, "it must be one line"),
        ({"compiler__options": {"x": "\ud800"}}, "it must be one line"),
        ({"compiler__options": {"x": "9" * 5000}}, "it must be one line of at most 1,000 letters"),
        ({"compiler__options": {"x" * 5000: "1"}}, "is no option"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(paths: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        planned_run(changed(**paths), where="p.json")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_sequences_that_do_not_split_over_their_ways() -> None:
    document = changed(layout__fsdp=1, layout__sequence=8, workload__sequence_length=4092)
    with pytest.raises(BadInput, match="sequences of 4,092 tokens do not split 8 ways"):
        planned_run(document, where="p.json")


def test_compiler_options_are_texts() -> None:
    options = {"a": True, "b": False, "c": 3, "d": "x"}
    run = planned_run(changed(compiler__options=options), where="p.json")
    assert run.compiler_options == {"a": "true", "b": "false", "c": "3", "d": "x"}


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e400"])
def test_numbers_that_are_not_finite(tmp_path: Path, number: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(changed(estimate__mfu="MFU")).replace('"MFU"', number))
    with pytest.raises(BadInput, match=f"holds '{number}', which is not finite"):
        read_plan(file)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "\ud800", "x" * 1000])
def test_a_name_that_would_not_stay_on_a_line_is_shown_otherwise(name: str) -> None:
    shown = planned_run(changed(model__name=name), where="p.json").architecture.name
    assert shown.isprintable()
    assert len(shown) <= 100


def test_devices_and_pipes_are_no_plans(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(BadInput, match="is a device or a pipe"):
            read_plan(path)


def test_a_pipe_of_the_shell_is_read() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        stream.write(json.dumps({"muster": 1}))
    with pytest.raises(BadInput, match="is not a plan"):
        read_plan(Path(f"/dev/fd/{reading}"))
    os.close(reading)


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [path, *(leaf for key, part in value.items() for leaf in leaves(part, (*path, key)))]


READ = [
    path
    for part in ("muster", "model", "cluster", "workload", "layout", "estimate")
    for path in leaves(DOCUMENT[part], (part,))
]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    path=st.sampled_from(READ),
    value=st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.text(max_size=5)
    | st.just([])
    | st.just({}),
)
def test_any_value_anywhere_is_read_or_refused_in_a_line(
    path: tuple[str, ...], value: object
) -> None:
    document = changed(**{"__".join(path): value})
    try:
        planned_run(document, where="p.json")
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert len(str(error)) < 500  # noqa: PT017


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no file .*nowhere"):
        read_plan(tmp_path / "nowhere.json")
    with pytest.raises(BadInput, match=r"is a folder; name the plan's file"):
        read_plan(tmp_path)
    for content in ("", "{", "[" * 100_000, '"\ud800"'.encode("utf-8", "surrogatepass")):
        file = tmp_path / "plan.json"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(BadInput, match="is not a JSON file; `muster plan --out` writes plans"):
            read_plan(file)
