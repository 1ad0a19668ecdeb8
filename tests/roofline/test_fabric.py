"""The links that a group of chips talks over."""

import itertools
from dataclasses import replace

import pytest

from muster.hardware import Switched, Torus, chip_by_name, parse_cluster
from muster.roofline.efficiency import efficiency
from muster.roofline.fabric import ALONE, gpu_group, groups_of, torus_groups

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
