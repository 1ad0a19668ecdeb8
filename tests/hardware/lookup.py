"""A TPU's rule of slices and its torus, for tests that know that it has them."""

from muster.hardware import Chip, SliceRule, Torus, chip_by_name


def rule_of(chip: Chip | str) -> SliceRule:
    found = chip_by_name(chip) if isinstance(chip, str) else chip
    assert found.slices is not None
    return found.slices


def torus_of(chip: Chip) -> Torus:
    assert isinstance(chip.network, Torus)
    return chip.network
