"""What a published run is, and settings that several share."""

from collections.abc import Mapping
from dataclasses import dataclass

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


def of_2023(d_model: int, d_ff: int, layers: int, heads: int) -> dict[str, str]:
    """MaxText's own models of 2023: two MLP matrices with ReLU, tied embedding, head_dim 256.

    Their layer had attention and MLP side by side on one norm, which is the decoder block "default"
    of today: half the exchanges between tensor-parallel chips that LLaMA's takes. LLaMA's, today's
    default in spite of the name, came in January 2024 (MaxText's pull requests 285, which shows the
    layer of December 2023, and 309); these runs were published from October to December 2023.
    """
    return {
        "decoder_block": "default",
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
