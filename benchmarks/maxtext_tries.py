"""What `maxtext_cycles.py` compiles: set-ups of LLaMA-3, and ways in which MaxText may run them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from published.flags import CONTINUATION_AG, DATA_PARALLEL, HOST_OFFLOAD, LAYOUT_RS, VMEM

IRONWOOD = (
    "xla_tpu_scoped_vmem_limit_kib=65536",
    "xla_tpu_bf16_emission_mode=NATIVE_EMISSION",
    "xla_tpu_enable_sparse_core_reduce_scatter_v2=true",
    "xla_tpu_enable_sparse_core_collective_offload_all_gather=true",
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather=true",
    "xla_tpu_enable_all_gather_offload_tracing=true",
    "xla_tpu_use_tc_device_shape_on_sc=true",
    "xla_sc_disable_megacore_partitioning=true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather=false",
    "xla_enable_async_all_gather=true",
    "xla_tpu_prefer_async_allgather_to_allreduce=true",
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true",
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather=true",
    "xla_tpu_use_single_sparse_core_for_all_gather_offload=true",
)
FLAGS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    # AI-Hypercomputer/tpu-recipes training/v5p/Llama3.1-405B-MaxText, less those for offloading
    "v5p": VMEM + CONTINUATION_AG,
    # MaxText benchmarks/maxtext_trillium_model_configs.py llama3_1_70b_8192, without and with those
    "v6e": VMEM + LAYOUT_RS + DATA_PARALLEL + CONTINUATION_AG,
    "v6e and offloading": VMEM + LAYOUT_RS + DATA_PARALLEL + CONTINUATION_AG + HOST_OFFLOAD,
    # AI-Hypercomputer/tpu-recipes training/ironwood/llama3.1-70b/8k-bf16-tpu7x-4x4x4
    "v7x": IRONWOOD,
}
# Those that muster's own steps are compiled with: vector memory, and gathers on the SparseCores.
MUSTERS = "as muster"

COMMON = {
    "run_name": "cycles",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "reuse_example_batch": "1",
    "attention": "flash",
    "max_target_length": "4096",
    "compile_topology_num_slices": "1",
    "sa_block_q": "1024",
    "sa_block_q_dkv": "2048",
    "sa_block_q_dq": "2048",
}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model on a slice, with a batch.

    Attributes:
        model: as muster spells it, and the hardware.
        maxtext: the model as MaxText spells it, and the topology.
    """

    model: str
    maxtext: str
    hardware: str
    topology: str
    devices: int
    sequences: int


SETUPS = {
    "8b-v5p-64": Setup(
        model="llama-3-8b",
        maxtext="llama3-8b",
        hardware="v5p:4x4x4",
        topology="v5p-128",
        devices=64,
        sequences=64,
    ),
    "70b-v6e-256": Setup(
        model="llama-3-70b",
        maxtext="llama3-70b",
        hardware="v6e:16x16",
        topology="v6e-256",
        devices=256,
        sequences=256,
    ),
    "70b-v7x-64": Setup(
        model="llama-3-70b",
        maxtext="llama3-70b",
        hardware="v7x:4x4x4",
        topology="tpu7x-128",
        devices=128,
        sequences=64,
    ),
    "405b-v5p-512": Setup(
        model="llama-3.1-405b",
        maxtext="llama3.1-405b",
        hardware="v5p:8x8x8",
        topology="v5p-1024",
        devices=512,
        sequences=512,
    ),
    "405b-v5p-8192": Setup(
        model="llama-3.1-405b",
        maxtext="llama3.1-405b",
        hardware="v5p:16x16x32",
        topology="v5p-16384",
        devices=8192,
        sequences=1024,
    ),
    "70b-v5p-64": Setup(
        model="llama-3-70b",
        maxtext="llama3-70b",
        hardware="v5p:4x4x4",
        topology="v5p-128",
        devices=64,
        sequences=64,
    ),
    "70b-v5p-8192": Setup(
        model="llama-3-70b",
        maxtext="llama3-70b",
        hardware="v5p:16x16x32",
        topology="v5p-16384",
        devices=8192,
        sequences=1024,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Try:
    """A set-up compiled in one way.

    Attributes:
        setup: of SETUPS.
        ici: ways of MaxText's mesh axes within the slice, as `fsdp 64 x tensor 2`.
        remat: MaxText's policy.
        flags: of FLAGS, or MUSTERS.
        settings: beyond COMMON.
    """

    setup: str
    ici: str
    remat: str
    flags: str = "none"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Short, to choose it by and to name its files."""
        parts = (self.setup, self.ici, self.remat, self.flags)
        more = (f"{key}={value}" for key, value in self.settings.items())
        return "-".join((*parts, *more)).replace(" ", "")

    def options(self) -> tuple[str, ...]:
        """The compiler's flags, before it refuses any."""
        if self.flags != MUSTERS:
            return FLAGS[self.flags]
        from muster.hardware import parse_cluster  # MaxText's own environment has no muster

        compiler = parse_cluster(SETUPS[self.setup].hardware).chip.compiler
        assert compiler is not None
        return tuple(f"{name}={value}" for name, value in compiler.options.items())

    def arguments(self) -> Iterator[str]:
        """What `train_compile` is told."""
        setup = SETUPS[self.setup]
        told = {
            **COMMON,
            "model_name": setup.maxtext,
            "compile_topology": setup.topology,
            "per_device_batch_size": str(setup.sequences / setup.devices),
            "remat_policy": self.remat,
            "allow_split_physical_axes": "true",
            **self.settings,
        }
        for axis in self.ici.split(" x "):
            name, ways = axis.split()
            told[f"ici_{name}_parallelism"] = ways
        yield from (f"{key}={value}" for key, value in told.items())


# What the recipe of the 70B on 64 chips of v7x keeps: less than save_dot_with_context_except_mlp.
CONTEXT_AND_QKV = dict.fromkeys(("context", "query_proj", "key_proj", "value_proj"), "device")
FOUR_PARTS = {"gradient_accumulation_steps": "4", "per_device_batch_size": "0.25"}
TRIES: tuple[Try, ...] = (
    Try(setup="8b-v5p-64", ici="fsdp 64", remat="minimal_with_context"),
    Try(setup="8b-v5p-64", ici="fsdp 64", remat="minimal_with_context", flags="v5p"),
    Try(setup="8b-v5p-64", ici="fsdp 64", remat="minimal_with_context", flags=MUSTERS),
    Try(
        setup="70b-v6e-256",
        ici="fsdp 256",
        remat="save_dot_with_context_except_mlp",
        flags="v6e and offloading",
    ),
    Try(setup="70b-v6e-256", ici="fsdp 256", remat="save_dot_with_context_except_mlp", flags="v6e"),
    Try(setup="70b-v6e-256", ici="fsdp 256", remat="save_dot_with_context_except_mlp"),
    Try(setup="70b-v6e-256", ici="fsdp 256", remat="custom", flags="v6e", settings=CONTEXT_AND_QKV),
    Try(setup="70b-v6e-256", ici="fsdp 256", remat="save_qkv_proj"),
    Try(setup="70b-v6e-256", ici="fsdp 256", remat="save_qkv_proj", flags=MUSTERS),
    Try(setup="70b-v7x-64", ici="fsdp 64 x tensor 2", remat="minimal_with_context", flags="v7x"),
    Try(setup="70b-v7x-64", ici="fsdp 64 x tensor 2", remat="minimal_with_context"),
    Try(setup="70b-v7x-64", ici="fsdp 64 x tensor 2", remat="minimal_with_context", flags=MUSTERS),
    Try(setup="405b-v5p-512", ici="fsdp 512", remat="save_dot_with_context_except_mlp"),
    Try(
        setup="405b-v5p-512", ici="fsdp 512", remat="save_dot_with_context_except_mlp", flags="v5p"
    ),
    Try(
        setup="405b-v5p-512",
        ici="fsdp 512",
        remat="save_dot_with_context_except_mlp",
        flags=MUSTERS,
    ),
    Try(setup="405b-v5p-512", ici="fsdp 512", remat="custom", settings=CONTEXT_AND_QKV),
    Try(
        setup="405b-v5p-512",
        ici="fsdp 64 x tensor 8",
        remat="minimal_with_context",
        flags="v5p",
        settings=FOUR_PARTS,
    ),
    Try(
        setup="405b-v5p-512",
        ici="fsdp 64 x tensor 8",
        remat="minimal_with_context",
        settings=FOUR_PARTS,
    ),
    Try(
        setup="405b-v5p-8192",
        ici="fsdp 1024 x tensor 8",
        remat="minimal_with_context",
        flags="v5p",
    ),
    Try(setup="405b-v5p-8192", ici="fsdp 1024 x tensor 8", remat="minimal_with_context"),
    Try(
        setup="405b-v5p-8192",
        ici="fsdp 1024 x tensor 8",
        remat="minimal_with_context",
        flags=MUSTERS,
    ),
    Try(setup="70b-v5p-64", ici="fsdp 64", remat="minimal_with_context", flags="v5p"),
    Try(setup="70b-v5p-64", ici="fsdp 64", remat="minimal_with_context"),
    Try(setup="70b-v5p-64", ici="fsdp 64", remat="minimal_with_context", flags=MUSTERS),
    Try(
        setup="70b-v5p-64",
        ici="fsdp 64",
        remat="save_dot_with_context_except_mlp",
        flags=MUSTERS,
    ),
    Try(setup="70b-v5p-64", ici="fsdp 64", remat="minimal"),
    Try(setup="70b-v5p-8192", ici="fsdp 1024 x tensor 8", remat="minimal_with_context"),
    Try(
        setup="70b-v5p-8192",
        ici="fsdp 1024 x tensor 8",
        remat="minimal_with_context",
        flags=MUSTERS,
    ),
)
