"""Causal attention within documents, in several forms of one signature.

    attention = attention_for(mesh, sequence_length=..., ...)
    o_BTNH = attention.attend(q_BTNH, k_BTKH, v_BTKH, mask=Masking(segments=...), scale=H**-0.5)

Under context parallelism the host first permutes batches by `attention.order(T)`.
"""

from muster.training.attention.choose import ChosenAttention, attention_for
from muster.training.attention.context import balanced_order
from muster.training.attention.masking import Masking
from muster.training.attention.signature import Attend

__all__ = [
    "Attend",
    "ChosenAttention",
    "Masking",
    "attention_for",
    "balanced_order",
]
