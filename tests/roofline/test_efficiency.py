"""The fitted constants: all there, all plausible, each with what it was fitted on."""

import tomllib

import pytest

from muster.errors import UnknownName
from muster.hardware import all_chips
from muster.roofline.efficiency import DATA, NAMES, efficiency

TABLES = tomllib.loads(DATA.read_text(encoding="utf-8"))
SHARES = set(NAMES) - {"elementwise", "jitter", "kernel_seconds", "hop_seconds"}


@pytest.mark.parametrize("chip", [chip.id for chip in all_chips()])
@pytest.mark.parametrize("software", list(TABLES["software"]))
def test_every_chip_has_every_constant(chip: str, software: str) -> None:
    fitted = efficiency(chip, software)
    for name in SHARES:
        assert 0 <= getattr(fitted, name) <= 1, name
    assert 0.2 < fitted.elementwise < 2
    assert 0 <= fitted.jitter < 0.05
    assert 0 <= fitted.kernel_seconds < 2e-5


def test_an_unknown_software_is_refused() -> None:
    with pytest.raises(UnknownName):
        efficiency("h100", "horovod")


def test_no_matmul_beats_the_best_that_anyone_measured() -> None:
    for chip in all_chips():
        best = chip.fact("measured.bf16_matmul_flops")
        if best is None or chip.vendor != "NVIDIA" or not isinstance(best.value, int | float):
            continue
        assert efficiency(chip.id, "megatron").matmul * chip.bf16_flops <= best.value * 1.01


@pytest.mark.parametrize("kind", ["software", "chip"])
def test_every_fit_says_on_what(kind: str) -> None:
    for name, table in TABLES[kind].items():
        assert {"fitted_on", "fit", "held_back"} <= set(table), name


def test_nothing_in_the_file_is_unknown() -> None:
    words = {"fitted_on", "fit", "held_back", "narrow_fit", "narrow_held_back", "note"}
    known = set(NAMES) | words | {"variant_of"}
    for table in TABLES["software"].values():
        assert set(table) <= known
    for table in TABLES["chip"].values():
        assert set(table) <= known | set(TABLES["software"])
