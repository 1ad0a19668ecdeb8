"""The way to the host's memory, where offloaded activations wait."""

from muster.hardware import Chip

HOST_BANDWIDTH = 1.6e10  # bytes/s one way where a chip's is not known: PCIe Gen4 x8


def host_bandwidth(chip: Chip) -> float:
    """Bytes/s one way between a chip and its host's memory."""
    for name in ("host.c2c_bandwidth", "host.pcie_bandwidth"):
        fact = chip.fact(name)
        if fact is not None and isinstance(fact.value, int | float):
            return float(fact.value)
    return HOST_BANDWIDTH


def hides_offload(chip: Chip) -> bool:
    """Whether what goes to the host and back is known to hide behind work.

    Runs on TPUs and on GPUs that are one package with their host (GB200) show that it does. No
    published run offloads activations over a GPU's PCIe, so there nothing is taken to hide.
    """
    return chip.kind == "tpu" or chip.fact("host.c2c_bandwidth") is not None
