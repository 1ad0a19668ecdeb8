"""The step time of one model on one cluster, for many layouts. The rules are in `step_time`."""

import math
from copy import copy
from dataclasses import replace

from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.roofline.efficiency import Efficiency, efficiency
from muster.roofline.fabric import Groups, groups_of
from muster.roofline.host_link import hides_offload, host_bandwidth
from muster.roofline.layer_costs import (
    BF16_BYTES,
    LayerCosts,
    layer_costs,
    layer_shape,
    offloaded_bytes,
    rerun_seconds,
)
from muster.roofline.matmul import matrix_unit
from muster.roofline.memory import MOMENTS, dtype_bytes
from muster.roofline.pipeline import dealt_layers, waiting_seconds
from muster.roofline.remat_policy import RematPolicy
from muster.roofline.software import (
    AttentionKernel,
    Software,
    default_attention,
    default_software,
)
from muster.roofline.step_terms import (
    Ends,
    Gradients,
    Held,
    LayersSeconds,
    Microbatch,
    StepTime,
    Traffic,
)
from muster.roofline.traffic import (
    Passes,
    end_passes,
    expert_seconds,
    exposed,
    outer_seconds,
    replica_seconds,
    sequence_seconds,
    tensor_passes,
    weights_seconds,
)
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.sharding.weights import weight_table

LOSS_BYTES_PER_LOGIT = 24.0  # float32 logits written, read, made probabilities, and back
F32_BYTES = 4
NARROW = {"f8": "fp8", "int8": "int8", "f4": "fp4"}
NOTHING_HIDES = {"hide_tensor": 0.0, "hide_gradients": 0.0, "hide_sequence": 0.0}


# All that a layer's work depends on: sequences of one microbatch on one chip, expert, tensor ways.
type Part = tuple[float, int, int]


class StepModel:
    """The step time of one model on one cluster.

    What does not depend on the layout is computed once, and what depends on few of its ways is
    kept, so that one more layout takes a few tens of microseconds.

    Attributes:
        shapes: distinct layers with how many there are of each.
        outer_numbers: parameters outside the layers.
        kept: what `roofline.step_memory` has counted of one token's activations.
    """

    def __init__(
        self,
        architecture: Architecture,
        cluster: Cluster,
        workload: Workload,
        *,
        attention: AttentionKernel | None = None,
        software: Software | None = None,
        fitted: Efficiency | None = None,
    ) -> None:
        """Precompute.

        Args:
            architecture: the model.
            cluster: where it runs.
            workload: sizes and number formats.
            attention: the attention kernel; None for what most people use on the chip.
            software: who wrote the step; None for what most people use on the chip.
            fitted: efficiencies other than those of the data file.
        """
        chip = cluster.chip
        self.architecture = architecture
        self.cluster = cluster
        self.workload = workload
        self.kernel = attention or default_attention(chip)
        self.software = software or default_software(chip)
        found = fitted or efficiency(chip.id, self.software.name)
        self.fitted = replace(found, **NOTHING_HIDES) if self.software.blocking else found
        self.head_unit = matrix_unit(chip, self.fitted.matmul)
        narrow = NARROW.get(workload.compute_dtype)
        self.unit = (
            matrix_unit(chip, self.fitted.matmul_narrow, dtype=narrow)
            if narrow and narrow in chip.peak_flops
            else self.head_unit
        )
        share = {"flash": self.fitted.attention, "flash-attn": self.fitted.flash_attn}
        self.attention_rate = chip.bf16_flops * share.get(self.kernel.name, self.fitted.matmul)
        self.gather = dtype_bytes(workload.gather_dtype)
        self.reduce = dtype_bytes(workload.reduce_dtype)
        self.shapes = tuple(
            (layer_shape(architecture, layer), copies)
            for layer, copies in architecture.layer_groups
        )
        self.outer_numbers = sum(
            weight.count
            for weight in weight_table(architecture)
            if weight.trainable
            and weight.component != "tower"
            and not weight.name.startswith("layers.")
        )
        self._layers: dict[tuple[Part, RematPolicy], LayersSeconds] = {}
        self._costs: dict[Part, tuple[LayerCosts, ...]] = {}
        self._head: dict[tuple[float, int], tuple[float, float]] = {}
        self._numbers: dict[tuple[int, int], tuple[float, float]] = {}
        self._groups: dict[tuple[int, ...], Groups] = {}
        self._passes: dict[tuple[RematPolicy, bool], Passes] = {}
        self.kept: dict[tuple[int, RematPolicy], tuple[float, float, float]] = {}

    def on(self, cluster: Cluster) -> "StepModel":
        """The same model on other slices of the same chip; all but links is kept in common."""
        assert cluster.chip is self.cluster.chip, "what is kept is of another chip"
        twin = copy(self)
        twin.cluster, twin._groups = cluster, {}
        return twin

    def perfect(self) -> "StepModel":
        """The same on a perfect matrix unit and without latencies: no layout takes less."""
        twin = copy(self)
        twin.fitted = replace(self.fitted, kernel_seconds=0.0, hop_seconds=0.0)
        twin.unit = replace(self.unit, processors=0, hbm_bandwidth=math.inf)
        twin.head_unit = replace(self.head_unit, processors=0, hbm_bandwidth=math.inf)
        twin._layers, twin._costs, twin._head, twin._groups = {}, {}, {}, {}
        return twin

    def step(self, layout: Layout, remat: RematPolicy) -> StepTime:
        """Predict one optimizer step."""
        L, p, v, m = (
            self.architecture.num_layers,
            layout.stage,
            layout.virtual_stages,
            layout.microbatches,
        )
        sequences = self.workload.batch_sequences / (layout.batch_ways * m)
        tokens = sequences * self.workload.sequence_length / layout.sequence
        groups = self.groups(layout)
        layers = self.layers(sequences, layout, remat)
        one = self._microbatch(layout, remat, groups, layers, tokens)

        # Stages: the fullest sets the pace. Embedding and head are at the ends, half each.
        head, loss = self.head_seconds(tokens, layout.tensor)
        ends = self.ends(layout, groups, tokens, head + loss)
        per_layer = one.total / L
        first, middle, last = dealt_layers(L, p, v, counts_ends=self.software.counts_ends)
        half = 1.0 if p == 1 else 0.5
        pace, fullest, with_head, with_ends = max(
            (middle * per_layer, middle, 0, 0.0),
            (first * per_layer + half * ends.visible, first, 0, half),
            (last * per_layer + head + loss + half * ends.visible, last, 1, half),
        )
        everything = L * per_layer + head + loss + ends.visible
        wait = waiting_seconds(pace, everything, v) if p > 1 else 0.0
        t_stage, x_stage = self.stage_seconds(groups, tokens, layout)
        share, end_share = m * fullest / L, m * with_ends

        # Once a step: the gradients behind the last backward pass, and the optimizer.
        held = self.held_numbers(
            layout, groups, layers_share=fullest / L, outer=self.outer_on_a_stage(layout)
        )
        t_data, t_tied, t_dcn = self.gradient_seconds(layout, groups, held)
        window = fullest / L * min(layers.backward + layers.rerun, one.idle)
        x_data = exposed(t_data, window, self.fitted.hide_gradients)
        window -= t_data - x_data
        x_dcn = exposed(t_dcn, window, self.fitted.hide_gradients)

        compute = share * one.matmuls + m * with_head * head
        hbm = share * one.moved + m * with_head * loss + self.update_seconds(layout, groups, held)
        visible = share * (one.total - one.matmuls - one.moved) + end_share * ends.visible
        all_but_jitter = compute + hbm + visible + x_data + t_tied + x_dcn + wait + x_stage
        return StepTime(
            compute=compute,
            hbm=hbm,
            fsdp=share * one.fsdp + end_share * ends.fsdp,
            tensor=share * one.tensor + end_share * ends.tensor,
            sequence=share * one.sequence,
            expert=share * one.expert,
            data=x_data + t_tied,
            dcn=x_dcn,
            bubble=wait + x_stage,
            host=share * one.host + self.jitter(layout) * all_but_jitter,
            traffic=Traffic(
                fsdp=share * one.all_fsdp + end_share * ends.all_fsdp,
                tensor=share * one.all_tensor + end_share * ends.all_tensor,
                sequence=share * one.all_sequence,
                expert=share * one.expert,
                data=t_data + t_tied,
                dcn=t_dcn,
                stage=t_stage,
                host=share * one.all_host,
            ),
        )

    def _microbatch(
        self,
        layout: Layout,
        remat: RematPolicy,
        groups: Groups,
        layers: LayersSeconds,
        tokens: float,
    ) -> Microbatch:
        """All layers for one microbatch on one chip: the work, then what hides behind it."""
        fit = self.fitted
        matmuls, moved = layers.matmuls, layers.moved
        dense, routed = self.numbers(layout.tensor, layout.expert)
        if self.software.accumulates_in_f32:
            kept = self.held_numbers(layout, groups, layers_share=1.0, outer=0.0)
            sums = 2 * F32_BYTES * sum(kept)
            moved += sums / self.cluster.chip.hbm_bandwidth
        work = matmuls + moved
        t_tensor, t_sequence, t_expert = self.inner_traffic(layout, tokens, remat)
        x_tensor = exposed(t_tensor, work, fit.hide_tensor)
        left = max(0.0, work - (t_tensor - x_tensor))
        x_sequence = exposed(t_sequence, min(matmuls, left), fit.hide_sequence)
        t_fsdp = weights_seconds(
            groups,
            dense=dense,
            routed=routed,
            layers=self.architecture.num_layers,
            gather=self.gather,
            reduce=self.reduce,
        )
        if self.software.holds_in_pipeline and layout.stage > 1:
            t_fsdp /= layout.microbatches
        left = max(0.0, left - (t_sequence - x_sequence))
        t_host = self.host_seconds(layers)
        return Microbatch(
            matmuls=matmuls,
            moved=moved,
            fsdp=exposed(t_fsdp, left, fit.hide_weights),
            tensor=x_tensor,
            sequence=x_sequence,
            expert=t_expert,
            host=max(0.0, t_host - work) if hides_offload(self.cluster.chip) else t_host,
            all_fsdp=t_fsdp,
            all_tensor=t_tensor,
            all_sequence=t_sequence,
            all_host=t_host,
        )

    def ends(self, layout: Layout, groups: Groups, tokens: float, work: float) -> Ends:
        """Traffic of embedding and head for one microbatch; it hides behind head and loss."""
        passes = end_passes(sequence_sharded=self.software.sequence_sharded)
        gathered = tokens * self.architecture.d_model * BF16_BYTES
        t_tensor = passes * groups.tensor.all_gather(gathered) if layout.tensor > 1 else 0.0
        x_tensor = exposed(t_tensor, work, self.fitted.hide_tensor)
        t_fsdp = outer_seconds(
            groups.weights,
            self.outer_numbers / layout.tensor,
            tied=self.architecture.tied_embeddings,
            gather=self.gather,
            reduce=self.reduce,
        )
        if self.software.holds_in_pipeline and layout.stage > 1:
            t_fsdp /= layout.microbatches
        x_fsdp = exposed(t_fsdp, work - (t_tensor - x_tensor), self.fitted.hide_weights)
        return Ends(tensor=x_tensor, fsdp=x_fsdp, all_tensor=t_tensor, all_fsdp=t_fsdp)

    def outer_on_a_stage(self, layout: Layout) -> float:
        """Parameters outside the layers that an end of the pipeline has on a chip before FSDP.

        A tied table is whole at both ends.
        """
        shared_out = layout.stage > 1 and not self.architecture.tied_embeddings
        return self.outer_numbers / layout.tensor * (0.5 if shared_out else 1.0)

    def gradient_seconds(self, layout: Layout, groups: Groups, held: Held) -> Gradients:
        """Gradients between replicas, between the ends of a pipeline that share a table, slices."""
        back = self.gather if layout.shards_optimizer else self.reduce
        t_data = replica_seconds(groups.data, held.dense, scatter=self.reduce, gather=back)
        t_data += replica_seconds(groups.routed_data, held.routed, scatter=self.reduce, gather=back)
        t_tied = 0.0
        if layout.stage > 1 and self.architecture.tied_embeddings:
            table = self.outer_on_a_stage(layout) / groups.weights.ways
            t_tied = table * self.reduce * groups.next_stage_per_byte
        t_dcn = sum(held) * self.bytes_between_slices(layout) * groups.dcn_per_byte
        return Gradients(t_data, t_tied, t_dcn)

    def groups(self, layout: Layout) -> Groups:
        """The groups of chips that talk to each other under a layout, kept."""
        sizes = (
            layout.tensor,
            layout.sequence,
            layout.expert,
            layout.fsdp,
            layout.data,
            layout.stage,
        )
        found = self._groups.get(sizes)
        if found is None:
            found = self._groups[sizes] = groups_of(
                self.cluster,
                self.fitted,
                sizes=sizes,
                shards_replicas=self.software.shards_replicas,
            )
        return found

    def layers(self, sequences: float, layout: Layout, remat: RematPolicy) -> LayersSeconds:
        """All layers for one microbatch of whole sequences over the sequence ways, kept."""
        key = (sequences / layout.sequence, layout.expert, layout.tensor)
        found = self._layers.get((key, remat))
        if found is None:
            found = self._layers[key, remat] = self._sum_layers(key, remat)
        return found

    def _sum_layers(self, key: Part, remat: RematPolicy) -> LayersSeconds:
        forward = backward = rerun = moved = waiting = 0.0
        sequences, _, tensor = key
        tokens = sequences * self.workload.sequence_length
        for (shape, copies), costs in zip(self.shapes, self._layer_costs(key), strict=True):
            again, moved_again = rerun_seconds(
                costs, remat, in_matmuls=not self.software.keeps_products
            )
            forward += copies * costs.forward
            backward += copies * costs.backward
            rerun += copies * remat.layers_share * again
            moved += copies * (costs.moved_forward + costs.moved_backward)
            moved += copies * remat.layers_share * moved_again
            waiting += copies * tokens * offloaded_bytes(shape, remat, tensor)
        return LayersSeconds(forward, backward, rerun, moved, waiting)

    def _layer_costs(self, key: Part) -> tuple[LayerCosts, ...]:
        """What each distinct layer costs, whatever is computed again."""
        found = self._costs.get(key)
        if found is None:
            sequences, expert, tensor = key
            found = self._costs[key] = tuple(
                layer_costs(
                    shape,
                    self.architecture,
                    self.unit,
                    self.fitted,
                    self.kernel,
                    sequences=sequences,
                    T=self.workload.sequence_length,
                    tensor=tensor,
                    expert=expert,
                    sequence_sharded=self.software.sequence_sharded,
                    hbm_bandwidth=self.cluster.chip.hbm_bandwidth,
                    attention_flops_per_second=self.attention_rate,
                )
                for shape, _ in self.shapes
            )
        return found

    def numbers(self, tensor: int, expert: int) -> tuple[float, float]:
        """Parameters of all layers on one chip before FSDP: dense, and of routed experts."""
        found = self._numbers.get((tensor, expert))
        if found is None:
            dense = routed = 0.0
            for shape, copies in self.shapes:
                dense += copies * sum(n / min(tensor, ways) for n, ways in shape.shared)
                routed += copies * sum(n / min(tensor, ways) for n, ways in shape.routed) / expert
            found = self._numbers[tensor, expert] = (dense, routed)
        return found

    def head_seconds(self, tokens: float, tensor: int) -> tuple[float, float]:
        """The output projection, both ways, and the loss, for one microbatch."""
        found = self._head.get((tokens, tensor))
        if found is None:
            D = self.architecture.embedding_dim or self.architecture.d_model
            V = math.ceil(self.architecture.vocab_size / tensor)
            rate = self.cluster.chip.hbm_bandwidth * self.fitted.elementwise
            found = self._head[tokens, tensor] = (
                sum(self.head_unit.training_seconds(tokens, D, V)),
                LOSS_BYTES_PER_LOGIT * tokens * V / rate,
            )
        return found

    def inner_traffic(
        self, layout: Layout, tokens: float, remat: RematPolicy
    ) -> tuple[float, float, float]:
        """Tensor, sequence and expert traffic of one microbatch by itself, all layers."""
        groups = self.groups(layout)
        tensor = 0.0
        if groups.tensor.ways > 1:
            dispatched = layout.expert > 1
            passes = self._passes.get((remat, dispatched))
            if passes is None:
                passes = self._passes[remat, dispatched] = tensor_passes(
                    self.shapes,
                    remat,
                    sequence_sharded=self.software.sequence_sharded,
                    dispatched=dispatched,
                )
            vector = tokens * self.architecture.d_model * BF16_BYTES
            tensor = passes.vectors * vector * groups.tensor.seconds_per_byte
            tensor += passes.times * groups.tensor.latency_seconds
        return (
            tensor,
            sequence_seconds(self.shapes, groups.sequence, tokens, layout.tensor),
            expert_seconds(self.shapes, groups.expert, tokens, layout.tensor, remat),
        )

    def stage_seconds(self, groups: Groups, tokens: float, layout: Layout) -> tuple[float, float]:
        """Sends between stages, all microbatches, and what of them shows.

        Interleaved schedules send beside the work, but while the pipeline fills and drains.
        """
        if layout.stage == 1:
            return 0.0, 0.0
        ways = 1 if self.software.deepspeed else layout.tensor
        sent = tokens * self.architecture.d_model * BF16_BYTES / ways
        both_ways = 2.0 * sent * groups.next_stage_per_byte
        everything = both_ways * layout.microbatches * layout.virtual_stages
        if layout.virtual_stages == 1:
            return everything, everything
        return everything, both_ways * (layout.stage - 1)

    def bytes_between_slices(self, layout: Layout) -> float:
        """Bytes that one chip sends to other slices in a step, for each parameter that it holds."""
        s = layout.slice
        each = (
            layout.microbatches * (2 * self.gather + self.reduce)
            if layout.shards_over_slices
            else 2.0 * self.reduce
        )
        return each * (s - 1) / s

    def held_numbers(
        self, layout: Layout, groups: Groups, *, layers_share: float, outer: float
    ) -> Held:
        """Parameters that one chip keeps of a stage.

        Args:
            layout: ways of every axis.
            groups: its groups.
            layers_share: share of the layers that the stage has.
            outer: parameters outside the layers that it has, on one chip before FSDP.
        """
        dense, routed = self.numbers(layout.tensor, layout.expert)
        return Held(
            dense=(dense * layers_share + outer) / groups.weights.ways,
            routed=routed * layers_share / groups.routed.ways,
        )

    def optimized_numbers(self, layout: Layout, groups: Groups, held: Held) -> float:
        """Parameters whose optimizer state one chip keeps: ZeRO-1 deals it out to the replicas.

        Routed experts have fewer replicas than what every token meets: the expert ways deal the
        experts themselves out.
        """
        if not layout.shards_optimizer:
            return sum(held)
        return held.dense / groups.data.ways + held.routed / groups.routed_data.ways

    def update_seconds(self, layout: Layout, groups: Groups, held: Held) -> float:
        """The optimizer: all of its state through HBM once each way, gradients in."""
        w = self.workload
        state = MOMENTS[w.optimizer] * dtype_bytes(w.optimizer_dtype) + F32_BYTES
        moved = 2.0 * state + F32_BYTES + (dtype_bytes(w.param_dtype) if w.master_copy else 0)
        own = self.optimized_numbers(layout, groups, held)
        if layout.shards_over_slices:
            own /= layout.slice
        return own * moved / self.cluster.chip.hbm_bandwidth

    def host_seconds(self, layers: LayersSeconds) -> float:
        """Activations of one microbatch to the host and back."""
        if not layers.offloaded_bytes:
            return 0.0
        return 2.0 * layers.offloaded_bytes / host_bandwidth(self.cluster.chip)

    def jitter(self, layout: Layout) -> float:
        """Share of the step spent waiting for the slowest slice of TPUs, or host of GPUs."""
        chip = self.cluster.chip
        hosts = layout.slice if chip.kind == "tpu" else layout.chips_used / chip.chips_per_host
        return self.fitted.jitter * math.log2(hosts) if hosts > 1 else 0.0
