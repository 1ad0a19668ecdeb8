"""Which resource a step keeps busy longest."""

from typing import Literal

from muster.hardware import Cluster, Switched
from muster.planner.choice import Choice

type Bound = Literal["compute", "hbm", "ici", "dcn", "nvlink", "network", "pipeline"]


def bound_of(cluster: Cluster, choice: Choice) -> Bound:
    """The resource that is busy longest; traffic on links of its own runs side by side."""
    step, traffic = choice.step, choice.step.traffic
    busy = {
        "compute": step.compute,
        "hbm": step.hbm,
        "pipeline": step.bubble,
        "dcn": traffic.dcn,
        "fsdp": traffic.fsdp,
        "tensor": traffic.tensor,
        "sequence": traffic.sequence,
        "expert": traffic.expert,
        "data": traffic.data,
    }
    longest = max(busy, key=busy.__getitem__)
    match longest:
        case "compute" | "hbm" | "pipeline" | "dcn":
            return longest
    network = cluster.chip.network
    if not isinstance(network, Switched):
        return "ici"
    inside = longest == "tensor" or cluster.slice.chips <= network.domain_chips
    return "nvlink" if inside else "network"
