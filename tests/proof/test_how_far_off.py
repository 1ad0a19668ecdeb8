"""What is said of how far readings are from measured steps is what the document lists."""

import re
from pathlib import Path

import pytest

from muster.proof.published import (
    PUBLISHED,
    PUBLISHED_ERRORS,
    how_far_off,
    steps_that_were_near,
)

ROW = re.compile(r"^\| [\w-]+ \| 20\d\d-\d\d \|.*\| ([+-][\d.]+)% \|$", re.MULTILINE)


def test_errors_are_those_that_the_document_lists() -> None:
    page = (Path(__file__).parents[2] / PUBLISHED).read_text("utf-8")
    listed = ROW.findall(page)  # of the first table, its last column
    assert [float(each) for each in listed] == [
        pytest.approx(100 * each) for each in PUBLISHED_ERRORS
    ], f"{PUBLISHED} was made anew: write its errors into muster.proof.published"
    assert f"of {len(listed)} published runs" in how_far_off()
    near = sum(abs(float(each)) <= 10 for each in listed)
    assert steps_that_were_near().startswith(f"{near} of {len(listed)} measured steps")
