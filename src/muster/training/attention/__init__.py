"""Causal attention within documents, in several forms of one signature."""

from muster.training.attention.masking import Masking

__all__ = ["Masking"]
