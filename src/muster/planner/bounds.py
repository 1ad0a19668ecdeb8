"""The least that a layout's step can take, in about a microsecond.

On a perfect matrix unit (no tile or wave is filled in part) and without latencies, the work of a
microbatch and the traffic beside it are linear in its tokens. So they are predicted once for each
set of tensor, sequence and expert ways, for a microbatch so large that nothing else counts, and
scaled down. The schedule of a pipeline is exact. Left out is what a real step has besides: shards
gathered, replicas and slices that exchange gradients, the optimizer, sends between stages.
"""

from dataclasses import dataclass

from muster.hardware import Cluster, Torus
from muster.roofline.layer_costs import KERNELS_PER_LAYER
from muster.roofline.pipeline import stage_layers
from muster.roofline.remat_policy import RematPolicy
from muster.roofline.step_model import F32_BYTES, StepModel
from muster.roofline.traffic import exposed
from muster.sharding.mesh import Layout

SEQUENCES = 1 << 20  # of a microbatch so large that one partly filled tile is nothing ...
ROUNDED = 1 - 1e-5  # ... but for this


@dataclass(frozen=True, kw_only=True, slots=True)
class Least:
    """Seconds that one chip with all layers takes for each sequence of a microbatch.

    Attributes:
        work: matmuls and elementwise work of the layers.
        matmuls: what of it can hide context parallelism's traffic.
        tensor: traffic by itself; so for `sequence` and `expert`.
        head: head and loss.
    """

    work: float
    matmuls: float
    tensor: float
    sequence: float
    expert: float
    head: float


class Bounds:
    """Lower bounds on the steps of one model and batch."""

    def __init__(self, model: StepModel, policy: RematPolicy) -> None:
        """Bound steps under the policy that computes least again."""
        self._perfect = model.perfect()
        self._policy = policy
        self._least: dict[tuple[object, ...], Least] = {}

    def seconds(
        self, model: StepModel, mesh: Layout, *, pieces: int, microbatches: int, fewest: int
    ) -> float:
        """A bound on the step of a mesh.

        Args:
            model: what predicts it; models differ in their slices alone.
            mesh: its ways.
            pieces: pieces of the pipeline that a stage holds.
            microbatches: so many of them ...
            fewest: ... or fewer, but no fewer than these.
        """
        least = self._least_of(mesh, model)
        fit, L, p = model.fitted, model.architecture.num_layers, mesh.stage
        sequences = model.workload.batch_sequences / (mesh.batch_ways * microbatches)
        each = 3 * KERNELS_PER_LAYER * fit.kernel_seconds * L
        if p > 1 and model.software.accumulates_in_f32 and not model.software.shards_replicas:
            sums = 2 * F32_BYTES * sum(model.numbers(mesh.tensor, mesh.expert))
            each += sums / model.cluster.chip.hbm_bandwidth
        # Fewer microbatches have larger ones, which fill a pipeline slower, but fewer launches.
        work = sequences * least.work + each * fewest / microbatches
        layers = work + sequences * least.expert
        layers += exposed(sequences * least.tensor, work, fit.hide_tensor)
        layers += exposed(sequences * least.sequence, sequences * least.matmuls, fit.hide_sequence)
        head = sequences * least.head
        middle, last = stage_layers(L, p, pieces)
        pace = max(middle / L * layers, last / L * layers + head)
        waiting = max(0.0, layers + head - pace) / pieces
        return (microbatches * pace + waiting) * (1.0 + model.jitter(mesh)) * ROUNDED

    def _least_of(self, mesh: Layout, model: StepModel) -> Least:
        slice_ = model.cluster.slice
        # Where chips are switched, a group's links do not depend on the rest of the slice.
        shape = slice_.shape if isinstance(slice_.chip.network, Torus) else None
        key = (mesh.tensor, mesh.sequence, mesh.expert, shape)
        found = self._least.get(key)
        if found is None:
            found = self._least[key] = self._predict(mesh, model.cluster)
        return found

    def _predict(self, mesh: Layout, cluster: Cluster) -> Least:
        model = self._perfect.on(cluster)
        tokens = SEQUENCES * model.workload.sequence_length / mesh.sequence
        layers = model.layers(SEQUENCES, mesh, self._policy)
        tensor, sequence, expert = model.inner_traffic(mesh, tokens, self._policy)
        return Least(
            work=(layers.matmuls + layers.moved) / SEQUENCES,
            matmuls=layers.matmuls / SEQUENCES,
            tensor=tensor / SEQUENCES,
            sequence=sequence / SEQUENCES,
            expert=expert / SEQUENCES,
            head=sum(model.head_seconds(tokens, mesh.tensor)) / SEQUENCES,
        )
