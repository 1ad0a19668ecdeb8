"""Training: the plan's step on whatever devices are there; JAX begins in this room."""
