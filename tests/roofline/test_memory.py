"""Memory: the book's table, threads where a plan would have said no, and identities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UnknownName
from muster.models.architecture import Architecture
from muster.roofline.memory import (
    BookMemory,
    MemoryPerChip,
    StateFormat,
    activation_bytes,
    book_memory,
    dtype_bytes,
    fewest_chips,
    logits_bytes,
    memory_per_chip,
    params_per_chip,
    state_bytes,
)
from muster.roofline.mfu import active_params
from muster.roofline.remat import Remat
from muster.units import GIB

from .cases import (
    BATCH,
    BATCH_OF_MEMORY_TABLE,
    HBM,
    POD,
    architectures,
    book,
    decoder,
    deepseek_v3,
    published,
)

FLOAT32 = StateFormat(param_dtype="f32")


def _book_70b(*, tokens: float, checkpoints: int = 2) -> BookMemory:
    return book_memory(parameters=70e9, D=8192, L=80, tokens=tokens, checkpoints=checkpoints)


def test_book_fewest_chips() -> None:
    case, memory = book()["llama3-70b-fewest-chips"], _book_70b(tokens=BATCH_OF_MEMORY_TABLE)
    assert case.agrees("parameters_bytes", memory.parameters)
    assert case.agrees("optimizer_bytes", memory.optimizer)
    assert case.agrees("activation_bytes", memory.activations)
    assert case.agrees("total_bytes", memory.total)
    assert fewest_chips(memory.total, HBM) == case.expect["chips"]


def test_book_memory_per_chip() -> None:
    case = book()["llama3-70b-memory-per-chip"]
    assert case.agrees("bytes_per_chip", _book_70b(tokens=BATCH).per_chip(POD))
    many = _book_70b(tokens=BATCH, checkpoints=12).per_chip(POD)
    assert case.agrees("bytes_per_chip_12_checkpoints", many)


def test_two_checkpoints_are_the_outputs_policy() -> None:
    kept = activation_bytes(published("Llama-3-70B"), 4_000_000, Remat.OUTPUTS)
    assert kept.total == _book_70b(tokens=BATCH_OF_MEMORY_TABLE).activations


def test_float32_405b_fits_no_v4_slice_of_128_chips() -> None:
    """cases.md 31: 12 B a parameter are 4.87 TB, more than 128 x 30.75 GiB at any sharding."""
    held = state_bytes(active_params(published("Llama-3.1-405B")), FLOAT32).persistent
    assert held == pytest.approx(4.87e12, rel=1e-3)
    assert held > 128 * 30.75 * GIB == pytest.approx(4.23e12, rel=2e-3)
    assert fewest_chips(held, 30.75 * GIB) == 148


@pytest.mark.parametrize(
    ("name", "expected", "fits"),
    [("LLaMA-1-7B", 80.9e9, True), ("LLaMA-1-13B", 156e9, False), ("LLaMA-1-30B", 390e9, False)],
)
def test_state_on_a_v3_8(name: str, expected: float, fits: bool) -> None:
    """cases.md 32: 128 GiB."""
    held = state_bytes(active_params(published(name)), FLOAT32).persistent
    assert held == pytest.approx(expected, rel=3e-3)
    assert (held < 128 * GIB) == fits


def test_data_parallel_ways_do_not_shrink_the_state() -> None:
    """cases.md 32: an FSDP of one way changes nothing."""
    model = published("LLaMA-1-7B")
    assert params_per_chip(model, fsdp=1) == active_params(model)


def test_70b_on_v5e_needs_full_remat_or_offload() -> None:
    """cases.md 35: v5e-256, 16 GiB a chip, sequences of 4096."""
    model = published("Llama-3-70B")

    def memory(remat: Remat) -> MemoryPerChip:
        return memory_per_chip(
            model,
            tokens_per_chip=4096,
            remat=remat,
            state=FLOAT32,
            fsdp=256,
            logits_chunks=8,
        )

    assert memory(Remat.MINIMAL).total > 16 * GIB
    assert memory(Remat.FULL).total < 16 * GIB
    assert memory(Remat.OFFLOAD).total < 16 * GIB


def test_405b_state_on_v6e_256() -> None:
    """cases.md 35: 19 GB of 32 per chip."""
    held = state_bytes(params_per_chip(published("Llama-3.1-405B"), fsdp=256), FLOAT32)
    assert held.persistent == pytest.approx(19e9, rel=5e-3)


@pytest.mark.parametrize(
    ("state", "persistent", "total"),
    [
        (StateFormat(), 10, 12),
        (FLOAT32, 12, 16),
        (StateFormat(master_copy=True), 14, 16),
        (StateFormat(master_copy=True, gradient_dtype="f32"), 14, 18),
        (StateFormat(optimizer_dtype="bf16"), 6, 8),
        (StateFormat(optimizer="sgd"), 2, 4),
    ],
)
def test_bytes_per_parameter(state: StateFormat, persistent: int, total: int) -> None:
    held = state_bytes(1, state)
    assert (held.persistent, held.total) == (persistent, total)


def test_an_unknown_dtype_names_the_choices() -> None:
    with pytest.raises(UnknownName, match="bf16"):
        dtype_bytes("b16")


def test_experts_split_over_their_ways_and_nothing_else_does() -> None:
    model = deepseek_v3()
    routed = 58 * 256 * 3 * 7168 * 2048
    rest = params_per_chip(model) - routed
    assert params_per_chip(model, expert=64) == routed // 64 + rest


def test_a_table_of_params_per_chip_is_exact_for_one_chip() -> None:
    model = published("Llama-3-70B")
    assert params_per_chip(model) == 70_553_706_496


def test_logits_in_chunks() -> None:
    whole = logits_bytes(8192, 128_256)
    assert whole == 4 * 8192 * 128_256
    assert logits_bytes(8192, 128_256, chunks=16) * 16 == whole
    assert logits_bytes(8192, 128_256, tensor=8) * 8 == whole


def test_offloaded_activations_wait_on_the_host() -> None:
    model = published("Llama-3-8B")
    offloaded = activation_bytes(model, 4096, Remat.OFFLOAD)
    minimal = activation_bytes(model, 4096, Remat.MINIMAL)
    assert offloaded.host == minimal.hbm
    assert offloaded.hbm * 16 == minimal.hbm  # 2 of 32 layers


def test_a_model_of_one_layer_has_no_more_in_flight_than_it_keeps() -> None:
    model = published("Llama-3-8B")
    one = decoder(model.layers[:1], D=model.d_model, V=model.vocab_size)
    offloaded = activation_bytes(one, 4096, Remat.OFFLOAD)
    assert offloaded.hbm == offloaded.host


WAYS = st.sampled_from([1, 2, 4, 8])


@given(
    model=architectures(),
    fsdp=WAYS,
    tensor=WAYS,
    stage=WAYS,
    expert=WAYS,
    remat=st.sampled_from(Remat),
    tokens=st.integers(1, 10_000),
)
def test_memory_is_the_sum_of_its_parts_and_falls_as_ways_grow(
    model: Architecture,
    fsdp: int,
    tensor: int,
    stage: int,
    expert: int,
    remat: Remat,
    tokens: int,
) -> None:
    def memory(f: int, t: int, s: int, e: int) -> MemoryPerChip:
        return memory_per_chip(
            model,
            tokens_per_chip=max(1, tokens // (f * e)),
            remat=remat,
            state=StateFormat(),
            fsdp=f,
            tensor=t,
            stage=s,
            expert=e,
        )

    one = memory(fsdp, tensor, stage, expert)
    parts = (one.params, one.gradients, one.optimizer, one.activations, one.logits)
    assert one.total == sum(parts)
    assert memory(2 * fsdp, tensor, stage, expert).total <= one.total
    assert memory(fsdp, 2 * tensor, stage, expert).total <= one.total
    assert memory(fsdp, tensor, 2 * stage, expert).total <= one.total
    assert memory(fsdp, tensor, stage, 2 * expert).total <= one.total


@given(total=st.floats(1, 1e15), hbm=st.floats(1e9, 1e12))
def test_the_fewest_chips_hold_it_and_one_less_does_not(total: float, hbm: float) -> None:
    chips = fewest_chips(total, hbm)
    assert total / chips <= hbm * (1 + 1e-12)
    assert chips == 1 or total / (chips - 1) > hbm * (1 - 1e-12)
