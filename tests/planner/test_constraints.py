"""What makes a layout legal: one rule, one message, and the nearest legal ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UnknownName
from muster.hardware import chip_by_name
from muster.models.architecture import Architecture
from muster.models.registry import find_model
from muster.planner.constraints import (
    divisors,
    kv_copies,
    legal_expert_ways,
    legal_microbatches,
    legal_sequence_ways,
    legal_stages,
    legal_tensor_ways,
    recurrent_layers,
    shard_obstacle,
    tensor_obstacles,
)
from muster.planner.search import Restrictions
from muster.roofline.workload import Workload
from tests.planner.small import models

WORKLOAD = Workload(sequence_length=4096, batch_sequences=1024)


@pytest.mark.parametrize(
    ("model", "ways"),
    [
        ("llama-3-70b", (1, 2, 4, 8, 16, 32, 64)),
        ("llama-3.1-405b", (1, 2, 4, 8, 16, 32, 64, 128)),
        ("qwen2-7b", (1, 2, 4)),
        ("deepseek-v3", (1, 2, 4, 8, 16, 32, 64, 128)),
        ("qwen2.5-0.5b", (1, 2)),
    ],
)
def test_tensor_ways(model: str, ways: tuple[int, ...]) -> None:
    assert legal_tensor_ways(find_model(model), 1 << 20) == ways


@given(architecture=models(), ways=st.integers(1, 64))
def test_ways_are_legal_where_nothing_is_in_the_way(architecture: Architecture, ways: int) -> None:
    legal = legal_tensor_ways(architecture, 64)
    assert (ways in legal) is not bool(tensor_obstacles(architecture, ways))


def test_each_rule_has_its_message() -> None:
    rules = {each.rule: each for each in tensor_obstacles(find_model("qwen2-7b"), 24)}
    assert rules.keys() == {"heads", "d_ff"}
    assert (rules["heads"].message, rules["heads"].limit) == ("28 heads do not split 24 ways", 28)
    assert rules["d_ff"].message == "d_ff 18944 does not split 24 ways"
    (kv,) = (each for each in tensor_obstacles(find_model("qwen2-7b"), 7) if each.rule[0] == "k")
    assert kv.message == "4 KV heads neither split 7 ways nor copy evenly to them"


def test_copies_of_keys_and_values() -> None:
    model = find_model("llama-3-70b")
    assert [kv_copies(model, ways) for ways in (1, 8, 16, 64)] == [1, 1, 2, 8]


def test_expert_ways() -> None:
    assert legal_expert_ways(find_model("llama-3-8b"), 64) == (1,)
    assert legal_expert_ways(find_model("mixtral-8x7b"), 4) == (1, 2, 4)
    assert len(legal_expert_ways(find_model("deepseek-v3"), 256)) == 9


@pytest.mark.parametrize(
    ("length", "ways"),
    [
        (4096, (1, 2, 4, 8, 16, 32)),
        (6144, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)),
        (100, (1,)),
        (384, (1, 2, 3)),
    ],
)
def test_sequence_ways(length: int, ways: tuple[int, ...]) -> None:
    """Equal pieces of 128 tokens or more."""
    workload = Workload(sequence_length=length, batch_sequences=1)
    assert legal_sequence_ways(find_model("llama-3-8b"), workload, 64) == ways


@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b", "nemotron-h-56b", "qwen3.5-397b-a17b"])
def test_a_recurrence_does_not_cut_its_sequences(model: str) -> None:
    architecture = find_model(model)
    assert 0 < recurrent_layers(architecture) < architecture.num_layers
    assert legal_sequence_ways(architecture, WORKLOAD, 64) == (1,)


def test_heads_of_a_recurrence_split_as_those_of_attention_do() -> None:
    """16 key heads of its delta nets; its attention and experts would split 32 ways."""
    (obstacle,) = tensor_obstacles(find_model("qwen3.5-397b-a17b"), 32)
    assert obstacle.message == "16 key heads of the recurrence do not split 32 ways"
    assert max(legal_tensor_ways(find_model("qwen3.5-397b-a17b"), 64)) == 16


@pytest.mark.parametrize(
    ("model", "stages"),
    [
        ("llama-3.1-405b", [1, 2, 3, 4, 6, 7, 8, 9, 14, 16, 18, 21, 32, 42, 63, 64, 126]),
        ("deepseek-v3", [1, 2, 3, 4, 7, 8, 9, 16, 21, 32, 61]),
    ],
)
def test_stages_do_not_depend_on_the_chips(model: str, stages: list[int]) -> None:
    """What divides the layers, with embedding and head as one each or without; powers of two."""
    assert list(legal_stages(find_model(model), 1 << 20)) == stages
    assert list(legal_stages(find_model(model), 9)) == [each for each in stages if each <= 9]


def test_microbatches() -> None:
    assert legal_microbatches(12) == (1, 2, 3, 4, 6, 12)
    assert legal_microbatches(1) == (1,)


def test_shards_are_a_tile_or_more_on_tpus() -> None:
    model = find_model("llama-3-8b")
    assert shard_obstacle(model, chip_by_name("v5p"), 256) is None
    obstacle = shard_obstacle(model, chip_by_name("v5p"), 512)
    assert obstacle is not None
    assert (obstacle.rule, obstacle.limit) == ("tile", 256)
    assert "leaves 8 of D's 4096 rows a chip, less than a tile of 16" in obstacle.message
    assert shard_obstacle(model, chip_by_name("h100"), 512) is None


@given(number=st.integers(1, 10_000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [each for each in range(1, number + 1) if number % each == 0]


def test_an_unknown_axis_is_named() -> None:
    with pytest.raises(UnknownName, match="tensor"):
        Restrictions(fixed={"tensr": 4})
