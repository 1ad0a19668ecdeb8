"""Exact totals: the published configs, and the test configs that Hugging Face's classes count."""

import csv
from collections.abc import Mapping
from typing import Any

import pytest

from muster.errors import BadInput
from muster.models.families import BUILDERS, NESTED, REFUSED
from muster.models.hf_config import architecture_from_config
from muster.roofline.params import param_counts
from muster.sharding.weights import weight_table
from tests.models.published import (
    DATA,
    assert_counts_as_hugging_face,
    config,
    hf_counts,
    model_type,
    published,
)

ROWS = list(csv.DictReader((DATA / "param_counts.csv").read_text("utf-8").splitlines()))

# Wrappers: Hugging Face's class counts a vision tower that muster leaves out, and says so.
TEXT_ONLY = frozenset({"llama4", "mistral3", "qwen3_5", "qwen3_5_moe"})

# Configs that the class builds and that cannot run, with what is wrong with them.
CANNOT_RUN = {
    "helium:2": "times 4 heads it must be 64",
    "helium:3": "times 8 heads it must be 64",
    "doge:1": "is_moe is true",
    "doge:3": "is_moe is true",
    "deepseek_v2:defaults": "num_experts_per_tok is missing",
}
COUNTED = [
    entry
    for entry in hf_counts()
    if model_type(entry) in {*BUILDERS, *NESTED}
    and entry["id"] not in CANNOT_RUN
    and model_type(entry) not in TEXT_ONLY
]


def test_there_is_a_row_for_each_published_config() -> None:
    assert len(ROWS) == 98


def test_every_published_family_is_supported() -> None:
    types = {str(config(row["name"])["model_type"]) for row in ROWS}
    assert sorted(types - set(BUILDERS) - set(NESTED)) == []


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_published_configs_match_to_the_last_parameter(row: dict[str, str]) -> None:
    counts = param_counts(published(row["name"]))
    assert counts.trainable == int(row["params_total"])
    assert counts.active == int(row["params_active"])


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_published_parts_match(row: dict[str, str]) -> None:
    table = {weight.name: weight for weight in weight_table(published(row["name"]))}
    assert table["embedding"].count == int(row["embedding_params"])
    head = sum(weight.count for weight in table.values() if weight.component == "head")
    assert head == int(row["lm_head_params"])
    routed = sum(weight.count for weight in table.values() if weight.active_share)
    assert routed == int(row["routed_expert_params"])


@pytest.mark.parametrize("entry", COUNTED, ids=[str(entry["id"]) for entry in COUNTED])
def test_counts_as_hugging_face_does(entry: Mapping[str, object]) -> None:
    assert_counts_as_hugging_face(entry)


def test_no_test_config_is_left_out_in_silence() -> None:
    left_out = {model_type(entry) for entry in hf_counts()} - {
        model_type(entry) for entry in COUNTED
    }
    assert sorted(left_out - set(REFUSED) - TEXT_ONLY - {"mimo_v2_flash"}) == []


@pytest.mark.parametrize("identity", CANNOT_RUN)
def test_configs_that_cannot_run_are_refused(identity: str) -> None:
    entry: Any = next(entry for entry in hf_counts() if entry["id"] == identity)
    with pytest.raises(BadInput, match=CANNOT_RUN[identity]):
        architecture_from_config(entry["config"], name=identity)


# Families whose class keeps every matrix apart, as the weight table does.
UNFUSED = frozenset(
    {
        *("llama", "mistral", "qwen2", "qwen3", "olmo", "olmo2", "olmo3", "granite", "cohere"),
        *("cohere2", "smollm3", "ernie4_5", "seed_oss", "hunyuan_v1_dense", "arcee", "nemotron"),
        *("starcoder2", "phi", "helium", "exaone4", "ministral", "ministral3", "nanochat", "cwm"),
        *("opt", "gptj", "gpt_neo", "xglm", "biogpt", "bitnet", "doge", "jais2", "granite_swa"),
    }
)
TENSORS = [entry for entry in COUNTED if model_type(entry) in UNFUSED]


@pytest.mark.parametrize("entry", TENSORS, ids=[str(entry["id"]) for entry in TENSORS])
def test_has_as_many_tensors(entry: Mapping[str, Any]) -> None:
    table = weight_table(architecture_from_config(entry["config"], name="x"))
    assert sum(weight.copies for weight in table if weight.trainable) == entry["tensors"]
