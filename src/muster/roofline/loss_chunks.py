"""How many of a chip's tokens the trainer's loss takes at once, and the memory that this needs.

The softmax holds float32 logits [tokens, words] and writes their derivative in half precision. In
chunks, logits are few, but the head's gradient [D, words] is then added up in float32, read and
written with each chunk. So chips whose tokens are no more than D take them all at once: their
logits are no larger than that sum. LLaMA-3 8B on v5p, 4096 tokens a chip, compiled: rounding the
sum of four chunks alone takes 4.6 of 498 ms of cycles.
"""

# Of float32 logits, where there are chunks: a quarter of the float32 gradient of a head of 4096
# rows. LLaMA-3 8B on v5p, compiled: 176, 143 and 136 million cycles for 8192 tokens in chunks of
# 512, 1024 and 2048; three bare matmuls are 98.
CHUNK_BYTES = 512 * 2**20
WIDE, HALF = 4, 2  # bytes


def tokens_at_once(tokens: int, *, d_model: int, words: int) -> int:
    """Most tokens of a chip whose logits over its own words exist at once.

    >>> tokens_at_once(4096, d_model=4096, words=128256)
    4096
    >>> tokens_at_once(8192, d_model=4096, words=128256)
    1046
    """
    if tokens <= d_model:
        return tokens
    return min(tokens, max(1, CHUNK_BYTES // (WIDE * words)))


def loss_bytes(tokens: float, *, d_model: int, words: float) -> float:
    """Bytes of one chip at the worst moment of its loss and the loss's gradients.

    Logits with their derivative, and beside them the sum over chunks; of a single chunk, either
    logits with their derivative, or that with the head's gradient, in half precision.
    """
    if tokens <= d_model:
        return HALF * words * max((WIDE // HALF + 1) * tokens, tokens + d_model)
    logits = min(tokens * words, CHUNK_BYTES / WIDE)
    return logits * (WIDE + HALF) + WIDE * d_model * words
