"""Pipelines: how layers are dealt to stages, and how long stages wait for each other.

A pipeline of p stages, v pieces a stage and m microbatches takes

    m t_max + (sum of t - t_max) / v

with t the time of one microbatch on a stage: the fullest stage works all the time, and the others
are filled and drained once. With equal stages the bubble is (p - 1) / (v m) of the work.
Source: Narayanan et al., arXiv:2104.04473, sections 2.2.1 and 2.2.2.

Legend: L layers, p stages, v pieces a stage, m microbatches.
"""

import math


def stage_layers(L: int, p: int, v: int = 1) -> tuple[float, float]:
    """Layers of a middle stage and of the last one.

    Where they do not divide evenly, embedding and head count as a layer each if that divides
    (Megatron's `account_for_embedding_in_pipeline_split`); else the last stage has fewer.

    >>> stage_layers(80, 4), stage_layers(126, 8, 8), stage_layers(126, 8)
    ((20.0, 20.0), (16.0, 15.0), (16.0, 15.0))
    """
    if L % (p * v) == 0:
        return L / p, L / p
    if (L + 2) % (p * v) == 0:
        return (L + 2) / p, (L + 2) / p - 1
    return float(math.ceil(L / p)), float(L // p)


def dealt_layers(L: int, p: int, v: int = 1, *, counts_ends: bool) -> tuple[float, float, float]:
    """Layers of the first stage, of a middle one and of the last one.

    Args:
        L: layers.
        p: stages.
        v: pieces a stage.
        counts_ends: whether embedding and head count as a layer each where layers do not divide, so
            that the first stage has one fewer, too.

    >>> dealt_layers(126, 16, 8, counts_ends=True), dealt_layers(126, 8, counts_ends=False)
    ((7.0, 8.0, 7.0), (16.0, 16.0, 15.0))
    >>> dealt_layers(10, 4, counts_ends=True), dealt_layers(8, 1, counts_ends=True)
    ((2.0, 3.0, 2.0), (8.0, 8.0, 8.0))
    """
    middle, last = stage_layers(L, p, v)
    if counts_ends and L % (p * v) and (L + 2) % (p * v) == 0:
        return last, middle, last
    return middle, middle, last


def legal_pieces(L: int, p: int, *, most: int) -> tuple[int, ...]:
    """Pieces that each of p stages can hold (interleaving), up to `most`: 1 and what divides.

    Pieces are equal. Where p divides the layers, so must p v; else it must divide them with
    embedding and head counted as a layer each, as LLaMA-3 405B's 126 layers on 16 stages of 8.
    Source: Megatron-LM's `account_for_embedding_in_pipeline_split` and
    `account_for_loss_in_pipeline_split`; arXiv:2407.21783, section 3.3.2.

    >>> legal_pieces(126, 16, most=8), legal_pieces(80, 4, most=8), legal_pieces(61, 4, most=8)
    ((1, 2, 4, 8), (1, 2, 4, 5), (1,))
    >>> legal_pieces(32, 1, most=8)
    (1,)
    """
    if p == 1:
        return (1,)
    whole = L if L % p == 0 else L + 2
    return tuple(v for v in range(1, most + 1) if v == 1 or whole % (p * v) == 0)


def waiting_seconds(pace: float, everything: float, v: int) -> float:
    """The bubble: what one microbatch takes on all stages but the fullest, over the pieces.

    >>> waiting_seconds(1.0, 4.0, 1), waiting_seconds(1.0, 4.0, 3)
    (3.0, 1.0)
    """
    return max(0.0, everything - pace) / v
