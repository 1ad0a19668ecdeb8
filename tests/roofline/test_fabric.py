"""The links that a group of chips talks over."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.hardware import Switched, Torus, chip_by_name, parse_cluster
from muster.roofline.efficiency import efficiency
from muster.roofline.fabric import (
    ALONE,
    Group,
    Groups,
    Sizes,
    gpu_group,
    groups_of,
    physical_axes,
    torus_groups,
)
from muster.sharding.mesh import Layout

H100 = efficiency("h100", "megatron")
V5P = efficiency("v5p", "xla")
V5E = efficiency("v5e", "xla")


def test_one_chip_sends_nothing() -> None:
    network = chip_by_name("h100").network
    assert isinstance(network, Switched)
    assert gpu_group(network, H100, inner=1, ways=1) is ALONE
    assert ALONE.all_gather(1e9) == 0.0


def test_inside_the_domain_only_nvlink_counts() -> None:
    network = chip_by_name("h100").network
    assert isinstance(network, Switched)
    group = gpu_group(network, H100, inner=1, ways=8)
    assert group.seconds_per_byte == 7 / 8 / (450e9 * H100.near)


def test_between_nodes_every_gpu_brings_in_its_share() -> None:
    """The book's Part 12: 8 GPUs a node, each with a rail of its own."""
    network = chip_by_name("h100").network
    assert isinstance(network, Switched)
    whole_nodes = gpu_group(network, H100, inner=1, ways=64)
    assert whole_nodes.seconds_per_byte == pytest.approx(7 / 8 / (8 * 50e9 * H100.far))
    one_a_node = gpu_group(network, H100, inner=8, ways=8)
    assert one_a_node.seconds_per_byte == 7 / 8 / (50e9 * H100.far)


def test_the_books_quizzes_without_losses() -> None:
    """Part 3, quiz 2: bf16[2048, 8192] over a v5e axis of 4, a line, 560 us; an AllToAll on a ring
    is a quarter of V / W. Part 12, quiz 1: bf16[1024, 16384] in a node of 8 H100, 65 us."""
    cluster = parse_cluster("v5e:4x4")
    torus, switched = cluster.chip.network, chip_by_name("h100").network
    assert isinstance(torus, Torus)
    assert isinstance(switched, Switched)
    (line,) = torus_groups(cluster, torus, replace(V5E, near=1.0), (4,))
    assert line.all_gather(2 * 2048 * 8192) == pytest.approx(560e-6, rel=1e-2)
    (ring,) = torus_groups(parse_cluster("v5e:16x16"), torus, replace(V5E, near=1.0), (16,))
    V = 1e9
    assert ring.to_all_per_byte * V / 16 == pytest.approx(V / (4 * torus.axis_bidi_bandwidth))
    node = gpu_group(switched, replace(H100, near=1.0, hop_seconds=0.0), inner=1, ways=8)
    assert node.all_gather(2 * 1024 * 16384) == pytest.approx(65e-6, rel=1e-2)


def test_whole_axes_are_rings_and_add_up() -> None:
    cluster = parse_cluster("v5p:4x8x8")
    network = cluster.chip.network
    assert isinstance(network, Torus)
    tensor, fsdp = torus_groups(cluster, network, V5P, (8, 32))
    W = network.axis_bidi_bandwidth * V5P.near
    assert tensor.seconds_per_byte == 7 / 8 / W
    assert fsdp.seconds_per_byte == 31 / 32 / (2 * W)


def test_a_part_of_an_axis_is_a_line_and_the_rest_is_shared() -> None:
    cluster = parse_cluster("v5e:16x16")
    network = cluster.chip.network
    assert isinstance(network, Torus)
    tensor, fsdp = torus_groups(cluster, network, V5E, (4, 64))
    W = network.axis_bidi_bandwidth * V5E.near
    assert tensor.seconds_per_byte == 3 / 4 / (W / 2)
    assert fsdp.seconds_per_byte == 63 / 64 / (W + W / 4)


def test_axes_that_do_not_wrap_count_half() -> None:
    cluster = parse_cluster("v5e:8x8")
    network = cluster.chip.network
    assert isinstance(network, Torus)
    (group,) = torus_groups(cluster, network, V5E, (64,))
    assert group.seconds_per_byte == 63 / 64 / (network.axis_bidi_bandwidth * V5E.near)


@pytest.mark.parametrize("name", ["h100:64", "v5p:4x4x4", "v6e:8x8", "cpu:64"])
@pytest.mark.parametrize("shards_replicas", [True, False])
def test_every_group_is_as_large_as_its_axes(name: str, *, shards_replicas: bool) -> None:
    cluster = parse_cluster(name)
    fitted = efficiency(cluster.chip.id, "xla")
    for sizes in itertools.product((1, 2), (1, 2), (1, 4), (1, 2), (1, 2), (1, 2)):
        tensor, sequence, expert, fsdp, data, _ = sizes
        groups = groups_of(cluster, fitted, sizes=sizes, shards_replicas=shards_replicas)
        replicas = data if shards_replicas else data * sequence * expert
        assert groups.tensor.ways == tensor
        assert groups.weights.ways == fsdp * (sequence * expert if shards_replicas else 1)
        assert groups.data.ways == replicas or fsdp > 1


CLUSTERS = ("v5p:16x16x16", "v5p:4x8x16", "v5e:16x16", "v6e:8x8", "v5p:2x2x4", "h100:512", "cpu:64")


def laid_out(name: str, sizes: Sizes, *, shards_replicas: bool = True) -> Groups:
    cluster = parse_cluster(name)
    software = "megatron" if cluster.chip.kind == "gpu" else "xla"
    fitted = efficiency(cluster.chip.id, software)
    return groups_of(cluster, fitted, sizes=sizes, shards_replicas=shards_replicas)


def speed(group: Group) -> tuple[float, float]:
    return (group.seconds_per_byte, group.latency_seconds)


@given(
    st.sampled_from(CLUSTERS),
    st.permutations([1, 2, 4]),
    st.permutations([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 8]),
)
def test_a_layout_and_its_relabelling_talk_over_the_same_links(
    name: str, ways: list[int], others: list[int], tensor: int, data: int
) -> None:
    """Sequence, expert and fsdp ways shard weights together; what replicates comes after them."""
    one, two = (
        laid_out(name, (tensor, *each, data, 1))  # type: ignore[arg-type]
        for each in (ways, others)
    )
    assert speed(one.tensor) == speed(two.tensor)
    assert speed(one.weights) == pytest.approx(speed(two.weights))
    assert speed(one.data) == pytest.approx(speed(two.data))
    assert (one.weights.axes, one.data.axes) == (two.weights.axes, two.data.axes)
    sequence, expert, fsdp = ways
    turned = laid_out(name, (tensor, sequence, fsdp, expert, data, 1))
    assert speed(one.sequence) == pytest.approx(speed(turned.sequence))
    dense = laid_out(name, (tensor, sequence, 1, expert * fsdp, data, 1))
    assert speed(dense.routed) == speed(dense.weights)
    assert speed(dense.weights) == pytest.approx(speed(one.weights))


def test_four_neighbours_are_a_line_whatever_they_are_called() -> None:
    W = 180e9 * V5P.near
    for sequence, expert, fsdp in ((1, 1, 4), (2, 1, 2), (1, 2, 2), (4, 1, 1)):
        found = laid_out("v5p:16x16x16", (1, sequence, expert, fsdp, 1, 1))
        assert found.weights.seconds_per_byte == 3 / 4 / (W / 2)


def test_fsdp_and_data_ways_change_nothing_for_those_before_them() -> None:
    for fsdp, data in ((1, 16), (4, 4), (16, 1)):
        found = laid_out("v5p:16x16x16", (2, 2, 4, fsdp, data, 1))
        first = laid_out("v5p:16x16x16", (2, 2, 4, 1, 1, 1))
        assert (found.tensor, found.sequence) == (first.tensor, first.sequence)
        assert found.expert == first.expert


def test_replicas_of_experts_are_those_that_hold_the_same_ones() -> None:
    """8 expert ways inside a node: each GPU sums its experts' gradients over its own rail, while
    all 64 GPUs sum the others over the 8 rails of a node."""
    found = laid_out("h100:64", (1, 1, 8, 1, 8, 1), shards_replicas=False)
    assert found.data.ways == 64
    assert found.data.seconds_per_byte == pytest.approx(7 / 8 / (8 * 50e9 * H100.far))
    assert found.routed_data.ways == 8
    assert found.routed_data.seconds_per_byte == pytest.approx(7 / 8 / (50e9 * H100.far))
    with_fsdp = laid_out("h100:64", (1, 1, 4, 2, 8, 1), shards_replicas=False)
    assert (with_fsdp.weights.ways, with_fsdp.data.ways, with_fsdp.routed_data.ways) == (2, 32, 8)


@given(st.permutations([2, 4, 8, 8, 16]))
def test_physical_axes_are_taken_once(sizes: list[int]) -> None:
    cluster = parse_cluster("v5p:16x16x32")
    tensor, sequence, expert, fsdp, data = sizes
    layout = Layout(tensor=tensor, sequence=sequence, expert=expert, fsdp=fsdp, data=data)
    whole = dict(zip("xyz", cluster.slice.shape, strict=True))
    taken = dict.fromkeys("xyz", 1)
    for parts in physical_axes(cluster, layout).values():
        for part in parts:
            name, _, ways = part.partition(":")
            taken[name] *= int(ways) if ways else whole[name]
    assert taken == whole
