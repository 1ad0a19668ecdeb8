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


def waiting_seconds(pace: float, everything: float, v: int) -> float:
    """The bubble: what one microbatch takes on all stages but the fullest, over the pieces.

    >>> waiting_seconds(1.0, 4.0, 1), waiting_seconds(1.0, 4.0, 3)
    (3.0, 1.0)
    """
    return max(0.0, everything - pace) / v
