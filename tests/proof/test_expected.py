"""What a plan expects to send, counted by hand, and beside what real programs send."""

import pytest

from muster.planner.plan_file import planned_run
from muster.proof.expected import AxesTraffic, Expected, compared, expected_traffic, large
from muster.proof.hlo import collectives
from muster.proof.reading import CollectiveVerdict
from tests.proof.fixtures import NAMES, facts_of, program_of

D, F, V, L, T = 1024, 4096, 32000, 4, 1024
LAYERS = L * (4 * D * D + 3 * D * F)
NORMS = (2 * L + 1) * D
BF16 = 2


def rows_of(name: str) -> dict[tuple[str, ...], AxesTraffic]:
    facts = facts_of(name)
    expected = expected_traffic(planned_run(facts["plan"], where=name), facts["mesh"])
    found = collectives(program_of(name), facts["mesh"])
    return {row.axes: row for row in compared(expected, found)}


def test_weights_gathered_twice_and_gradients_scattered_once() -> None:
    """Layers twice forward and backward, embedding and head once each, all scattered once."""
    row = rows_of("llama-v5p-fsdp64")["fsdp",]
    numbers = 3 * LAYERS + 2 * 2 * V * D
    assert row.expected == pytest.approx(63 / 64 * BF16 * numbers, rel=1e-3)
    assert row.expected_kinds == ("all-gather", "reduce-scatter")
    assert row.compiled_kinds == ("all-reduce",)
    assert row.ratio is not None
    assert 2.0 < row.ratio < 2.4  # an all-reduce sends twice what a gather does


def test_replicas_sum_their_shards() -> None:
    row = rows_of("llama-v5p-hybrid")["data",]
    held = (LAYERS + 2 * V * D) / 4
    assert row.expected == pytest.approx(2 * 3 / 4 * BF16 * held, rel=1e-3)
    assert row.what == "gradients between replicas"
    assert row.ratio == pytest.approx(1.0, abs=0.05)


def test_slices_sum_their_shards() -> None:
    row = rows_of("llama-v5p-two-slices")["slice",]
    held = (LAYERS + 2 * V * D) / 8
    assert row.expected == pytest.approx(BF16 * held, rel=1e-3)
    assert row.ratio is not None
    assert 1.0 <= row.ratio < 1.3  # the head's in float32


def test_activations_of_tensor_ways() -> None:
    """Five gathers or scatters of each of two blocks a layer, and as many at the ends."""
    row = rows_of("llama-v6e-tensor4")["tensor",]
    tokens = 16 * T / 4
    assert row.expected == pytest.approx(3 / 4 * tokens * D * BF16 * (5 * 2 * L + 5))
    assert row.ratio is not None
    assert 0.7 < row.ratio < 1.0


def test_keys_and_values_of_sequence_ways() -> None:
    row = rows_of("llama-v5p-sequence")["sequence",]
    # K and V of one sequence of a chip's four: once forward and twice backward.
    assert row.expected == pytest.approx(3 * L * 3 / 4 * 2 * T * D * BF16)


def test_experts() -> None:
    rows = rows_of("mixtral-v5p-expert4")
    tokens = 16 * T / 16
    dispatched = rows["expert",]
    assert dispatched.expected_kinds == ("all-to-all",)
    assert dispatched.expected == pytest.approx(4 * L * 3 / 4 * 2 * tokens * D * BF16)
    experts = 3 * D * 1024 * 8 / 4
    assert rows["fsdp",].expected == pytest.approx(3 / 4 * 3 * BF16 * L * experts)
    assert rows["fsdp",].ratio == pytest.approx(1.0, abs=0.01)


def test_devices_of_a_chip_count_apart() -> None:
    """A 7x chip has two devices, so the weights of eight chips are split over sixteen."""
    row = rows_of("llama-7x-fsdp8")["fsdp",]
    numbers = 3 * LAYERS + 2 * 2 * V * D
    assert row.expected == pytest.approx(15 / 16 * BF16 * numbers, rel=1e-3)


def test_one_chip_sends_nothing() -> None:
    assert not rows_of("llama-v5p-one-chip")


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_the_program_is_in_one_row(name: str) -> None:
    rows = rows_of(name)
    sent = sum(c.bytes_per_chip for c in collectives(program_of(name), facts_of(name)["mesh"]))
    assert sum(row.compiled for row in rows.values()) == pytest.approx(sent)
    assert all(row.to_json()["ratio"] == row.ratio for row in rows.values())


def test_what_the_plan_does_not_expect_is_shown_if_it_is_large() -> None:
    hybrid = large(rows_of("llama-v5p-hybrid").values())
    assert [row.axes for row in hybrid if not row.expected] == [("data", "fsdp")]
    tensor = large(rows_of("llama-v5p-fsdp-tensor").values())
    assert all(row.expected for row in tensor)  # sums of norms' gradients are trifles


def test_weights_gathered_one_axis_after_another_are_the_blocks() -> None:
    """The plan has fsdp and sequence as one block; the step gathers over parts of it in turn."""
    plan = [
        Expected(axes=("fsdp", "sequence"), kinds=("all-gather",), bytes_per_chip=8.0, what="w"),
        Expected(axes=("sequence",), kinds=("all-gather",), bytes_per_chip=2.0, what="kv"),
    ]
    sent = [
        CollectiveVerdict(
            axes=axes,
            kind="all-gather",
            bytes_per_chip=each,
            count=1,
            strategy="",
            asynchronous=True,
            seconds=0.0,
            exposed_seconds=0.0,
        )
        for axes, each in ((("fsdp:32",), 6.0), (("fsdp:8",), 1.0), (("sequence",), 3.0))
    ]
    rows = {row.axes: row for row in compared(plan, sent)}
    assert rows["fsdp", "sequence"].compiled == 7.0
    assert rows["sequence",].compiled == 3.0
