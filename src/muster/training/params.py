"""Parameters: a flat dict of arrays under the weight table's names, layers stacked in front."""

import jax

type Params = dict[str, jax.Array]

LAYERS = "layers."
