"""From what a person types to a model."""

import json
from pathlib import Path

import pytest

from muster.errors import BadInput, UnknownName
from muster.models.registry import (
    SAME_AS,
    catalogue_model,
    catalogue_names,
    find_model,
    list_models,
    published_counts,
)
from muster.roofline.params import param_counts
from tests.models.published import config


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama-3-70b", "Llama-3-70B"),
        ("Llama-3.1-70B", "Llama-3.1-70B"),
        ("llama3-70b", "Llama-3-70B"),
        ("llama-3_1-70b", "Llama-3.1-70B"),
        (" LLAMA 3.1 405b ", "Llama-3.1-405B"),
        ("gpt2", "GPT-2"),
        ("phi-4", "Phi-4-14B"),
        ("meta-llama/Meta-Llama-3-70B", "Llama-3-70B"),
        ("Meta-Llama-3-70B", "Llama-3-70B"),
        ("qwen/qwen3-0.6b", "Qwen3-0.6B"),
        ("google/gemma-3-4b-it", "Gemma-3-4B-it"),
        ("llama-tiny", "Llama-tiny"),
    ],
)
def test_names_are_forgiven(text: str, name: str) -> None:
    assert find_model(text).name == name


def test_every_name_leads_to_its_own_model() -> None:
    assert len(catalogue_names()) == 99
    for name in catalogue_names():
        assert find_model(name).name == name
        assert find_model(name.lower().replace(".", "_")).name == name


def test_listed_in_the_order_of_a_reader() -> None:
    names = catalogue_names()
    assert names.index("Llama-3-8B") < names.index("Llama-3-70B") < names.index("Llama-3.1-8B")
    assert names.index("Falcon-7B") < names.index("Falcon3-1B")
    assert [model.name for model in list_models()] == list(names)


def test_a_shared_architecture_says_so() -> None:
    for name, same in SAME_AS.items():
        model = find_model(name)
        assert model.name == name
        assert any(same in note for note in model.notes)
        assert param_counts(model) == param_counts(find_model(same))


def test_the_tiny_model_suits_a_cpu() -> None:
    tiny = find_model("llama-tiny")
    assert tiny.vocab_size == 512
    assert param_counts(tiny).trainable < 4_000_000


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("llama-4", "llama-4-maverick-17b-128e, llama-4-scout-17b-16e"),
        ("mistral-7b", "mistral-7b-v0.1, mistral-7b-v0.3"),
        ("lama-3-70b", "llama-3-70b"),
    ],
)
def test_an_unknown_name_gets_the_nearest(text: str, near: str) -> None:
    with pytest.raises(UnknownName, match=near) as caught:
        find_model(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["abacus", "\x00", "z" * 9999, "a b c", "-", "..."])
def test_nonsense_is_one_line(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        find_model(text)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["", "  "])
def test_no_name_is_said_to_be_none(text: str) -> None:
    with pytest.raises(BadInput, match="no model is named"):
        find_model(text)


def saved(folder: Path, **keys: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config("Qwen3-0.6B"), **keys}), "utf-8")
    return folder


def test_a_path_is_named_after_its_folder_or_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "my-model")
    assert find_model(str(folder)).name == "my-model"
    assert find_model(str(folder / "config.json")).name == "my-model"
    other = folder / "other.json"
    other.write_bytes((folder / "config.json").read_bytes())
    assert find_model(str(other)).name == "other"


def test_the_catalogue_wins_over_a_folder_and_a_path_over_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "qwen3-8b")
    saved(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert find_model("qwen3-8b").num_layers == 36
    assert find_model("./qwen3-8b").num_layers == 28
    assert find_model("mine").num_layers == 28


def test_a_copy_of_a_catalogue_config_stores_what_its_checkpoint_does(tmp_path: Path) -> None:
    counts = param_counts(find_model(str(saved(tmp_path / "copy"))))
    assert counts.stored == 751_632_384
    other = param_counts(find_model(str(saved(tmp_path / "other", vocab_size=151_937))))
    assert other.stored == other.trainable
    untied = param_counts(find_model(str(saved(tmp_path / "untied", tie_word_embeddings=False))))
    assert untied.stored == untied.trainable


def test_published_figures_have_sources_and_explain_themselves() -> None:
    for name in catalogue_names():
        model = catalogue_model(name)
        for figure in published_counts(model):
            assert figure.source
            assert figure.params_total == param_counts(model).stored or figure.note


def test_a_checkpoint_that_stores_the_head_twice_is_a_published_figure() -> None:
    twice = [model for model in list_models() if model.stores_tied_head]
    assert {model.name for model in twice} == {"Qwen3-0.6B", "Qwen3-1.7B", "Falcon-7B"}
    for model in twice:
        figures = {figure.params_total for figure in published_counts(model)}
        assert param_counts(model).stored in figures


def test_a_figure_is_not_borrowed_by_a_namesake(tmp_path: Path) -> None:
    namesake = find_model(str(saved(tmp_path / "Qwen3-8B")))
    assert namesake.name == "Qwen3-8B"
    assert published_counts(namesake) == ()
