"""Compiler flags of the recipes, and what stands for those that today's compiler refuses.

Runs of the time had their gathers beside matmuls by "continuation fusion". libtpu 0.0.52 takes that
on v5e alone and says of all others that it is not supported. On those it has another way to the
same end: the SparseCores run gathers while the TensorCores compute. So, for every row whose recipe
asks for what is refused, SPARSE_CORES stands in its place, and nothing else of the recipe changes:
scatters and reductions run as it says. MaxText's own groups do the same: those that turn on the
SparseCores turn off the fusion.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

# How this compiler refuses a flag: it does not know it, or not for this chip.
REFUSED = re.compile(r"Unknown command line flag '([^']+)'|Please disable it with (\w+)=false")
CONTINUATION_FUSION = "xla_tpu_enable_async_collective_fusion"
SPARSE_CORES = (
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather=false",
    "xla_tpu_enable_sparse_core_collective_offload_all_gather=true",
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather=true",
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather=true",
)

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


def taken(flags: Sequence[str], refused: Mapping[str, str]) -> list[str]:
    """The flags that the compiler takes, with what stands for those that it refuses.

    Args:
        flags: of a recipe.
        refused: the value that the compiler wants of each that it refuses, "" for none at all.
    """
    instead = instead_of(flags, refused)
    put = {name_of(flag) for flag in instead}
    return [*_left(flags, refused, put), *instead]


def instead_of(flags: Sequence[str], refused: Mapping[str, str]) -> tuple[str, ...]:
    """What stands in the place of flags that the compiler refuses."""
    asked = {name_of(flag) for flag in flags}
    return SPARSE_CORES if CONTINUATION_FUSION in asked & refused.keys() else ()


def name_of(flag: str) -> str:
    """The name of a flag with its value."""
    return flag.partition("=")[0]


def _left(flags: Sequence[str], refused: Mapping[str, str], put: set[str]) -> Iterator[str]:
    for flag in flags:
        name, _, value = flag.partition("=")
        if (value := refused.get(name, value)) != "" and name not in put:
            yield f"{name}={value}"
