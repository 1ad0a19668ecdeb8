"""Wrappers of text decoders, old and new, and the classes refused by name."""

from collections.abc import Mapping
from typing import Any

import pytest

from muster.errors import BadInput
from muster.models.families import BUILDERS, NESTED, REFUSED
from tests.models.published import entries_of, published, read, totals

WITH_TEXT = [
    entry
    for entry in entries_of(frozenset(["llama4", "mistral3", "qwen3_5", "qwen3_5_moe"]))
    if "text" in entry
]
QWEN = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 300,
}


@pytest.mark.parametrize("entry", WITH_TEXT, ids=[str(entry["id"]) for entry in WITH_TEXT])
def test_counts_the_text_decoder(entry: Mapping[str, Any]) -> None:
    keys = dict(entry["config"])
    assert totals(read(keys.pop("model_type"), **keys)).trainable == entry["text"]["trainable"]


def test_says_what_it_leaves_out() -> None:
    notes = published("Qwen3.5-27B").notes
    assert "vision tower (vision_config) not counted" in notes
    assert published("Gemma-3-12B-it").notes == ()


def test_older_files_hold_the_decoder_outside() -> None:
    flat = read("qwen2_5_vl", **QWEN, vision_config={"depth": 2}, tie_word_embeddings=True)
    nested = read("qwen2_5_vl", text_config=QWEN, tie_word_embeddings=True)
    assert flat.layers == nested.layers
    assert flat.tied_embeddings
    assert nested.tied_embeddings
    assert "vision tower (vision_config) not counted" in flat.notes


def test_a_contradiction_about_the_head_is_noted() -> None:
    qwen = read("qwen3_5", text_config={**QWEN, "head_dim": 16}, tie_word_embeddings=True)
    assert not qwen.tied_embeddings
    assert any("tie_word_embeddings is true outside" in note for note in qwen.notes)


def test_the_inner_class_names_itself() -> None:
    llava = read("llava", text_config={**QWEN, "model_type": "mistral"})
    assert llava.family == "mistral"


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_refuses_by_name_in_one_line(family: str) -> None:
    with pytest.raises(BadInput, match=f"{family} models are not supported") as caught:
        read(family)
    assert "\n" not in str(caught.value)


def test_every_wrapped_class_has_a_builder() -> None:
    assert {inner for _, inner in NESTED.values()} <= set(BUILDERS)
    assert not set(BUILDERS) & set(REFUSED)
    assert not set(NESTED) & set(REFUSED)
