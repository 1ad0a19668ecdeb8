"""transformers loads what a trained run exports, and computes the same loss.

Needs a Python that has transformers and torch; the environment variable ORACLE_PYTHON names it.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.training import tiny
from tests.training.commands import Workshop
from tests.training.jobs import write_corpus

ORACLE = Path(os.environ.get("ORACLE_PYTHON", "no-such-python"))
LOSS = """
import sys
import numpy as np, torch
from transformers import AutoModelForCausalLM
model, found = AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype=torch.float32, output_loading_info=True)
assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
ids = torch.from_numpy(np.load(sys.argv[2]).astype(np.int64))
print(model(ids, labels=ids).loss.item())
"""


@pytest.mark.slow
@pytest.mark.skipif(not ORACLE.exists(), reason="no Python with transformers at ORACLE_PYTHON")
@pytest.mark.parametrize("changes", [{}, tiny.EXPERTS], ids=["dense", "experts"])
def test_transformers_loads_what_training_exports(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    write_corpus(tmp_path / "texts")
    shop = Workshop(tmp_path)
    model = shop.config(**changes)
    shop.run(*shop.train(tmp_path / "run", "--steps", 3, model=model)).well()
    shop.run("export", tmp_path / "run", "--out", tmp_path / "exported").well()
    ids = np.random.default_rng(0).integers(0, 320, (2, 24))
    np.save(tmp_path / "ids.npy", ids)
    ours = [
        json.loads(shop.run("eval", source, "--ids", tmp_path / "ids.npy", "--json").well().out)
        for source in (tmp_path / "run", tmp_path / "exported")
    ]
    assert (ours[0].pop("step"), ours[1].pop("step")) == (3, None)
    assert ours[0] == ours[1]
    told = subprocess.run(
        [ORACLE, "-c", LOSS, tmp_path / "exported", tmp_path / "ids.npy"],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": ""},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert float(told.stdout) == pytest.approx(ours[0]["loss"], abs=1e-5)
