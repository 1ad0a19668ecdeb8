"""Cases from the field (../shared/facts/cases.md): sharding, batch, memory and hardware.

Number 37, the peak of restoring a checkpoint, has no test: a plan says nothing of it yet.
"""

import pytest

from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import make_plan
from muster.planner.constraints import kv_copies, legal_sequence_ways, legal_tensor_ways
from muster.planner.plan import Plan
from muster.planner.search import Restrictions
from muster.planner.workload import make_workload
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.software import MUSTER, XLA
from muster.roofline.step_memory import step_memory
from muster.roofline.step_time import StepModel
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.units import parse_batch
from tests.planner.plans import plan_of
from tests.roofline.cases import dense

V4_USABLE = pytest.approx(30.75 * 2**30, rel=2e-4)
WORKLOAD = Workload(sequence_length=4096, batch_sequences=512)


def held(remat: Remat | None = None, **ways: int) -> Restrictions:
    return Restrictions(fixed=ways, remat=remat)


def warning_of(plan: Plan, words: str) -> str:
    (found,) = (line for line in plan.warnings if words in line)
    return found


def plan_in_f32(model: str, hardware: str, batch: str, *, seq: int, **ways: int) -> Plan:
    architecture = find_model(model)
    workload = make_workload(
        architecture, parse_batch(batch), sequence_length=seq, param_dtype="f32"
    )
    return make_plan(
        architecture, parse_cluster(hardware), workload, restrictions=Restrictions(fixed=ways)
    )


@pytest.mark.parametrize(
    ("model", "hardware", "copies", "most"),
    [("qwen3-30b-a3b", "h100:64", 2, 4), ("qwen3.5-397b-a17b", "h100:512", 4, 2)],
)
def test_case_23_fewer_kv_heads_than_tensor_ways(
    model: str, hardware: str, copies: int, most: int
) -> None:
    assert kv_copies(find_model(model), 8) == copies
    assert kv_copies(find_model(model), most) == 1
    plan = plan_of(model, hardware, "512seq", restrictions=held(tensor=8))
    line = warning_of(plan, "KV heads")
    assert f"8-way tensor parallelism over {most} KV heads" in line
    assert f"keeps {copies} copies of each K and V; {most} ways need none" in line


def test_case_23_copies_are_counted_in_bytes() -> None:
    """At 8 ways 4 KV heads weigh on a chip what 8 would: one whole head."""
    few, many = (
        StepModel(
            dense(L=4, D=1024, F=4096, N=16, K=kv, H=128, V=1000), parse_cluster("h100:8"), WORKLOAD
        )
        for kv in (4, 8)
    )
    assert few.numbers(8, 1) == many.numbers(8, 1)
    assert few.numbers(4, 1)[0] < many.numbers(4, 1)[0]
    key_and_value = 4 * 2 * 1024 * 128
    assert 2 * few.numbers(8, 1)[0] - few.numbers(4, 1)[0] == pytest.approx(key_and_value, rel=0.02)


def test_case_24_heads_that_do_not_divide() -> None:
    """7, 14 and 28 ways divide the heads, but d_ff 18,944 = 2^9 x 37 does not split so."""
    assert legal_tensor_ways(find_model("qwen2-7b"), 64) == (1, 2, 4)
    with pytest.raises(BadInput) as error:
        plan_of("qwen2-7b", "h100:512", "1024seq", restrictions=held(tensor=8))
    assert "28 heads do not split 8 ways; legal tensor ways: 1, 2, 4" in str(error.value)


def test_case_26_sequence_parallelism_has_no_cap_of_heads() -> None:
    """Keys and values travel, heads stay: 40 heads and 8 KV heads do not limit 64k tokens."""
    model = dense(L=48, D=5120, F=13824, N=40, K=8, H=128, V=152064)
    workload = Workload(sequence_length=65536, batch_sequences=16)
    assert max(legal_sequence_ways(model, workload, 1024)) == 512
    whole_40 = Workload(sequence_length=81920, batch_sequences=16)
    assert {8, 40} < set(legal_sequence_ways(model, whole_40, 1024))
    for ways in (16, 64):
        plan = make_plan(
            model,
            parse_cluster("v5p:8x8x16"),
            workload,
            restrictions=held(sequence=ways),
        )
        assert plan.layout.sequence == ways
        assert plan.fits


@pytest.mark.parametrize(
    ("vocabulary", "ways", "heads", "padded"),
    [
        (151_669, 4, 16, "pad it by 3 rows to 151,672"),
        (250_682, 8, 16, "pad it by 6 rows to 250,688"),
        (129_280, 24, 24, "pad it by 8 rows to 129,288"),
    ],
)
def test_case_27_padded_vocabulary(vocabulary: int, ways: int, heads: int, padded: str) -> None:
    model = dense(L=4, D=3072, F=6144, N=heads, K=heads, H=128, V=vocabulary)
    plan = make_plan(model, parse_cluster("v5p:4x4x12"), WORKLOAD, restrictions=held(tensor=ways))
    line = warning_of(plan, "vocabulary")
    assert f"does not split {ways} ways" in line
    assert padded in line
    assert "mask their logits, strip on export" in line


def test_case_28_a_batch_of_one_is_never_scaled() -> None:
    """A v3-8 is four chips: 4 tensor ways take a batch of 1, 4 FSDP or data ways one of 4."""
    plan = plan_of("llama-3-8b", "v3-8", "1seq", seq=2048, restrictions=held(tensor=4))
    assert (plan.workload.batch_sequences, plan.layout.batch_ways) == (1, 1)
    for axis in ("fsdp", "data"):
        with pytest.raises(BadInput, match="1 sequences do not split 4 ways"):
            plan_of(
                "llama-3-8b", "v3-8", "1seq", seq=2048, restrictions=Restrictions(fixed={axis: 4})
            )
    four = plan_of("llama-3-8b", "v3-8", "4seq", seq=2048, restrictions=held(fsdp=4))
    assert (four.workload.batch_sequences, four.layout.batch_ways) == (4, 4)


def test_case_29_a_pod_that_cannot_be_scheduled_and_that_the_batch_does_not_fill() -> None:
    plan = plan_of("llama-3-70b", "v5p:16x20x28", "1024seq")
    assert "the largest slice that can be scheduled is 6144 chips" in warning_of(plan, "several")
    idle = warning_of(plan, "do not divide")
    assert "8,960 = 2^8*5*7" in idle
    assert "greatest common divisor 256" in idle
    assert "book 2xv5p:16x16x16 (8,192 chips)" in idle
    assert "v5p:16x16x16 (4,096 chips, a step takes" in idle
    assert plan.layout.chips_used < 8960
    assert 1024 * 4096 // 8960 == 468


def test_case_31_405b_in_float32_cannot_train_on_128_v4() -> None:
    """12 B a parameter are 4.87 TB, 128 x 30.75 GiB are 4.23 TB."""
    plan = plan_in_f32("llama-3.1-405b", "v4-256", "512seq", seq=4096)
    assert not plan.fits
    assert plan.memory.params + plan.memory.optimizer > plan.memory.usable
    assert plan.memory.usable == V4_USABLE
    assert 12 * plan.params.trainable == pytest.approx(4.87e12, rel=1e-3)
    line = warning_of(plan, "does not fit")
    assert "no sharding over these 128 chips can hold them" in line
    assert "on v4:" in line.partition("it fits")[2]


@pytest.mark.parametrize(
    ("model", "state", "fits"),
    [("llama-1-7b", 80.9e9, True), ("llama-1-13b", 156e9, False), ("llama-1-30b", 390e9, False)],
)
def test_case_32_float32_training_on_a_v3_8(model: str, state: float, fits: bool) -> None:
    plan = plan_in_f32(model, "v3-8", "8seq", seq=2048)
    assert 12 * plan.params.trainable == pytest.approx(state, rel=2e-3)
    assert plan.fits is fits
    if fits:
        assert "it may not fit" in warning_of(plan, "% full")  # barely
    else:
        assert "no sharding over these 4 chips" in warning_of(plan, "does not fit")


def test_case_32_replicas_shard_nothing() -> None:
    """Four replicas: FSDP and tensor ways of 1 leave each chip the whole state."""
    plan = plan_in_f32("llama-1-7b", "v3-8", "8seq", seq=2048, fsdp=1, tensor=1, sequence=1)
    assert not plan.fits
    assert plan.memory.params == 4 * plan.params.trainable


def test_case_33_logits_dominate_and_v4_has_30_75_gib() -> None:
    """A model of the field with a large vocabulary; here Gemma's, 32 sequences a chip.

    Whole logits, as MaxText of the time had them, do not fit; in more microbatches, or in chunks as
    muster's own loss takes them, they do.
    """
    cluster = parse_cluster("2xv4:4x4x12")
    model, work = (
        find_model("gemma-2-9b"),
        Workload(sequence_length=2048, batch_sequences=32 * 384, remat=Remat.FULL.value),
    )
    whole, parts, chunks = (
        step_memory(
            StepModel(model, cluster, work, software=software),
            Layout(slice=2, fsdp=192, microbatches=microbatches),
            remat_policy(Remat.FULL),
        )
        for software, microbatches in ((XLA, 1), (XLA, 16), (MUSTER, 1))
    )
    assert whole.usable == V4_USABLE
    assert not whole.fits
    state = whole.params + whole.gradients + whole.optimizer + whole.gathered
    assert whole.logits > max(whole.activations, whole.workspace, state)
    assert parts.fits
    assert chunks.logits < whole.logits / 4


def test_case_34_the_larger_slice_fits_and_the_smaller_does_not() -> None:
    """The same global batch of a 7B, one microbatch, dots saved: v4-1024 and v4-512."""
    restrictions = held(Remat.MINIMAL, fsdp=256, microbatches=1)
    larger, smaller = (
        plan_of("llama-1-7b", hardware, "1024seq", restrictions=restrictions)
        for hardware in ("v4-1024", "v4-512")
    )
    assert larger.fits
    assert not smaller.fits
    assert "on v4:8x8x8 (512 chips)" in warning_of(smaller, "does not fit")


def test_case_35_recomputation_depends_on_the_chip() -> None:
    """70B over 256 v5e: saved dots do not fit; on chips with more memory they do."""
    dots = plan_of("llama-3-70b", "v5e-256", "1M", restrictions=held(Remat.MINIMAL, fsdp=256))
    assert not dots.fits
    assert plan_of("llama-3-70b", "v5e-256", "1M").choice.remat in {Remat.FULL, Remat.OFFLOAD}
    assert plan_of("llama-3-70b", "v5p:4x8x8", "1M").choice.remat in {Remat.NONE, Remat.MINIMAL}


def test_case_35_state_of_405b_on_256_v6e() -> None:
    plan = plan_of("llama-3.1-405b", "v6e-256", "1M", restrictions=held(fsdp=256))
    memory = plan.memory
    assert memory.params + memory.gradients + memory.optimizer == pytest.approx(19e9, rel=0.01)
    assert memory.usable == pytest.approx(32e9, rel=0.06)
