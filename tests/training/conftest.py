"""Eight CPU devices for every test of training, before anything asks JAX for one."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

DEVICES = 8

jax.config.update("jax_num_cpu_devices", DEVICES)
