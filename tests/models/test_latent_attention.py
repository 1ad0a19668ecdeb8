"""Multi-head latent attention: DeepSeek and its kin, to the last parameter."""

import csv

import pytest

from muster.models.architecture import LatentAttention
from muster.models.hf_config import architecture_from_config
from muster.sharding.weights import mtp_table
from tests.models.published import CONFIGS, config, mlps, published, read, totals

with (CONFIGS.parent / "published_counts.csv").open(encoding="utf-8", newline="") as stream:
    PUBLISHED = [(row["name"], int(row["params_total"])) for row in csv.DictReader(stream)]


def test_case_14_three_totals_of_deepseek_v3() -> None:
    counted = totals(published("DeepSeek-V3"))
    assert counted.trainable == 671_026_404_352
    assert counted.untrained == 58 * 256
    assert counted.stored == 671_026_419_200
    assert round(counted.active / 1e9, 2) == 37.55


@pytest.mark.parametrize("name", ["DeepSeek-R1", "GLM-4.5", "GLM-4.5-Air"])
def test_case_14_the_hub_number_is_stored_and_multi_token_prediction(name: str) -> None:
    architecture = published(name)
    beside = sum(weight.count for weight in mtp_table(architecture))
    assert (name, totals(architecture).stored + beside) in PUBLISHED
    assert any("num_nextn_predict_layers is 1" in note for note in architecture.notes)


def test_case_15_null_and_missing_q_lora_rank_differ() -> None:
    keys = config("DeepSeek-V2-Lite")
    null = architecture_from_config(keys, name="lite")
    del keys["q_lora_rank"]
    missing = architecture_from_config(keys, name="lite")
    assert totals(null).trainable == 15_706_484_224
    assert totals(missing).trainable == 15_748_993_024
    assert not any("q_lora_rank" in note for note in null.notes)
    assert any("q_lora_rank is missing" in note for note in missing.notes)
    assert ("q_lora_rank", 1536) in missing.filled_in


def test_kimi_has_the_defaults_of_deepseek_v3() -> None:
    kimi, deepseek_v3 = read("kimi_k2"), read("deepseek_v3")
    assert kimi.layers == deepseek_v3.layers
    assert mlps(kimi)[:4] == ["Mlp", "Mlp", "Mlp", "Experts"]


@pytest.mark.parametrize(
    ("keys", "own"),
    [
        ({}, [True] * 6),
        ({"index_topk_freq": 4}, [True, True, False, False, False, True]),
        ({"index_topk_pattern": "FSSFSS"}, [True, False, False] * 2),
        ({"indexer_types": ["full"] + ["shared"] * 5}, [True] + [False] * 5),
    ],
)
def test_glm_shares_indexers_between_layers(keys: dict[str, object], own: list[bool]) -> None:
    layers = read("glm_moe_dsa", num_hidden_layers=6, **keys).layers
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, LatentAttention)]
    assert [mixer.indexer.own for mixer in mixers if mixer.indexer] == own
    assert {mixer.indexer.top_k for mixer in mixers if mixer.indexer} == {2048}
