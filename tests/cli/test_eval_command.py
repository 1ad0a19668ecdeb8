"""`muster eval`: Hugging Face's loss and logits on given ids, loss on text, and what is refused."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Outcome
from tests.cli.many import outcomes

MODEL = Path(__file__).parents[1] / "data" / "parity" / "llama-3.1-tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    expected = np.load(MODEL / "expected.npz")
    np.save(folder / "ids.npy", expected["input_ids"].astype(np.int64))
    np.save(folder / "floats.npy", np.zeros((2, 8), np.float32))
    np.save(folder / "flat.npy", np.zeros(8, np.int32))
    np.save(folder / "one.npy", np.zeros((2, 1), np.int32))
    np.save(folder / "none.npy", np.zeros((0, 8), np.int32))
    np.save(folder / "beyond.npy", np.full((2, 8), 256, np.int32))
    np.save(folder / "wraps.npy", np.full((2, 8), 2**32 + 1, np.int64))
    np.save(folder / "negative.npy", np.full((2, 8), -1, np.int32))
    np.save(folder / "objects.npy", np.asarray([[{}]], object), allow_pickle=True)
    (folder / "text.npy").write_text("no array", "utf-8")
    (folder / "words.txt").write_text("eight devices and a mesh " * 20, "utf-8")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    with (folder / "huge.npy").open("wb") as stream:
        header = {"descr": "<i4", "fortran_order": False, "shape": (10**6, 10**6)}
        np.lib.format.write_array_header_1_0(stream, header)
    return folder


GOOD = {
    "ids": ["eval", str(MODEL), "--ids", "ids.npy", "--logits", "logits.npy", "--json"],
    "plain": ["eval", str(MODEL), "--ids", "ids.npy"],
    "at home": ["eval", "~/model", "--ids", "~/ids.npy", "--logits", "~/home.npy", "--json"],
    "narrow": ["eval", str(MODEL), "--ids", "ids.npy", "--dtype", "bfloat16", "--json"],
    "words": ["eval", str(MODEL), "--data", "words.txt", "--seq", "32", "--batch", "3", "--json"],
    "one batch": ["eval", str(MODEL), "--data", "words.txt", "--seq", "32", "--batch", "3",
                  "--batches", "1", "--json"],
}  # fmt: skip
BAD = {
    "nothing to evaluate on": ((), "give --data PATH or --ids F.npy, one of the two"),
    "both": (("--ids", "ids.npy", "--data", "words.txt"), "one of the two"),
    "logits of text": (("--data", "words.txt", "--logits", "x.npy"), "--logits is of given token"),
    "an unknown format": (("--ids", "ids.npy", "--dtype", "f32"), "--dtype 'f32'; choose from"),
    "no file": (("--ids", "nowhere.npy"), "no file nowhere.npy"),
    "text": (("--ids", "text.npy"), "text.npy is not a .npy file of numbers$"),
    "objects": (("--ids", "objects.npy"), "objects.npy is not a .npy file of numbers$"),
    "floats": (("--ids", "floats.npy"), r"must hold whole numbers \[batch, T\]; it holds float32"),
    "one dim": (("--ids", "flat.npy"), r"it holds int32 \[8\]"),
    "one token": (("--ids", "one.npy"), "has no next token to predict"),
    "no rows": (("--ids", "none.npy"), "has no next token to predict"),
    "beyond the vocabulary": (("--ids", "beyond.npy"), "ids from 256 to 256; the model's are 0 to"),
    "beyond 32 bits": (("--ids", "wraps.npy"), "ids from 4294967297 to 4294967297"),
    "negative": (("--ids", "negative.npy"), "ids from -1 to -1"),
    "logits nowhere": (
        ("--ids", "ids.npy", "--logits", "no/where.npy"),
        "--logits: cannot write no/where",
    ),
    "logits to a folder": (
        ("--ids", "ids.npy", "--logits", "empty"),
        "--logits: cannot write empty: it is a folder",
    ),
    "a pipe of ids": (("--ids", "pipe"), "pipe is not a regular file; give a .npy file"),
    "a pipe as tokenizer": (
        ("--data", "words.txt", "--tokenizer", "pipe"),
        "pipe is not a regular file; give a tokenizer.json",
    ),
    "a header beyond the file": (("--ids", "huge.npy"), "huge.npy is not a .npy file of numbers$"),
    "ids of no name": (("--ids", ""), "--ids '' names no file$"),
    "data of no name": (("--data", " "), "--data ' ' names no file or folder$"),
    "logits of no name": (("--ids", "ids.npy", "--logits", ""), "--logits '' names no file$"),
    "tokenizer of no name": (("--data", "words.txt", "--tokenizer", ""), "--tokenizer '' names no"),
    "nobody's home": (("--ids", "~nouser/x.npy"), "there is no home of ~nouser; write the whole"),
    "twice": (("--ids", "ids.npy", "--ids", "one.npy"), "--ids is given twice; give it once"),
    "a huge batch": (
        ("--data", "words.txt", "--seq", "1024", "--batch", "1e12"),
        "a batch of 1,000,000,000,000 sequences is too large; at most",
    ),
    "a huge row": (("--data", "words.txt", "--seq", "1e12"), "tokens is too large; at most"),
    "no data": (("--data", "nowhere"), "no file or folder nowhere"),
    "step of a folder": (
        ("--ids", "ids.npy", "--step", "3"),
        "is a Hugging Face folder, which has no step 3",
    ),
}


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Outcome]:
    commands = dict(GOOD)
    commands |= {case: ["eval", str(MODEL), *more] for case, (more, _) in BAD.items()}
    commands["no folder"] = ["eval", "nowhere", "--ids", "ids.npy"]
    commands["empty folder"] = ["eval", "empty", "--ids", "ids.npy"]
    commands["no name"] = ["eval", "", "--ids", "ids.npy"]
    shutil.copytree(MODEL, folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        return dict(zip(commands, outcomes(list(commands.values()), folder), strict=True))


def test_loss_and_logits_are_hugging_faces(folder: Path, found: dict[str, Outcome]) -> None:
    outcome = found["ids"]
    assert outcome.status == 0, outcome.err
    document, expected = json.loads(outcome.out), np.load(MODEL / "expected.npz")
    assert document["loss"] == pytest.approx(float(expected["loss"]), abs=1e-5)
    assert document["perplexity"] == pytest.approx(np.exp(document["loss"]))
    assert (document["tokens"], document["dtype"]) == (126, "float32")
    logits = np.load(folder / "logits.npy")
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)


def test_homes_are_found(folder: Path, found: dict[str, Outcome]) -> None:
    assert found["at home"].status == 0, found["at home"].err
    assert found["at home"].out == found["ids"].out
    assert np.array_equal(np.load(folder / "home.npy"), np.load(folder / "logits.npy"))


def test_says_the_same_in_words(found: dict[str, Outcome]) -> None:
    loss = json.loads(found["ids"].out)["loss"]
    assert f"loss        {loss:.6f}" in found["plain"].out
    assert "tokens      126" in found["plain"].out


def test_bfloat16_comes_near(found: dict[str, Outcome]) -> None:
    narrow, wide = json.loads(found["narrow"].out), json.loads(found["ids"].out)
    assert narrow["loss"] != wide["loss"]
    assert narrow["loss"] == pytest.approx(wide["loss"], abs=0.02)


def test_text_is_predicted_once_through(found: dict[str, Outcome]) -> None:
    """500 bytes: the first of each row of 32 but the first is predicted by none of its own row."""
    assert found["words"].status == found["one batch"].status == 0, found["words"]
    whole, part = json.loads(found["words"].out), json.loads(found["one batch"].out)
    assert 470 <= whole["tokens"] <= 501
    assert 90 <= part["tokens"] <= 96
    assert 4 < whole["loss"] < 8


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, found: dict[str, Outcome]) -> None:
    outcome = found[case]
    assert outcome.status == 2, outcome
    assert re.search(BAD[case][1], outcome.only_line), outcome.only_line


@pytest.mark.parametrize("case", ["no folder", "empty folder", "no name"])
def test_no_model_is_one_line(case: str, found: dict[str, Outcome]) -> None:
    assert found[case].status == 2, found[case]
    assert found[case].only_line
