"""`muster inspect` on MaxText's own compiled steps, beside what is published for those set-ups.

    MAXTEXT=/path/to/env/bin/python     an environment with `pip install maxtext==0.2.5`
    uv run --extra train python benchmarks/published_programs.py FOLDER --maxtext $MAXTEXT
        [--only ROW ...] [--write docs/published-programs.md]

Compiles each row's step with MaxText's `train_compile`, in a process of its own, for the real
topology (no TPU is needed), keeps the scheduled HLO text in FOLDER, reads it and prints the table.
A text that is already there is read again, not compiled again.

Which rows: of `runs.csv` all that are complete, for v5e, v5p or v6e, of a dense model on one slice;
for each (hardware, model) the newest, and of several of one day the one on the most chips. Written
down before any of them was read. Settings and flags are those of the recipe that the row names.
"""

import argparse
import datetime
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

CHILD = "--child"
# How this compiler refuses a flag: it does not know it, or not for this chip.
REFUSED = re.compile(r"Unknown command line flag '([^']+)'|Please disable it with (\w+)=false")
QUIET = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

# Flags by the names that MaxText's benchmarks/xla_flags_library.py gives to their groups.
VMEM = ("xla_tpu_scoped_vmem_limit_kib=98304",)
CONTINUATION_AG = (
    "xla_tpu_enable_async_collective_fusion=true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "xla_tpu_overlap_compute_collective_tc=true",
    "xla_enable_async_all_gather=true",
)
SPARSE_CORE_AR = (
    "xla_sc_disable_megacore_partitioning=true",
    "xla_tpu_enable_all_reduce_offload_tracing=true",
    "xla_tpu_use_tc_device_shape_on_sc=true",
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    "xla_sc_enable_instruction_fusion=false",
    "xla_sc_disjoint_spmem=false",
    "2a886c8_chip_config_name=megachip_tccontrol",
)
LAYOUT_RS = (
    "xla_tpu_use_minor_sharding_for_major_trivial_input=true",
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1",
    "xla_tpu_assign_all_reduce_scatter_layout=true",
)
DATA_PARALLEL = (
    "xla_tpu_enable_data_parallel_all_reduce_opt=true",
    "xla_tpu_data_parallel_opt_different_sized_ops=true",
)
HOST_OFFLOAD = (
    "xla_tpu_enable_all_experimental_scheduler_features=true",
    "xla_tpu_enable_scheduler_memory_pressure_tracking=true",
    "xla_tpu_host_transfer_overlap_limit=24",
    "xla_tpu_aggressive_opt_barrier_removal=ENABLED",
    "xla_lhs_prioritize_async_depth_over_stall=ENABLED",
    "xla_tpu_enable_ag_backward_pipelining=true",
    "xla_should_allow_loop_variant_parameter_in_chain=ENABLED",
    "xla_should_add_loop_invariant_op_in_chain=ENABLED",
    "xla_max_concurrent_host_send_recv=100",
    "xla_tpu_scheduler_percent_shared_memory_limit=100",
    "xla_latency_hiding_scheduler_rerun=2",
)
NO_COLLECTIVE_MATMUL = ("xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",)
OLD_COST_MODEL = ("xla_tpu_use_bundle_aware_cost_model_for_fusions=false",)
V5P_SCRIPT = (
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "xla_tpu_megacore_fusion_allow_ags=false",
    "xla_enable_async_collective_permute=true",
    "xla_tpu_enable_ag_backward_pipelining=true",
    *DATA_PARALLEL,
    "xla_tpu_enable_async_collective_fusion=true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "xla_tpu_overlap_compute_collective_tc=true",
    "xla_enable_async_all_gather=true",
)
V5P_GPT3 = (
    "xla_tpu_enable_experimental_fusion_cost_model=false",
    "xla_tpu_dot_dot_fusion_duplicated=false",
    "xla_tpu_dot_dot_fusion=false",
    "xla_jf_conv_input_fusion=true",
    "xla_jf_conv_output_fusion=false",
    "xla_tpu_rwb_fusion=false",
    "xla_tpu_copy_fusion_pad_unpad_ratio=300",
    "xla_tpu_enable_aggressive_loop_fusion_layout_opt=false",
    "xla_tpu_enable_copy_fusion=false",
    "xla_tpu_reduce_loop_fusion_dup_with_unfusable_user=false",
    "xla_tpu_scavenge_vmem_for_fusions=false",
    "xla_tpu_vector_load_fusion_window=256",
    "xla_tpu_vector_store_fusion_window=64",
    "xla_tpu_enable_async_collective_fusion=true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "xla_tpu_decompose_all_gather_einsum=true",
    "xla_tpu_spmd_rng_bit_generator_unsafe=true",
    "xla_tpu_enable_megacore_fusion=true",
    "xla_enable_async_all_gather=true",
    "xla_enable_async_collective_permute=true",
    "xla_always_enable_all_gather_2d_asymmetric=true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "xla_tpu_overlap_compute_collective_tc=true",
    "xla_tpu_dcn_max_overlap_estimation=32",
)

COMMON = {
    "run_name": "published",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "reuse_example_batch": "1",
    "attention": "flash",
    "compile_topology_num_slices": "1",
}
OFFLOAD_QKV = {
    "remat_policy": "custom",
    "decoder_layer_input": "offload",
    "query_proj": "offload",
    "key_proj": "offload",
    "value_proj": "offload",
}
BLOCKS_2048 = dict.fromkeys(
    (
        *("sa_block_q", "sa_block_kv", "sa_block_kv_compute", "sa_block_q_dkv", "sa_block_kv_dkv"),
        *("sa_block_kv_dkv_compute", "sa_block_q_dq", "sa_block_kv_dq"),
    ),
    "2048",
) | {"sa_use_fused_bwd_kernel": "true"}
BLOCKS_1024 = {"sa_block_q": "1024", "sa_block_q_dkv": "2048", "sa_block_q_dq": "2048"}


def _of_2023(d_model: int, d_ff: int, layers: int, heads: int) -> dict[str, str]:
    """MaxText's own models of 2023: two MLP matrices with ReLU, tied embedding, head_dim 256."""
    return {
        "base_emb_dim": str(d_model),
        "base_mlp_dim": str(d_ff),
        "base_num_decoder_layers": str(layers),
        "base_num_query_heads": str(heads),
        "base_num_kv_heads": str(heads),
        "head_dim": "256",
        "vocab_size": "32768",
        "mlp_activations": '["relu"]',
        "logits_via_embedding": "true",
        "max_target_length": "2048",
        "use_iota_embed": "true",
    }


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published run.

    Attributes:
        id: of `runs.csv`.
        hardware: as muster spells it.
        topology: as MaxText spells it.
        step: published seconds; of the rows that give TFLOP/s, tokens over the rate that the
            row's own convention of counting FLOPs implies.
        settings: of the recipe, beyond COMMON.
        flags: of the recipe.
        source: of settings and flags.
    """

    id: str
    hardware: str
    topology: str
    model: str
    step: float
    settings: Mapping[str, str]
    flags: tuple[str, ...]
    source: str


V5E_SCRIPTS = "MaxText configs/tpu/v5e/{}.sh"
V5P_SCRIPTS = "MaxText configs/tpu/v5p/{}.sh, batch as in runs.csv"
TRILLIUM = "MaxText benchmarks/maxtext_trillium_model_configs.py {}"
ROWS = (
    Row(
        id="maxtext-012",
        hardware="v5e-256",
        topology="v5e-256",
        model="maxtext-16b",
        step=10.658,
        settings=_of_2023(5120, 32768, 32, 32)
        | {"per_device_batch_size": "6", "remat_policy": "full"},
        flags=DATA_PARALLEL + CONTINUATION_AG,
        source=V5E_SCRIPTS.format("16b"),
    ),
    Row(
        id="maxtext-018",
        hardware="v5e-256",
        topology="v5e-256",
        model="maxtext-32b",
        step=12.519,
        settings=_of_2023(10240, 32768, 32, 32)
        | {"per_device_batch_size": "4", "remat_policy": "full"},
        flags=DATA_PARALLEL + CONTINUATION_AG,
        source=V5E_SCRIPTS.format("32b"),
    ),
    Row(
        id="maxtext-024",
        hardware="v5e-256",
        topology="v5e-256",
        model="maxtext-64b",
        step=13.935,
        settings=_of_2023(10240, 32768, 64, 32)
        | {"per_device_batch_size": "2", "remat_policy": "full"},
        flags=DATA_PARALLEL + CONTINUATION_AG,
        source=V5E_SCRIPTS.format("64b"),
    ),
    Row(
        id="maxtext-042",
        hardware="v5p:4x8x8",
        topology="v5p-512",
        model="maxtext-128b",
        step=10.214,
        settings=_of_2023(10240, 65536, 64, 64)
        | {
            "per_device_batch_size": "2",
            "remat_policy": "minimal",
            "ici_fsdp_parallelism": "32",
            "ici_tensor_parallelism": "8",
        },
        flags=V5P_SCRIPT,
        source=V5P_SCRIPTS.format("128b"),
    ),
    Row(
        id="maxtext-044",
        hardware="v5p:8x8x8",
        topology="v5p-1024",
        model="maxtext-256b",
        step=20.788,
        settings=_of_2023(20480, 65536, 64, 64)
        | {
            "per_device_batch_size": "2",
            "remat_policy": "minimal",
            "ici_fsdp_parallelism": "64",
            "ici_tensor_parallelism": "8",
        },
        flags=V5P_SCRIPT,
        source=V5P_SCRIPTS.format("256b"),
    ),
    Row(
        id="maxtext-046",
        hardware="v5p:8x8x8",
        topology="v5p-1024",
        model="maxtext-512b",
        step=43.496,
        settings=_of_2023(20480, 65536, 128, 64)
        | {
            "per_device_batch_size": "2",
            "remat_policy": "full",
            "ici_fsdp_parallelism": "32",
            "ici_tensor_parallelism": "16",
            "allow_split_physical_axes": "true",  # 32 x 16 is no product of whole axes of 8x8x8
        },
        flags=V5P_SCRIPT,
        source=V5P_SCRIPTS.format("512b") + ", physical axes split as 32 x 16 needs",
    ),
    Row(
        id="tpu-recipes-001",
        hardware="v5p:8x8x8",
        topology="v5p-1024",
        model="gpt3-175b int8",
        step=22.197,
        settings={
            "model_name": "gpt3-175b",
            "per_device_batch_size": "4",
            "remat_policy": "full",
            "ici_fsdp_parallelism": "64",
            "ici_tensor_parallelism": "8",
            "quantization": "int8",
        },
        flags=V5P_GPT3,
        source="MaxText configs/tpu/v5p/gpt3_175b/v5p_1024.sh",
    ),
    Row(
        id="tpu-recipes-005",
        hardware="v6e-256",
        topology="v6e-256",
        model="gpt3-175b int8",
        step=14.245,
        settings={
            "model_name": "gpt3-175b",
            "per_device_batch_size": "3",
            "remat_policy": "full",
            "ici_fsdp_parallelism": "-1",
            "quantization": "int8",
            **BLOCKS_1024,
        },
        flags=VMEM + CONTINUATION_AG + DATA_PARALLEL + OLD_COST_MODEL,
        source=TRILLIUM.format("gpt_3_175b"),
    ),
    Row(
        id="tpu-recipes-020",
        hardware="v6e-256",
        topology="v6e-256",
        model="llama2-70b",
        step=9.052,
        settings={
            "model_name": "llama2-70b",
            "per_device_batch_size": "2",
            "max_target_length": "4096",
            "remat_policy": "qkv_proj_offloaded",
            "ici_fsdp_parallelism": "1",
            "ici_fsdp_transpose_parallelism": "-1",
            "use_iota_embed": "true",
            **BLOCKS_1024,
        },
        flags=VMEM + CONTINUATION_AG + SPARSE_CORE_AR,
        source=TRILLIUM.format("llama2_70b_4096_sc"),
    ),
    Row(
        id="tpu-recipes-026",
        hardware="v6e-256",
        topology="v6e-256",
        model="llama3.1-8b",
        step=4.546,
        settings={
            "model_name": "llama3.1-8b",
            "per_device_batch_size": "4",
            "max_target_length": "8192",
            "ici_fsdp_parallelism": "-1",
            "use_iota_embed": "true",
            "out_proj": "offload",
            **OFFLOAD_QKV,
            **BLOCKS_2048,
        },
        flags=VMEM + LAYOUT_RS + DATA_PARALLEL + CONTINUATION_AG + SPARSE_CORE_AR + HOST_OFFLOAD,
        source=TRILLIUM.format("llama3_1_8b_8192"),
    ),
    Row(
        id="tpu-recipes-030",
        hardware="v6e-256",
        topology="v6e-256",
        model="llama3.1-70b",
        step=42.656,
        settings={
            "model_name": "llama3.1-70b",
            "per_device_batch_size": "5",
            "max_target_length": "8192",
            "ici_fsdp_parallelism": "-1",
            "use_iota_embed": "true",
            **OFFLOAD_QKV,
            **BLOCKS_2048,
        },
        flags=VMEM + LAYOUT_RS + DATA_PARALLEL + CONTINUATION_AG + HOST_OFFLOAD,
        source=TRILLIUM.format("llama3_1_70b_8192"),
    ),
    Row(
        id="tpu-recipes-017",
        hardware="v6e-8",
        topology="v6e-8",
        model="mistral-7b",
        step=6.32,
        settings={
            "model_name": "mistral-7b",
            "per_device_batch_size": "6",
            "max_target_length": "8192",
            "ici_fsdp_parallelism": "-1",
            "use_iota_embed": "true",
            "out_proj": "offload",
            **OFFLOAD_QKV,
            **BLOCKS_2048,
        },
        flags=VMEM
        + LAYOUT_RS
        + DATA_PARALLEL
        + CONTINUATION_AG
        + SPARSE_CORE_AR
        + HOST_OFFLOAD
        + NO_COLLECTIVE_MATMUL,
        source=TRILLIUM.format("mistral_7b"),
    ),
    Row(
        id="tpu-recipes-039",
        hardware="v6e-256",
        topology="v6e-256",
        model="gemma3-12b",
        step=7.318,
        settings={},
        flags=(),
        source="",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiling process left behind.

    Attributes:
        path: of the program's text; None where it did not compile.
        refused: flags that this compiler does not know.
        error: last words of a compilation that failed.
        seconds: it took.
        versions: of maxtext, jax and libtpu.
        places: x, y, z, core, slice of each device in the mesh's order.
    """

    path: Path | None
    refused: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    places: tuple[tuple[int, ...], ...] = ()


def compile_row(row: Row, folder: Path, maxtext: Path | None) -> Compiled:
    """Compile a row, or find what an earlier run left."""
    text, told = folder / f"{row.id}.hlo.txt.gz", folder / f"{row.id}.json"
    if not told.is_file():
        if maxtext is None or not row.source:
            why = "not compiled yet" if row.source else "its settings were not found"
            return Compiled(path=None, error=why)
        folder.mkdir(parents=True, exist_ok=True)
        told.write_text(json.dumps(_compile(row, text, maxtext), indent=1))
    facts = json.loads(told.read_text())
    return Compiled(
        path=text if text.is_file() else None,
        refused=tuple(facts["refused"]),
        error=facts.get("error", ""),
        seconds=facts["seconds"],
        versions=facts.get("versions", {}),
        places=tuple(tuple(place) for place in facts.get("places", ())),
    )


def _compile(row: Row, text: Path, maxtext: Path) -> dict[str, Any]:
    settings = COMMON | {"compile_topology": row.topology} | dict(row.settings)
    known = text.with_name(f"refused-{row.hardware.partition('-')[0].partition(':')[0]}.json")
    left = text.with_suffix(".told")
    left.unlink(missing_ok=True)
    began = time.perf_counter()
    while True:
        refused = json.loads(known.read_text()) if known.is_file() else {}
        run = subprocess.run(
            [
                *(str(maxtext), str(Path(__file__).resolve()), CHILD, str(text), str(left)),
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            env=os.environ | QUIET | {"LIBTPU_INIT_ARGS": " ".join(_flags(row.flags, refused))},
            capture_output=True,
            text=True,
            check=False,
        )
        said = REFUSED.search(run.stdout + run.stderr)
        if left.is_file() or said is None:
            break
        unknown, not_here = said.groups()
        if (unknown or not_here) in refused:
            break
        known.write_text(json.dumps(refused | {unknown or not_here: "" if unknown else "false"}))
    dropped = [flag for flag in row.flags if flag.partition("=")[0] in refused]
    facts: dict[str, Any] = {"refused": dropped, "seconds": time.perf_counter() - began}
    if left.is_file():
        return {**facts, **json.loads(left.read_text())}
    return facts | {"error": _last_words(run.stdout + run.stderr)}


def _last_words(text: str) -> str:
    """What a failed compilation died of, without where in whose files."""
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return errors[-1][:400].rpartition(" HLO module")[0] or errors[-1][:400] if errors else "died"


def _flags(flags: Sequence[str], refused: Mapping[str, str]) -> Iterator[str]:
    """The flags that the compiler takes; one that it refuses is left out, or has another value."""
    for flag in flags:
        name, _, value = flag.partition("=")
        if (value := refused.get(name, value)) != "":
            yield f"--{name}={value}"


def child(arguments: Sequence[str]) -> None:
    """In MaxText's Python: compile one step and keep the text of its program."""
    from importlib.metadata import version

    train_compile = import_module("maxtext.trainers.pre_train.train_compile")
    text, left, *settings = arguments
    spec = find_spec("maxtext")
    assert spec is not None
    assert spec.origin is not None
    compiles = train_compile.jit_and_compile

    def and_keep(func: Any, args: Any, kwargs: Any, mesh: Any, *others: Any) -> NoReturn:
        compiled = compiles(func, args, kwargs, mesh, *others)
        with gzip.open(text, "wt") as file:
            file.write(compiled.as_text())
        places = [[*device.coords, device.core_on_chip, 0] for device in mesh.devices.flat]
        versions = {name: version(name) for name in ("maxtext", "jax", "libtpu")}
        Path(left).write_text(json.dumps({"versions": versions, "places": places}))
        sys.exit(0)  # what else it would tell of the program takes longer than to compile it

    vars(train_compile)["jit_and_compile"] = and_keep
    base = Path(spec.origin).parent / "configs" / "base.yml"
    train_compile.main(["train_compile", str(base), *settings])


@dataclass(frozen=True, kw_only=True)
class Read:
    """A row, compiled and read; seconds.

    Attributes:
        guessed: the compiler's estimated cycles over the clock.
        compute: what the reading makes of them.
    """

    row: Row
    compiled: Compiled
    guessed: float = 0.0
    compute: float = 0.0
    kernels: float = 0.0
    exposed: float = 0.0
    other: float = 0.0
    step: float = 0.0

    @property
    def error(self) -> float:
        """Of the step, in percent of the published one."""
        return 100 * (self.step / self.row.step - 1)


def read_row(row: Row, compiled: Compiled) -> Read:
    """What `muster inspect` says of a row."""
    if compiled.path is None:
        return Read(row=row, compiled=compiled)
    from muster.hardware import parse_cluster
    from muster.proof.hlo import parse
    from muster.proof.reading import read_program
    from muster.proof.simulate import rates_of

    cluster = parse_cluster(row.hardware)
    reading = read_program(
        parse(gzip.decompress(compiled.path.read_bytes()).decode()),
        cluster,
        coordinates=compiled.places,
    )
    timeline = reading.timeline
    compute, kernels = timeline.of_kind("compute"), timeline.of_kind("kernel")
    exposed = timeline.exposed_communication
    return Read(
        row=row,
        compiled=compiled,
        guessed=reading.cycles.compute / rates_of(cluster.chip).clock,
        compute=compute,
        kernels=kernels,
        exposed=exposed,
        other=timeline.seconds - compute - kernels - exposed,
        step=timeline.seconds,
    )


def table(rows: Sequence[Read]) -> Iterator[str]:
    """The lines of the table, in Markdown."""
    yield (
        "| row | hardware | model | published s | cycles alone ms | as scheduled ms | kernels ms "
        "| exposed communication ms | other waits ms | predicted s | error |"
    )
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for each in rows:
        row = each.row
        begin = f"| {row.id} | {row.hardware} | {row.model} | {row.step:.3f} |"
        if each.compiled.path is None:
            yield f"{begin} not read | | | | | | |"
            continue
        parts = (each.guessed, each.compute, each.kernels, each.exposed, each.other)
        told = " | ".join(f"{1e3 * part:.0f}" for part in parts)
        yield f"{begin} {told} | {each.step:.3f} | {each.error:+.1f}% |"


PAGE = """# Published steps, read from MaxText's own programs

Made by `benchmarks/published_programs.py` on {date}; do not edit. {versions}.

{table}

{summary}

To make it again, with `pip install maxtext==0.2.5` in an environment of its own:

    uv run --extra train python benchmarks/published_programs.py FOLDER \\
        --maxtext ENV/bin/python --write docs/published-programs.md

Rows: of `runs.csv` all that are complete, for v5e, v5p or v6e, of a dense model on one slice; for
each hardware and model the newest, and of several of one day the one on the most chips. The rule
was written down before any of them was read. The programs are MaxText's and are not in this
repository.

Published: seconds of one step where the source gives them; of `maxtext-...` rows, which give
TFLOP/s, the tokens of a step over the rate that the row's way of counting FLOPs implies.
Cycles alone: the sum of what the compiler guessed (`estimated_cycles`), over the clock.
As scheduled: the same with matmuls and copies held to what their schedules take.
Kernels, exposed communication, other waits (copies to and from the host or VMEM, operations
without an estimate): from shapes, links and bandwidths. All are estimates; nothing ran.

These runs were compiled by MaxText and compilers of their day, these programs by the versions
above: where the two chose other layouts, another offload or another overlap, the error holds that
too. Settings are the recipe's; whatever it leaves open has the defaults of MaxText 0.2.5.

## Rows

{rows}
"""


def page(rows: Sequence[Read]) -> str:
    """The page, in Markdown."""
    read = [each for each in rows if each.compiled.path is not None]
    versions = {key: value for each in read for key, value in each.compiled.versions.items()}
    within = sum(abs(each.error) <= 10 for each in read)
    summary = (
        f"{within} of {len(rows)} rows are within 10 %; {len(rows) - len(read)} were not read."
    )
    return PAGE.format(
        date=datetime.datetime.now(tz=datetime.UTC).date(),
        versions=", ".join(f"{key} {value}" for key, value in versions.items()),
        table="\n".join(table(rows)),
        summary=summary,
        rows="\n".join(map(_told, rows)),
    )


def _told(each: Read) -> str:
    """A row's source, and what the compiler said of its flags or of itself."""
    refused = ", ".join(f"`{flag}`" for flag in each.compiled.refused)
    said = [f"- {each.row.id}: {each.row.source or 'settings not found'}"]
    said += [f"flags refused: {refused}"] if refused else []
    said += [f"not read: {each.compiled.error}"] if each.compiled.error else []
    return "; ".join(said) + "."


def main() -> None:
    """Compile, read, print."""
    if sys.argv[1:2] == [CHILD]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where programs are kept")
    parser.add_argument("--maxtext", type=Path, help="the Python that has MaxText; else none is")
    parser.add_argument("--only", nargs="*", help="rows")
    parser.add_argument("--write", type=Path, help="the page to write")
    asked = parser.parse_args()
    rows = []
    for row in ROWS:
        if asked.only and row.id not in asked.only:
            continue
        rows.append(read_row(row, compile_row(row, asked.folder, asked.maxtext)))
        print(*list(table(rows[-1:]))[2:], sep="\n", file=sys.stderr, flush=True)
    print(*table(rows), sep="\n")
    if asked.write:
        asked.write.write_text(page(rows))


if __name__ == "__main__":
    main()
