"""Tokens/s of Hugging Face transformers on `train_speed.py`'s model, by a Python that has torch.

    python speed_of_torch.py STEPS DTYPE

AdamW on random tokens; bfloat16 by autocast, parameters in float32, as the others do.
"""

import json
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

FIRST_COUNTED = 10
ROWS, LENGTH, VOCABULARY = 8, 256, 32000


def main() -> None:
    """Train and print the mean rate of the counted steps as JSON."""
    steps, dtype = int(sys.argv[1]), getattr(torch, sys.argv[2])
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=256,
            num_hidden_layers=4,
            intermediate_size=1024,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=64,
            vocab_size=VOCABULARY,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    begun = time.perf_counter()
    for index in range(steps):
        if index == FIRST_COUNTED:
            begun = time.perf_counter()
        ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seconds = (time.perf_counter() - begun) / (steps - FIRST_COUNTED)
    print(json.dumps({"tokens_per_second": ROWS * LENGTH / seconds}))


if __name__ == "__main__":
    main()
