"""Time of one optimizer step on a cluster, term by term.

    step = compute + hbm + fsdp + tensor + sequence + expert + data + dcn + bubble + host

Each term is time that nothing else hides, so they sum to the step; what traffic would take by
itself is beside it (`StepTime.traffic`). The rules, all of them:

1. A chip multiplies or moves elementwise work through HBM, never both: `compute` and `hbm` add up.
2. Traffic hides behind the work of the same layers, up to a fitted share h of itself:
   exposed = max((1 - h) t, t - work). Megatron of 2021 waits: nothing hides.
3. A pipeline takes m t_max + (sum of t - t_max) / v (`roofline.pipeline`).
4. Data parallelism hides behind the backward pass of the last microbatch only, and behind what of
   it no other traffic takes: first between the chips of a slice, then between slices.
5. Waiting for the slowest takes a fitted share of the step for each doubling of the hosts.

6. Embedding and head are at the ends of a pipeline; their traffic hides behind head and loss.
7. What waits in the host's memory hides behind work where runs show that it does
   (`roofline.host_link`), else nowhere.

Where the parts are: matmuls `roofline.matmul`, layers `roofline.layer_costs`, links
`roofline.fabric`, collectives `roofline.traffic`, software `roofline.software`, fitted constants
`roofline.efficiency` with data/efficiencies.toml.
"""

from functools import lru_cache

from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.roofline.remat_policy import RematPolicy
from muster.roofline.software import FLASH, AttentionKernel, Software
from muster.roofline.step_model import StepModel
from muster.roofline.step_terms import StepTime, Traffic
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

__all__ = ["StepModel", "StepTime", "Traffic", "predict_step"]


def predict_step(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    layout: Layout,
    *,
    remat: RematPolicy,
    attention: AttentionKernel = FLASH,
    software: Software | None = None,
) -> StepTime:
    """Predict one optimizer step of one layout; `StepModel` is the same for many.

    Args:
        architecture: the model.
        cluster: where it runs.
        workload: sizes and number formats.
        layout: ways of every mesh axis.
        remat: what is computed again.
        attention: the attention kernel.
        software: who wrote the step; None for what most people use on the chip.
    """
    return _model(architecture, cluster, workload, attention, software).step(layout, remat)


@lru_cache(maxsize=16)
def _model(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    attention: AttentionKernel,
    software: Software | None,
) -> StepModel:
    return StepModel(architecture, cluster, workload, attention=attention, software=software)
