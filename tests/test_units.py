import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.units import (
    BatchSize,
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_si,
    parse_batch,
    parse_count,
)

PREFIXES = {"K": 1, "M": 2, "G": 3, "B": 3, "T": 4}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("4M", 4 * 1024 * 1024),
        ("4m", 4 * 1024 * 1024),
        ("4Mi", 4 * 1024 * 1024),
        ("4 M tokens", 4 * 1024 * 1024),
        ("4194304", 4194304),
        ("4_194_304", 4194304),
        ("4,194,304", 4194304),
        ("4e6", 4_000_000),
        ("0.5M", 524288),
        ("1.5K", 1536),
    ],
)
def test_a_batch_counts_in_powers_of_two(text: str, tokens: int) -> None:
    assert parse_batch(text) == BatchSize(tokens=tokens)


@pytest.mark.parametrize("text", ["1024seq", "1024 seqs", "1K sequences", "1024 sequence"])
def test_a_batch_may_be_given_in_sequences(text: str) -> None:
    assert parse_batch(text) == BatchSize(sequences=1024)


@pytest.mark.parametrize(
    ("text", "count"),
    [("15T", 15 * 10**12), ("15e12", 15 * 10**12), ("1.5B", 15 * 10**8), ("4096", 4096)],
)
def test_a_corpus_counts_in_powers_of_ten(text: str, count: int) -> None:
    assert parse_count(text, "tokens") == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0",
        "-1",
        "-4M",
        "1.5",
        "4X",
        "nan",
        "inf",
        "1e",
        "e6",
        "4M5",
        "0x10",
        "٣",
        "1e999999",
        "9" * 5000,
        "4i",
        "4MM",
        "1..2",
        "--",
        "1,2,3",
        "1_",
        "1e-3",
        "1e19",
    ],
)
def test_what_is_not_a_positive_whole_number_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_batch(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


@given(st.text())
def test_any_text_is_a_batch_or_bad_input_in_one_line(text: str) -> None:
    try:
        batch = parse_batch(text)
    except BadInput as error:
        message = str(error)
    else:
        assert (batch.tokens or batch.sequences or 0) > 0
        message = "one line"
    assert len(message.splitlines()) == 1


@given(st.integers(1, 10**15))
def test_plain_and_separated_integers_read_back(number: int) -> None:
    assert parse_count(str(number), "n") == number
    assert parse_count(f"{number:_}", "n") == number
    assert parse_count(f"{number:,}", "n") == number


@given(st.integers(1, 10**5), st.sampled_from(sorted(PREFIXES)))
def test_prefixes_are_powers(number: int, prefix: str) -> None:
    power = PREFIXES[prefix]
    assert parse_count(f"{number}{prefix}", "n") == number * 1000**power
    assert parse_count(f"{number}{prefix}", "n", binary=True) == number * 1024**power
    assert parse_count(f"{number}{prefix}i", "n") == number * 1024**power


@given(st.floats(1e-9, 1e30))
def test_printed_quantities_are_within_their_three_digits(value: float) -> None:
    number, unit = format_bytes(value).split()
    scale = 1000.0 ** ["B", "kB", "MB", "GB", "TB", "PB", "EB"].index(unit)
    assert math.isclose(float(number.replace(",", "")) * scale, value, rel_tol=0.006)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 us"),
        (999.6e-6, "1.00 ms"),
        (0.9996, "1.00 s"),
        (59.99, "60.0 s"),
        (3600.0, "60.0 min"),
        (44 * 86400.0, "44.0 days"),
        (1.37e10, "434 years"),
    ],
)
def test_durations_take_the_unit_a_person_would(value: float, text: str) -> None:
    assert format_seconds(value) == text


def test_numbers_that_round_up_change_their_prefix() -> None:
    assert format_bytes(999_999) == "1.00 MB"
    assert format_si(999_950, "FLOP/s") == "1.00 MFLOP/s"
    assert format_count(1234567) == "1,234,567"
    assert format_flops(6.35e24) == "6.35e24 FLOPs"
