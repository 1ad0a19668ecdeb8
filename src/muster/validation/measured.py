"""What a run measured, as seconds of one step.

Published are step seconds, tokens/s per chip, or TFLOP/s per chip by some convention. The first
that stands is taken; the `tokens_per_s_per_chip_recomputed` column answers for rows with nothing
but TFLOP/s, and without that column the convention's FLOPs per token do. HFU of a full
recomputation is 4/3 of MFU.
"""

from muster.validation.runs import Run

TOLERANCE = 0.02


def step_seconds(run: Run, batch_sequences: int) -> float | None:
    """Measured seconds of one step; None where the row has nothing that says them."""
    if run.measured_step_seconds is not None:
        return run.measured_step_seconds
    rate = _tokens_per_second(run)
    if not rate or not run.n_chips or not run.seq_len:
        return None
    return batch_sequences * run.seq_len / (rate * run.n_chips)


def contradiction(run: Run, batch_sequences: int) -> str | None:
    """How the published step time and tokens/s disagree, if they do."""
    rate = run.measured_tokens_per_s_per_chip
    if not (run.measured_step_seconds and rate and run.n_chips and run.seq_len):
        return None
    implied = batch_sequences * run.seq_len / (rate * run.n_chips)
    if abs(implied / run.measured_step_seconds - 1) <= TOLERANCE:
        return None
    step = run.measured_step_seconds
    return f"{rate:g} tokens/s a chip is a step of {implied:.4g} s, not {step:g} s"


def _tokens_per_second(run: Run) -> float | None:
    if run.measured_tokens_per_s_per_chip is not None:
        return run.measured_tokens_per_s_per_chip
    if run.tokens_per_s_per_chip_recomputed is not None:
        return run.tokens_per_s_per_chip_recomputed
    flops = _flops_per_token(run)
    if flops is None or run.measured_tflops_per_chip is None:
        return None
    return run.measured_tflops_per_chip * 1e12 / flops


def _flops_per_token(run: Run) -> float | None:
    """FLOPs per token by the convention that the row's TFLOP/s were matched to, or states."""
    convention = (run.matched_convention or run.mfu_convention).lower()
    if "noncausal" in convention or "non-causal" in convention:
        gflops = run.gflop_per_token_noncausal
    elif "causal" in convention:
        gflops = run.gflop_per_token_causal
    else:
        gflops = run.gflop_per_token_6N
    hardware = "hfu" in convention or "hardware" in convention
    return None if gflops is None else gflops * 1e9 * (4 / 3 if hardware else 1)
