"""Set-ups of rows of every source, worked out by hand from the rows' own columns."""

import math
from dataclasses import replace

import pytest

from muster.models.architecture import Attention, Experts, LatentAttention
from muster.roofline.flops import training_flops
from muster.roofline.remat import Remat
from muster.sharding.mesh import Layout
from muster.validation.models import total_params
from muster.validation.runs import Run
from muster.validation.setup import Setup, Skipped, setup_of

FULL_XLA = {"query", "key", "value", "mixing", "out", "gate", "up"}

# id -> cluster, layout, sequences of a microbatch, remat policy, what runs again, step seconds
GOLDEN: dict[str, tuple[str, Layout, float, Remat, set[str], float]] = {
    # 3072 x 2048 tokens / 512 chips = 12288 a chip; 117e12 / (1.0246e11 noncausal... /token)
    "maxtext-013": (
        "2xv5e:16x16",
        Layout(slice=2, fsdp=256),
        6,
        Remat.FULL,
        FULL_XLA,
        12288 / 1124.07,
    ),
    # v5p-256 is 128 chips; per_device_batch 2 x 256 chips = 512 sequences over 32 batch ways
    "maxtext-041": (
        "2xv5p:4x4x8",
        Layout(slice=2, fsdp=16, tensor=8),
        16,
        Remat.MINIMAL,
        {"mixing"},
        4096 / 387.06,
    ),
    # dp 1 on two slices: fsdp 128 = 64 in a slice x 2 between
    "tpu-recipes-006": (
        "2xv6e:16x16",
        Layout(slice=2, fsdp=64, tensor=4, shards_over_slices=True),
        4,
        Remat.OUTPUTS,
        {"mixing", "gate", "up"},
        58.805,
    ),
    # 512 devices on 256 chips: two devices' sequences on one chip
    "tpu-recipes-070": (
        "v7x:4x8x8",
        Layout(fsdp=256),
        4,
        Remat.OUTPUTS,
        {"out", "gate", "up"},
        12.78,
    ),
    "tpu-recipes-038": (
        "v5p:8x8x8",
        Layout(fsdp=512),
        6,
        Remat.OUTPUTS,
        {"query", "key", "value", "mixing", "gate", "up"},
        90.668,
    ),
    "axlearn-008": (
        "4xv5e:16x16",
        Layout(slice=4, fsdp=256),
        1,
        Remat.OFFLOAD,
        {"mixing"},
        14.3736,
    ),
    # topology blank: v4's cube-like shape of 256 chips
    "paxml-003": (
        "v4:4x8x8",
        Layout(fsdp=64, tensor=4),
        16,
        Remat.FULL,
        FULL_XLA,
        1024 * 1024 / 256 / 169.91,
    ),
    # local batch 8 over dp_shard 4; as many microbatches as stages
    "torchtitan-016": (
        "h100:512",
        Layout(stage=8, fsdp=4, sequence=2, tensor=8, microbatches=8),
        1,
        Remat.FULL,
        FULL_XLA | {"down"},
        32 * 65536 / 512 / 47,
    ),
    "llm-foundry-035": (
        "h100:8",
        Layout(fsdp=8, microbatches=2),
        1,
        Remat.FULL,
        FULL_XLA | {"down"},
        16 * 65536 / 8 / 1956,
    ),
    "bloom-002": (
        "a100:384",
        Layout(stage=12, data=4, tensor=8, microbatches=256, shards_optimizer=True),
        2,
        Remat.FULL,
        FULL_XLA | {"down"},
        134.02,
    ),
    "vtrain-027": (
        "a100:256",
        Layout(data=32, tensor=8, microbatches=4),
        8,
        Remat.FULL,
        FULL_XLA | {"down"},
        9.6036,
    ),
    "megatron-lm-030": (
        "a100:2240",
        Layout(fsdp=2240),
        1,
        Remat.FULL,
        FULL_XLA | {"down"},
        2048 / 11.15,
    ),
    "megatron-lm-037": (
        "a100:64",
        Layout(stage=8, tensor=8, microbatches=64, virtual_stages=3),
        1,
        Remat.NONE,
        {"mixing"},
        13.75,
    ),
    "nemo-002": (
        "h100:64",
        Layout(data=32, tensor=2, microbatches=4, shards_optimizer=True),
        2,
        Remat.NONE,
        set(),
        256 * 2048 / 64 / 5851,
    ),
    # context ranks are no batch ways: 2048 / (8 x 256) = 1
    "gpu-recipes-008": (
        "h100:256",
        Layout(
            stage=4,
            data=8,
            sequence=2,
            tensor=4,
            microbatches=256,
            virtual_stages=4,
            shards_optimizer=True,
        ),
        1,
        Remat.NONE,
        set(),
        67.8204,
    ),
    # ep 8 lies inside dp 256
    "gpu-recipes-011": (
        "h200:256",
        Layout(data=32, expert=8, microbatches=2, shards_optimizer=True),
        2,
        Remat.NONE,
        set(),
        2.7396,
    ),
    "mlperf-016": (
        "gb200:256",
        Layout(
            stage=8,
            data=4,
            sequence=2,
            tensor=4,
            microbatches=112,
            virtual_stages=8,
            shards_optimizer=True,
        ),
        1,
        Remat.NONE,
        set(),
        19.144,
    ),
    "simumax-028": (
        "b200:8",
        Layout(sequence=8, microbatches=4, shards_optimizer=True),
        1,
        Remat.NONE,
        set(),
        2.0036,
    ),
}


def read(runs: dict[str, Run], key: str) -> Setup:
    setup = setup_of(runs[key])
    assert isinstance(setup, Setup)
    return setup


@pytest.mark.parametrize("key", GOLDEN)
def test_set_ups_by_hand(runs: dict[str, Run], key: str) -> None:
    cluster, layout, micro, policy, rerun, seconds = GOLDEN[key]
    setup = read(runs, key)
    assert setup.cluster.name == cluster
    assert setup.layout == layout
    assert setup.micro_batch_sequences == micro
    assert setup.remat.policy is policy
    assert setup.remat.rerun == rerun
    assert setup.workload.remat == policy.value
    assert setup.step_seconds == pytest.approx(seconds, rel=1e-4)


def test_every_complete_row_is_a_set_up_that_agrees_with_itself(runs: dict[str, Run]) -> None:
    for run in runs.values():
        if not run.complete:
            assert isinstance(setup_of(run), Skipped)
            continue
        setup = setup_of(run)
        assert isinstance(setup, Setup), run.id
        assert setup.contradictions == (), run.id
        layout = setup.layout
        assert layout.chips_used == setup.cluster.chips == run.n_chips
        batch = layout.batch_ways * layout.microbatches * setup.micro_batch_sequences
        ranks = (run.dp or 1) * (run.fsdp or 1)
        devices = setup.cluster.chip.devices_per_chip if setup.software == "xla" else 1
        assert batch == pytest.approx(run.global_batch_sequences)
        assert ranks == devices * layout.batch_ways, run.id


def test_params_and_flops_are_those_of_the_rows(runs: dict[str, Run]) -> None:
    seen = set()
    for run in runs.values():
        if not run.complete or (run.model, run.n_layers, run.seq_len) in seen:
            continue
        seen.add((run.model, run.n_layers, run.seq_len))
        setup = read(runs, run.id)
        counted = total_params(setup.architecture) / 1e9
        stated = [each for each in (run.params_billion, run.params_billion_recomputed) if each]
        assert any(counted == pytest.approx(each, rel=0.003) for each in stated), run.id
        for causal, stated_gflops in (
            (True, run.gflop_per_token_causal),
            (False, run.gflop_per_token_noncausal),
        ):
            if stated_gflops:
                flops = training_flops(setup.architecture, run.seq_len or 1, causal=causal)
                assert flops.model_per_token / 1e9 == pytest.approx(stated_gflops, rel=0.002)
    assert len(seen) > 80


def test_known_models_are_the_published_ones(runs: dict[str, Run]) -> None:
    deepseek = read(runs, "tpu-recipes-038").architecture
    assert isinstance(deepseek.layers[0].mixer, LatentAttention)
    assert not isinstance(deepseek.layers[2].mlp, Experts)
    assert isinstance(deepseek.layers[3].mlp, Experts)
    assert deepseek.experts is not None
    assert deepseek.experts.shared is not None
    gemma = read(runs, "tpu-recipes-039").architecture
    windows = [layer.mixer.window for layer in gemma.layers if isinstance(layer.mixer, Attention)]
    assert windows[:6] == [1024] * 5 + [None]


@pytest.mark.parametrize(
    ("key", "bytes_per_second"),
    [
        ("bloom-002", 6.25e9),  # 4 x 100 Gb/s for 8 GPUs
        ("llm-foundry-105", 25e9),  # 1600 Gb/s a node
        ("fms-fsdp-001", 6.25e9),  # 400 Gb/s a node
        ("maxtext-057", 12.5e9),  # A3 High
        ("gpu-recipes-008", 25e9),  # A3 Mega
        ("gpu-recipes-010", 50e9),  # A3 Ultra
        ("vtrain-027", 12.5e9),
        ("megatron-lm-014", 25e9),  # 8 x 200 Gb/s
        ("dgxc-benchmarking-006", 50e9),  # 8 x 400 Gb/s
    ],
)
def test_network_between_nodes(runs: dict[str, Run], key: str, bytes_per_second: float) -> None:
    network = read(runs, key).cluster.chip.network
    assert getattr(network, "scale_out_bandwidth", None) == bytes_per_second


def test_torchtitans_chips(runs: dict[str, Run]) -> None:
    setup = read(runs, "torchtitan-004")
    assert setup.power_watts == 500
    assert setup.cluster.chip.id == "h100"
    assert setup.cluster.chip.hbm_bandwidth == 2.4e12


def test_share_of_recomputed_layers_follows_from_hfu(runs: dict[str, Run]) -> None:
    setup = read(runs, "fms-fsdp-004")
    assert setup.remat.layers_share == pytest.approx(3 * (46 / 43 - 1))


def test_optimizer_state(runs: dict[str, Run]) -> None:
    assert read(runs, "bloom-002").optimizer_ways == 4
    assert read(runs, "bloom-017").optimizer_ways == 1  # its notes say ZeRO stage 0
    assert read(runs, "gpu-recipes-008").optimizer_ways == 16  # data and context ranks
    assert read(runs, "megatron-lm-037").optimizer_ways == 1


def test_sequence_parallelism_follows_notes_then_date(runs: dict[str, Run]) -> None:
    assert not read(runs, "megatron-lm-036").sequence_parallel
    assert read(runs, "megatron-lm-037").sequence_parallel
    assert not read(runs, "vtrain-027").sequence_parallel
    assert read(runs, "nemo-002").sequence_parallel


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dp": 3}, "contradiction: dp 3 x fsdp 64 x tp 1 x cp 1 x pp 1 = 192, not 64 chips"),
        ({"dp": None, "fsdp": None}, "layout not stated: dp and fsdp are blank"),
        (
            {"dp": None, "fsdp": 48},
            "layout not stated: dp is blank, and 48 of 64 leave no whole one",
        ),
        ({"hardware": "abacus"}, "hardware 'abacus' is not in the catalogue"),
        ({"hardware": ""}, "hardware not stated"),
        ({"n_chips": None}, "number of chips not stated"),
        ({"n_chips": 65}, "no v4 slice has 65 chips"),
        ({"n_slices_or_nodes": 3}, "64 chips do not divide into 3 slices"),
        ({"compute_dtype": "decimal"}, "compute dtype 'decimal' is not understood"),
        ({"remat_policy": "sometimes"}, "remat policy 'sometimes' is not understood"),
        ({"n_layers": None, "d_ff": None}, "model dims not stated: n_layers, d_ff"),
        ({"n_kv_heads": 7}, "7 KV heads do not divide 24 heads"),
        ({"seq_len": None}, "sequence length not stated"),
        ({"ep": 5}, "contradiction: ep 5 does not divide the data, context and tensor ways"),
        (
            {"tokens_per_s_per_chip_recomputed": None, "measured_tflops_per_chip": None},
            "no step time, and nothing that it follows from",
        ),
        ({"complete": False}, "not complete: its source leaves out part of the set-up"),
    ],
)
def test_reasons_of_skipped_rows(
    runs: dict[str, Run], changes: dict[str, object], reason: str
) -> None:
    skipped = setup_of(replace(runs["maxtext-001"], **changes))  # type: ignore[arg-type]
    assert isinstance(skipped, Skipped)
    assert skipped.reason == reason


def test_rows_that_contradict_themselves_say_so(runs: dict[str, Run]) -> None:
    changed = replace(runs["tpu-recipes-003"], params_billion=100.0, params_billion_recomputed=None)
    setup = setup_of(changed)
    assert isinstance(setup, Setup)
    assert len(setup.contradictions) == 1


@pytest.mark.parametrize(
    ("key", "changes", "says"),
    [
        ("tpu-recipes-003", {"global_batch_sequences": 7}, "is not the global batch 7"),
        ("vtrain-042", {"grad_accum": 10**14}, "microbatches of"),
        ("maxtext-001", {"virtual_pp": 10**6}, "virtual stages without a pipeline"),
        ("vtrain-042", {"virtual_pp": 10**6}, "stages of 1000000 pieces"),
        ("maxtext-001", {"topology": "8x8x8"}, "8x8x8"),
        ("maxtext-001", {"measured_step_seconds": 1e-300}, "times the chips' peak"),
        ("tpu-recipes-003", {"measured_step_seconds": 20.0}, "not 20 s"),
    ],
)
def test_rows_that_cannot_be_are_not_scored(
    runs: dict[str, Run], key: str, changes: dict[str, object], says: str
) -> None:
    skipped = setup_of(replace(runs[key], **changes))  # type: ignore[arg-type]
    assert isinstance(skipped, Skipped)
    assert skipped.reason.startswith("contradiction: ")
    assert says in skipped.reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"topology": "axbxc"}, "topology 'axbxc' is not understood"),
        ({"optimizer": "zorg"}, "optimizer 'zorg' is not understood"),
    ],
)
def test_words_that_nobody_knows_are_not_guessed(
    runs: dict[str, Run], changes: dict[str, object], says: str
) -> None:
    skipped = setup_of(replace(runs["maxtext-001"], **changes))  # type: ignore[arg-type]
    assert isinstance(skipped, Skipped)
    assert skipped.reason == says


def test_narrow_first_moments_are_said(runs: dict[str, Run]) -> None:
    rows = [run for run in runs.values() if "mu bf16" in run.optimizer]
    assert len(rows) == 13
    for run in rows:
        setup = setup_of(run)
        assert isinstance(setup, Setup)
        assert any("first moments in bf16" in remark for remark in setup.remarks)
    assert not any("moments" in remark for remark in read(runs, "maxtext-001").remarks)


def test_flops_stand_in_for_missing_speed(runs: dict[str, Run]) -> None:
    run = runs["maxtext-001"]
    without = setup_of(replace(run, tokens_per_s_per_chip_recomputed=None))
    assert isinstance(without, Setup)
    assert without.step_seconds == pytest.approx(read(runs, run.id).step_seconds, rel=1e-3)
    bloom = runs["bloom-002"]
    speed_only = replace(bloom, measured_step_seconds=None, tokens_per_s_per_chip_recomputed=None)
    implied = setup_of(speed_only)
    assert isinstance(implied, Setup)
    assert implied.step_seconds == pytest.approx(134.02, rel=0.02)


def test_one_blank_way_follows_from_the_others(runs: dict[str, Run]) -> None:
    run = runs["bloom-002"]
    for blank in (replace(run, dp=None), replace(run, fsdp=None)):
        setup = setup_of(blank)
        assert isinstance(setup, Setup)
        assert setup.layout == read(runs, run.id).layout
        assert any("not stated" in remark for remark in setup.remarks)


def test_incomplete_rows_can_be_tried(runs: dict[str, Run]) -> None:
    tried = [setup_of(run, incomplete=True) for run in runs.values() if not run.complete]
    made = [each for each in tried if isinstance(each, Setup)]
    assert len(made) > 150
    assert all(math.isfinite(each.step_seconds) for each in made)
