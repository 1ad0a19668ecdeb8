import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Muster

PLAN = ("plan", "llama-3-70b", "--on", "v5p:16x20x28", "--batch", "4M", "--seq", "4096")
LLAMA_8B = Path("src/muster/models/data/configs/Llama-3-8B.json").resolve()

SCHEMA: dict[str, set[str]] = {
    "model": {"name", "architecture", "params"},
    "cluster": {"chip", "slice", "slices", "chips"},
    "workload": {
        *("sequence_length", "batch_sequences", "batch_tokens", "train_tokens", "param_dtype"),
        *("compute_dtype", "optimizer", "optimizer_dtype", "remat", "attention"),
    },
    "layout": {
        *("slice", "stage", "data", "fsdp", "sequence", "expert", "tensor", "microbatches"),
        *("chips_used", "torus"),
    },
    "estimate": {
        *("flops_per_token", "flops_per_step", "train_flops", "step_seconds", "mfu", "bound"),
        *("tokens_per_second_per_chip", "seconds", "memory_per_chip", "train_seconds"),
        *("train_days", "chip_hours", "cost_usd"),
    },
}
SECONDS = {
    *("compute", "hbm", "fsdp", "tensor", "sequence", "expert", "data", "dcn", "bubble"),
    "exposed",
}
MEMORY = {
    *("params", "gradients", "optimizer", "activations", "logits", "workspace", "total"),
    "usable",
}


@pytest.fixture
def answer(muster: Muster) -> dict[str, Any]:
    outcome = muster(*PLAN, "--tokens", "15T", "--json")
    assert outcome.status == 0
    assert outcome.err == ""
    document: dict[str, Any] = json.loads(outcome.out)
    return document


def test_json_follows_the_schema(answer: dict[str, Any]) -> None:
    assert answer["muster"] == 1
    for part, keys in SCHEMA.items():
        assert keys <= answer[part].keys(), part
    assert answer["estimate"]["seconds"].keys() >= SECONDS
    assert answer["estimate"]["memory_per_chip"].keys() >= MEMORY
    assert answer["model"]["params"].keys() == {"trainable", "stored", "active"}
    for rule in answer["rules"]:
        assert rule.keys() == {"id", "statement", "value", "bound", "holds"}


def test_json_answers_the_book(answer: dict[str, Any]) -> None:
    architecture = answer["model"]["architecture"]
    letters = ("num_layers", "d_model", "d_ff", "num_heads", "num_kv_heads", "head_dim")
    assert [architecture[key] for key in letters] == [80, 8192, 28672, 64, 8, 128]
    assert architecture["vocab_size"] == 128256
    assert answer["model"]["params"]["trainable"] == 70553706496
    rules = {rule["id"]: rule for rule in answer["rules"]}
    assert rules["fsdp"]["value"] == pytest.approx(468, rel=0.01)
    assert rules["fsdp"]["bound"] == 850
    assert not rules["fsdp"]["holds"]
    assert rules["fsdp-tensor"]["bound"] == pytest.approx(113, rel=0.01)
    assert rules["fsdp-tensor"]["holds"]
    assert rules["x-opt"]["value"] == pytest.approx(1618, rel=0.01)
    book = answer["closed_form"]["layout"]
    assert (book["fsdp"], book["sequence"], book["tensor"]) == (1024, 2, 4)
    layout = answer["layout"]
    assert layout["chips_used"] == 8192
    assert layout["data"] * layout["fsdp"] * layout["sequence"] * layout["tensor"] == 8192
    estimate = answer["estimate"]
    assert estimate["train_flops"] == pytest.approx(6.3e24, rel=0.02)
    assert estimate["bound"] == "compute"


def test_an_assumed_mfu_is_of_the_whole_pod_as_the_books(muster: Muster) -> None:
    outcome = muster(*PLAN, "--tokens", "15T", "--mfu", "40%", "--json")
    estimate = json.loads(outcome.out)["estimate"]
    assert estimate["train_days"] == pytest.approx(44, rel=0.02)
    assert estimate["mfu_convention"] == "6N, assumed"


def test_terms_sum(answer: dict[str, Any]) -> None:
    memory = answer["estimate"]["memory_per_chip"]
    terms = MEMORY - {"total", "usable"}
    assert sum(memory[term] for term in terms) == pytest.approx(memory["total"])
    seconds = answer["estimate"]["seconds"]
    parts = SECONDS - {"exposed"} | {"host"}
    assert sum(seconds[part] for part in parts) == pytest.approx(seconds["total"])
    assert answer["estimate"]["step_seconds"] == pytest.approx(seconds["total"])


def test_a_batch_of_4m_is_said_to_be_4_times_1024_squared(muster: Muster) -> None:
    assert "4,194,304 tokens = 1,024 x 4,096" in muster(*PLAN).out


def test_the_report_fits_100_columns(muster: Muster) -> None:
    for arguments in (PLAN, ("plan", "deepseek-v3", "--on", "h800:2048", "--batch", "15360seq")):
        out = muster(*arguments).out
        assert max(map(len, out.splitlines())) <= 100


def test_planning_needs_neither_jax_nor_numpy_nor_pandas(muster: Muster) -> None:
    outcome = muster(*PLAN, python_flags=("-X", "importtime"))
    imported = {line.rsplit("|", 1)[-1].strip() for line in outcome.err.splitlines()}
    assert "muster.planner.build" in imported
    roots = {name.split(".")[0] for name in imported}
    assert not roots & {"jax", "numpy", "pandas", "torch", "scipy"}


def test_a_plan_is_written_whole(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    outcome = muster(*PLAN, "--out", str(file), "--json")
    assert outcome.status == 0
    assert json.loads(file.read_text("utf-8")) == json.loads(outcome.out)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("target", ["missing/plan.json", "."])
def test_a_plan_that_cannot_be_written_leaves_nothing(
    muster: Muster, tmp_path: Path, target: str
) -> None:
    outcome = muster(*PLAN, "--out", str(tmp_path / target))
    assert outcome.status == 2
    assert "cannot write" in outcome.only_line
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_a_no_with_the_nearest_yes(muster: Muster) -> None:
    outcome = muster("plan", "llama-3-70b", "--on", "v5p:2x2x1", "--batch", "4M", "--json")
    assert outcome.status == 1
    answer = json.loads(outcome.out)
    memory = answer["estimate"]["memory_per_chip"]
    assert memory["total"] > memory["usable"]
    assert any("does not fit" in warning for warning in answer["warnings"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", "lama-3-70b", "--on", "v5p-8", "--batch", "4M"), "did you mean llama-3-70b"),
        (("plan", "no/such/config.json", "--on", "v5p-8", "--batch", "4M"), "config.json"),
        (("plan", "llama-3-8b", "--on", "v5q:4x4x4", "--batch", "4M"), "v5p"),
        (("plan", "llama-3-8b", "--on", "v4:2x4x2", "--batch", "4M"), "2x2x4"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "0"), "at least 1"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "-4M"), "positive"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "100"), "1seq"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "1.5"), "whole"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "4M", "--seq", "0"), "--seq"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "4M", "--mfu", "1.4"), "MFU"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "4M", "--mfu", "nan"), "0.4"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "4M", "--mfu", "x"), "0.4"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "4M", "--remat", "ful"), "full"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "4M", "--param-dtype", "x"), "bf16"),
        (("plan", "llama-3-8b", "--on", "v5p-8", "--batch", "4M", "--constants", "b"), "book"),
        (("plan", "llama-3-8b", "--on", "3xv5p-8", "--batch", "4seq"), "3seq"),
        (("plan", "llama-3-8b", "--batch", "4M"), "--on"),
        (("plan", "llama-3-8b", "--onn", "v5p-8"), "--on"),
        (("plan",), "MODEL"),
        (("paln",), "plan"),
    ],
)
def test_bad_input_is_one_line_that_names_the_right_thing(
    muster: Muster, arguments: tuple[str, ...], says: str
) -> None:
    outcome = muster(*arguments)
    assert outcome.status == 2
    line = outcome.only_line
    assert says in line
    assert len(line) < 400


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"", "JSON"),
        (b'{"model_type": "llama", "hidden_size": "4096"}', "quotes"),
        (b'{"model_type": "llama", "hidden_size": 0}', "at least 1"),
        (b'{"model_type": "llama", "num_hidden_layers": -2}', "negative"),
        (b'{"model_type": "llama", "hidden_size": 40.5}', "whole"),
        (b'{"model_type": "llamma"}', "llama"),
        (b"{}", "model_type"),
        (b'{"a":' * 100_000, "JSON"),
        (b" " * 100 * 1024**2, "larger than"),
    ],
)
def test_a_bad_config_is_one_line(
    muster: Muster, tmp_path: Path, content: bytes, says: str
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    outcome = muster("plan", str(file), "--on", "v5p-8", "--batch", "4M")
    assert outcome.status == 2
    assert says in outcome.only_line


def test_a_folder_without_a_config(muster: Muster, tmp_path: Path) -> None:
    outcome = muster("plan", str(tmp_path), "--on", "v5p-8", "--batch", "4M")
    assert outcome.status == 2
    assert "config.json" in outcome.only_line


def test_a_folder_with_a_config_is_a_model(muster: Muster, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(LLAMA_8B.read_bytes())
    outcome = muster("plan", str(tmp_path), "--on", "v5p-8", "--batch", "64seq", "--json")
    assert json.loads(outcome.out)["model"]["params"]["trainable"] == 8030261248


def test_help_and_version(muster: Muster) -> None:
    assert "plan" in muster("--help").out
    assert "--batch" in muster("plan", "--help").out
    assert muster("--version").out.startswith("muster ")


def test_a_page_of_pictures_is_written_whole(muster: Muster, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    outcome = muster(
        "plan", "llama-3-8b", "--on", "v5p-16", "--batch", "64seq", "--html", str(page)
    )
    assert outcome.status == 0
    content = page.read_text("utf-8")
    assert content.lower().startswith("<!doctype html>")
    assert "Llama-3-8B on v5p:2x2x2" in content
    assert list(tmp_path.iterdir()) == [page]


def test_planning_without_pictures_needs_no_templates(muster: Muster) -> None:
    outcome = muster(*PLAN, python_flags=("-X", "importtime"))
    imported = {line.rsplit("|", 1)[-1].strip() for line in outcome.err.splitlines()}
    assert "jinja2" not in imported


@pytest.mark.parametrize("what", ["batch", "chips", "seq"])
def test_a_sweep_is_a_curve_around_what_was_asked(muster: Muster, what: str) -> None:
    asked = ("plan", "llama-3-8b", "--on", "v5p-16", "--batch", "64seq", "--seq", "4096")
    outcome = muster(*asked, "--sweep", what, "--json")
    assert outcome.status == 0
    sweep = json.loads(outcome.out)["sweep"]
    assert len(sweep["points"]) >= 3
    assert "->" in muster(*asked, "--sweep", what).out


def test_clusters_are_compared_in_days_and_dollars(muster: Muster) -> None:
    several = ("--on", "v5p:8x8x8", "--on", "h100:512", "--batch", "4M", "--tokens", "15T")
    outcome = muster("plan", "llama-3-70b", *several)
    assert outcome.status == 0
    assert "days" in outcome.out
    assert "h100:512" in outcome.out
    answers = json.loads(muster("plan", "llama-3-70b", *several, "--json").out)
    assert [answer["cluster"]["chip"] for answer in answers] == ["v5p", "h100"]
    assert muster("plan", "llama-3-70b", *several, "--out", "x.json").status == 2


def test_what_is_fixed_stays_fixed(muster: Muster) -> None:
    outcome = muster(*PLAN, "--fix", "tensor=8", "--remat", "full", "--json")
    answer = json.loads(outcome.out)
    assert answer["layout"]["tensor"] == 8
    assert answer["workload"]["remat"] == "full"
    assert muster(*PLAN, "--fix", "tensr=8").status == 2
    assert muster(*PLAN, "--fix", "tensor").status == 2
    assert muster(*PLAN, "--minimize", "joy").status == 2


def test_no_training_is_offered_of_what_does_not_fit(muster: Muster) -> None:
    for batch, offered in (("4seq", True), ("4M", False)):
        model = "llama-3-8b" if offered else "llama-3-70b"
        out = muster("plan", model, "--on", "v5p:2x2x1", "--batch", batch).out
        assert ("carries this plan out" in out) is offered
        assert ("does not fit" in out) is not offered


def test_the_headline_says_how_little_memory_is_left(muster: Muster) -> None:
    work = ("--batch", "64seq", "--seq", "4096")
    full = muster("plan", "llama-3-8b", "--on", "v5e:2x4", *work).out
    assert "memory is 99% full" in full
    assert "\nfits with 1% of memory to spare, " in full
    assert "\nfits, " in muster("plan", "llama-3-8b", "--on", "v5p:4x4x4", *work).out
