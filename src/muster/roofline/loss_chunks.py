"""How many of a chip's tokens the trainer's loss takes at once, and the memory that this needs.

The softmax holds float32 logits [tokens, words] and writes their derivative in half precision. In
chunks, logits are few, but the head's gradient [D, words] is then added up in float32, read and
written with each chunk, and rounded at the end. LLaMA-3 8B on v5p, 4096 tokens a chip, compiled:
rounding the sum of four chunks alone takes 4.6 of 498 ms of cycles. So all tokens are taken at once

    where that needs no more memory:     (4 + 2) T + 2 D <= (4 + 2) D,  T <= 2 D / 3
    where logits are little of the chip: 4 T words <= memory / 32

and else as many as the second line allows, or half a GiB: LLaMA-3 8B on v5p, compiled, takes 176,
143 and 136 million cycles for 8192 tokens in chunks of 512, 1024 and 2048; three bare matmuls are
98.

T: tokens of one device. Words are those of one device, as tensor parallelism splits them.
"""

LEAST_BYTES = 512 * 2**20  # of float32 logits, where there are chunks
LITTLE = 1 / 32  # of a device's memory
WIDE, HALF = 4, 2  # bytes


def tokens_at_once(tokens: int, *, d_model: int, words: int, memory: float) -> int:
    """Most tokens of a device whose logits over its own words exist at once.

    Args:
        tokens: of the device.
        d_model: D.
        words: of the device.
        memory: bytes of the device.

    >>> tokens_at_once(4096, d_model=4096, words=128256, memory=1.028e11)  # v5p
    4096
    >>> tokens_at_once(8192, d_model=8192, words=64128, memory=1.69e10)  # v5e
    2092
    """
    if WIDE * tokens + HALF * tokens + HALF * d_model <= (WIDE + HALF) * d_model:
        return tokens
    return min(tokens, max(1, int(max(LEAST_BYTES, LITTLE * memory) / (WIDE * words))))


def loss_bytes(tokens: float, at_once: float, *, d_model: int, words: float) -> float:
    """Bytes of one device at the worst moment of its loss and the loss's gradients.

    Of tokens taken all at once, logits with their derivative, or that with the head's gradient, in
    half precision; of chunks, logits with their derivative beside the sum. Half of the head's
    gradient is counted beside logits: it could lie where they were, and the compiler's heap finds
    room for it there or not (2.7 to 4.8 GB of gaps in LLaMA-3 8B's step on v5p, none in the 70B's
    on 64).
    """
    if tokens <= at_once:
        return words * max((WIDE + HALF) * tokens + d_model, HALF * (tokens + d_model))
    return words * ((WIDE + HALF) * at_once + WIDE * d_model)
