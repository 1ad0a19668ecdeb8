"""How far the reading of a program has been from the step that was measured.

Of the published steps of docs/published-programs.md, each as the compiler wrote it that is nearest
to the run in time.
"""

import math
from statistics import median

# Predicted over published step time less 1.
PUBLISHED_ERRORS = (
    -0.094, -0.004, 0.003, 0.067, 0.004, 0.045, 0.090, -0.005, -0.038, 0.008, -0.082, 0.006, 0.028,
)  # fmt: skip
PUBLISHED = "docs/published-programs.md"
NEAR = 0.1


def _near() -> int:
    return sum(abs(each) <= NEAR for each in PUBLISHED_ERRORS)


def steps_that_were_near() -> str:
    """How many steps of all that were measured were read how exactly, in a few words."""
    return (
        f"{_near()} of {len(PUBLISHED_ERRORS)} measured steps, as compilers near their days wrote "
        f"them, were read within {NEAR:.0%}"
    )


def how_far_off() -> str:
    """How far read and measured steps were apart where both are known, for whoever compares."""
    errors = sorted(abs(each) for each in PUBLISHED_ERRORS)
    half = math.ceil(100 * median(errors))
    return (
        f"no chip has run these steps: of {len(errors)} published runs, compiled again by the "
        f"compilers nearest to their days and read in the same way, {_near()} were within "
        f"{NEAR:.0%} of the measured step, half within {half}%, and the worst was {errors[-1]:.0%} "
        f"off ({PUBLISHED}); a gain that is smaller is one to measure before it is believed"
    )
