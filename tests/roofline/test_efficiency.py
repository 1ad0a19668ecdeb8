"""The fitted constants: all there, all plausible, each with what it was fitted on."""

import tomllib

import pytest

from muster.errors import UnknownName
from muster.hardware import Chip, all_chips, parse_cluster
from muster.models.architecture import Architecture, Attention, Layer, Mlp
from muster.roofline.efficiency import (
    DATA,
    MATRIX_UNIT,
    NAMES,
    best_matmul_share,
    efficiency,
    kin_of,
    read_efficiency,
)
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.software import default_attention
from muster.roofline.step_time import predict_step
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

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


@pytest.mark.parametrize("chip", [chip for chip in all_chips() if best_matmul_share(chip.id)])
def test_no_matmul_beats_the_best_that_anyone_measured(chip: Chip) -> None:
    best = chip.fact("measured.bf16_matmul_flops")
    assert best is not None
    assert isinstance(best.value, int | float)
    for software in TABLES["software"]:
        fitted = efficiency(chip.id, software)
        assert fitted.matmul * chip.bf16_flops <= best.value * (1 + 1e-9)
        assert max(fitted.attention, fitted.flash_attn) * chip.bf16_flops <= best.value


@pytest.mark.parametrize(
    ("chip", "kin"), [("mi300x", "h100"), ("b200", "gb200"), ("b300", "gb200"), ("mi355x", "gb200")]
)
def test_a_chip_reaches_its_kins_share_of_the_best_measured_matmul(chip: str, kin: str) -> None:
    assert kin_of(chip) == kin
    one, other = efficiency(chip, "megatron"), efficiency(kin, "megatron")
    own, best = best_matmul_share(chip), best_matmul_share(kin)
    assert own
    assert best
    for name in MATRIX_UNIT:
        assert getattr(one, name) / own == pytest.approx(getattr(other, name) / best)


def test_a_fit_beyond_the_best_measured_matmul_is_cut() -> None:
    tables = {**TABLES, "chip": {**TABLES["chip"], "h100": {**TABLES["chip"]["h100"], "matmul": 1}}}
    assert read_efficiency(tables, "h100", "megatron").matmul == best_matmul_share("h100")


def test_v3_by_the_shares_of_v4_reaches_what_was_published() -> None:
    """Levanter 1.0's GPT-2 20B on v3-256, FSDP, unfused attention, whole layers computed again, its
    config's batch of 1,024: 50.9 % of the peak by 6 N + 12 L T D FLOPs a token."""
    layer = Layer(
        mixer=Attention(num_heads=64, num_kv_heads=64, head_dim=96),
        mlp=Mlp(d_ff=24576, gated=False),
    )
    gpt2 = Architecture(
        name="gpt2-20b", family="gpt2", d_model=6144, vocab_size=50257, layers=(layer,) * 44,
        tied_embeddings=True,
    )  # fmt: skip
    cluster = parse_cluster("v3:8x16")
    assert default_attention(cluster.chip).fused is False
    found = predict_step(
        gpt2, cluster, Workload(sequence_length=2048, batch_sequences=1024, param_dtype="f32"),
        Layout(fsdp=128), remat=remat_policy(Remat.FULL),
        attention=default_attention(cluster.chip),
    )  # fmt: skip
    flops = 128.084e9 * 1024 * 2048
    assert flops / (found.total * 128 * cluster.chip.bf16_flops) == pytest.approx(0.509, abs=0.03)


@pytest.mark.parametrize("kind", ["software", "chip"])
def test_every_fit_says_on_what(kind: str) -> None:
    for name, table in TABLES[kind].items():
        assert {"fitted_on", "fit", "held_back"} <= set(table), name


def test_nothing_in_the_file_is_unknown() -> None:
    words = {"fitted_on", "fit", "held_back", "narrow_fit", "narrow_held_back", "note"}
    known = set(NAMES) | words | {"variant_of", "own_rates"}
    for table in TABLES["software"].values():
        assert set(table) <= known
    for table in TABLES["chip"].values():
        assert set(table) <= known | set(TABLES["software"])
