"""Bad files and bad values: one line that says what is wrong, never a traceback, never a hang."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import BadInput, UnknownName
from muster.models.architecture import Architecture
from muster.models.hf_config import MAX_CONFIG_BYTES, architecture_from_config, read_config
from muster.models.registry import catalogue_names, find_model
from muster.roofline.params import param_counts
from tests.models.published import config

LLAMA = config("Llama-3-8B")


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(BadInput) as caught:
        action()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 400
    assert caught.value.exit_status == 2
    return message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON: line 1"),
        (b"{", "not valid JSON: line 1"),
        (b'{"a": 1,}', "not valid JSON: line 1"),
        (b"[1, 2]", "holds [1, 2], not an object"),
        (b'"llama"', "holds 'llama', not an object"),
        (b"\x80\x81\x00", "not UTF-8"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "number too long"),
        (b"{}", "no model_type"),
        (b'{"model_type": 3}', "model_type is 3; it must be text"),
    ],
)
def test_contents_that_are_no_config(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert says in refusal(lambda: find_model(str(file)))
    assert says in refusal(lambda: find_model(str(tmp_path)))


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert find_model(str(tmp_path)).d_model == 4096


def test_a_file_that_is_not_there() -> None:
    assert refusal(lambda: find_model("./no/such/config.json")) == "no file no/such/config.json"


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "is a folder without a config.json" in refusal(lambda: find_model(str(tmp_path)))


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as stream:
        stream.truncate(100 * 1024**2)
    assert f"larger than {MAX_CONFIG_BYTES // 1024**2} MiB" in refusal(lambda: read_config(file))


def test_devices_and_pipes_do_not_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    assert "not a regular file" in refusal(lambda: find_model(str(pipe)))
    assert "not a regular file" in refusal(lambda: find_model(str(tmp_path)))
    assert "not a regular file" in refusal(lambda: find_model("/dev/zero"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.touch(mode=0o000)
    assert "cannot read" in refusal(lambda: read_config(file))


def test_names_with_control_characters_stay_on_one_line(tmp_path: Path) -> None:
    refusal(lambda: find_model(str(tmp_path / "a\nb.json")))
    refusal(lambda: find_model("a\0b.json"))
    refusal(lambda: find_model("x" * 5000 + ".json"))
    refusal(lambda: find_model("~no-such-user-at-all/config.json"))


def with_key(key: str, value: object) -> Architecture:
    return architecture_from_config({**LLAMA, key: value}, name="x")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("hidden_size", "4096", "hidden_size is the text '4096'; write the number without quotes"),
        ("hidden_size", 0, "hidden_size is 0; it must be at least 1"),
        ("hidden_size", -8, "hidden_size is -8; it must not be negative"),
        ("hidden_size", 4096.5, "hidden_size is 4096.5; it must be a whole number"),
        ("hidden_size", True, "hidden_size is true; it must be a whole number"),
        ("hidden_size", None, "hidden_size is missing"),
        ("hidden_size", float("nan"), "hidden_size is NaN; it must be a whole number"),
        ("hidden_size", 10**12, "no model is that large"),
        ("num_hidden_layers", 10**6, "no decoder has more than 10,000 layers"),
        ("num_hidden_layers", [2], "num_hidden_layers is [2]; it must be a whole number"),
        ("tie_word_embeddings", "no", "tie_word_embeddings is 'no'; it must be true or false"),
        ("rope_theta", float("inf"), "rope_theta is Infinity, not a finite number"),
        ("vocab_size", {}, "vocab_size is {}; it must be a whole number"),
    ],
)
def test_values_that_cannot_be(key: str, value: object, says: str) -> None:
    assert says in refusal(lambda: with_key(key, value))


def test_an_unknown_class_gets_no_count() -> None:
    message = refusal(lambda: with_key("model_type", "lama"))
    assert message.startswith("unknown model_type 'lama'; did you mean llama, ")
    assert "No count is given" in message
    assert len(message) < 200
    with pytest.raises(UnknownName):
        with_key("model_type", "x" * 1000)


def test_absent_is_filled_in_and_null_is_not() -> None:
    bare = {"model_type": "qwen3", "num_hidden_layers": 1}
    filled = dict(architecture_from_config(bare, name="x").filled_in)
    assert filled["head_dim"] == 128
    assert filled["num_key_value_heads"] == 32
    stated = {**bare, "head_dim": None, "num_key_value_heads": None}
    model = architecture_from_config(stated, name="x")
    assert model.head_dim == 4096 // 32
    assert not {"head_dim", "num_key_value_heads"} & set(dict(model.filled_in))


def test_other_names_of_a_key_are_read() -> None:
    """A class takes its own name of a key and the common one."""
    own = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4}
    common = {
        "model_type": "gpt2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    assert architecture_from_config(own, name="x") == architecture_from_config(common, name="x")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.sampled_from([0, 1, -1, 2, 3, 7, 64, 128, 10**9, 10**30])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def read_or_refuse(broken: dict[str, object], name: str) -> Architecture | str:
    """The model, or the message of why there is none; anything else is a failure."""
    try:
        return architecture_from_config(broken, name=name)
    except BadInput as error:
        return str(error)


def assert_model_or_line(outcome: Architecture | str) -> None:
    if isinstance(outcome, str):
        assert len(outcome.splitlines()) == 1
        assert len(outcome) < 400
    else:
        assert param_counts(outcome).trainable > 0


@settings(max_examples=400, deadline=None)
@given(data=st.data(), name=st.sampled_from(catalogue_names()), value=JSON)
def test_any_value_in_any_key_gives_a_model_or_one_line(
    data: st.DataObject, name: str, value: object
) -> None:
    broken = config(name)
    target = broken
    key = data.draw(st.sampled_from(sorted(target)))
    inner = target[key]
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        target[key] = target = dict(inner)
        key = data.draw(st.sampled_from(sorted(target)))
    target[key] = value
    assert_model_or_line(read_or_refuse(broken, name))


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(catalogue_names()))
def test_any_absent_key_gives_a_model_or_one_line(data: st.DataObject, name: str) -> None:
    broken = config(name)
    for key in data.draw(st.sets(st.sampled_from(sorted(broken)), max_size=6)):
        del broken[key]
    assert_model_or_line(read_or_refuse(broken, name))
