"""Compile the programs that the tests of proof read, with whatever compiler is installed:

    python -m tests.proof.make_programs [NAME ...]

in an environment with muster[tpu]. Each is a small model's training step for a real topology; its
scheduled text goes to `programs/NAME.hlo.txt.gz`, and what it was made of to `programs/NAME.json`.
"""

import json
import sys
from typing import Any

from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof.compiler import compile_plan
from tests.proof.keep import PROGRAMS, keep

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL: dict[str, Any] = LLAMA | {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "intermediate_size": 1024,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
MISTRAL: dict[str, Any] = LLAMA | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "sliding_window": 1024,
}
# Of LLaMA-3 8B what decides where gradients are cut, and its heads.
WIDE: dict[str, Any] = LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "vocab_size": 128256,
}
# name -> config, hardware, layout, sequences, remat
Made = tuple[dict[str, Any], str, dict[str, int], int, str]
MADE: dict[str, Made] = {
    "llama-v5p-fsdp-tensor": (LLAMA, "v5p:2x2x4", {"fsdp": 8, "tensor": 2}, 16, "none"),
    "llama-v5p-fsdp64": (LLAMA, "v5p:4x4x4", {"fsdp": 64}, 64, "minimal"),
    "llama-v5p-two-slices": (LLAMA, "2xv5p:2x2x2", {"slice": 2, "fsdp": 8}, 16, "none"),
    "llama-v5p-sequence": (LLAMA, "v5p:2x2x4", {"fsdp": 4, "sequence": 4}, 4, "full"),
    "llama-v5p-hybrid": (LLAMA, "v5p:2x2x4", {"data": 4, "fsdp": 4}, 16, "outputs"),
    "llama-v5e-fsdp16": (LLAMA, "v5e:4x4", {"fsdp": 16}, 16, "outputs"),
    "llama-v6e-tensor4": (LLAMA, "v6e:4x4", {"fsdp": 4, "tensor": 4}, 16, "none"),
    "llama-7x-fsdp8": (LLAMA, "v7x:2x2x2", {"fsdp": 8}, 16, "none"),
    "llama-v5p-one-chip": (LLAMA, "v5p:1x1x1", {}, 1, "none"),
    "llama-v6e-offload": (LLAMA, "v6e:2x2", {"fsdp": 4}, 4, "offload"),
    "mistral-v5p-window": (MISTRAL, "v5p:2x2x1", {"fsdp": 4}, 4, "minimal"),
    "llama-v5p-parts": (WIDE, "v5p:4x4x4", {"fsdp": 64}, 64, "none"),
    "mixtral-v5p-expert4": (MIXTRAL, "v5p:2x2x4", {"fsdp": 4, "expert": 4}, 16, "minimal"),
}
SEQUENCE = {"mistral-v5p-window": 4096, "llama-v5p-parts": 4096}  # tokens; 1024 of the others


def plan_of(name: str) -> PlannedRun:
    """A plan with one of the layouts above; nothing is predicted."""
    config, hardware, layout, sequences, remat = MADE[name]
    document = {
        "muster": 1,
        "model": {"name": name, "config": config},
        "cluster": {"slice": hardware},
        "workload": {
            "sequence_length": SEQUENCE.get(name, 1024),
            "batch_sequences": sequences,
            "param_dtype": "bf16",
            "compute_dtype": "bf16",
            "optimizer_dtype": "f32",
            "remat": remat,
        },
        "layout": layout,
        "estimate": {"step_seconds": 1.0, "mfu": 0.5, "flops_per_token": 1.0},
    }
    return planned_run(document, where=name)


def make(name: str) -> None:
    """Compile one and write it."""
    plan = plan_of(name)
    made = compile_plan(plan)
    sys.stdout.write(f"{name} {made.status} {made.message} {made.compile_seconds:.0f} s\n")
    if made.text is None:
        return
    keep(name, made.text.read_text("utf-8"))
    facts = {
        "plan": dict(plan.document),
        "mesh": made.mesh,
        "coordinates": made.coordinates,
        "versions": made.versions,
        "cost": made.cost,
    }
    (PROGRAMS / f"{name}.json").write_text(json.dumps(facts), "utf-8")


if __name__ == "__main__":
    for each in sys.argv[1:] or MADE:
        make(each)
