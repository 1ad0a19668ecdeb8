"""Golden tables: what people write, and the slice that it means."""

import pytest

from muster.errors import BadInput
from muster.hardware import parse_cluster

# text: canonical name, chips, hosts, devices of one slice, wrap, accelerator type
T, F = True, False
GOLDEN = {
    "v5p:16x20x28": ("v5p:16x20x28", 8960, 2240, 8960, (T, T, T), "v5p-17920"),
    "v5p-128": ("v5p:4x4x4", 64, 16, 64, (T, T, T), "v5p-128"),
    "v5p-8": ("v5p:2x2x1", 4, 1, 4, (F, F, F), "v5p-8"),
    "v5p-64": ("v5p:2x4x4", 32, 8, 32, (F, F, F), "v5p-64"),
    "v5p-512": ("v5p:4x8x8", 256, 64, 256, (T, T, T), "v5p-512"),
    "v5p-12288": ("v5p:16x16x24", 6144, 1536, 6144, (T, T, T), "v5p-12288"),
    "v5p:4x4x16": ("v5p:4x4x16", 256, 64, 256, (T, T, T), None),
    "v5p:1x1x1": ("v5p:1x1x1", 1, 1, 1, (F, F, F), None),
    "v4-8": ("v4:2x2x1", 4, 1, 4, (F, F, F), "v4-8"),
    "v4-8192": ("v4:16x16x16", 4096, 1024, 4096, (T, T, T), "v4-8192"),
    "tpu7x-2": ("v7x:1x1x1", 1, 1, 2, (F, F, F), "tpu7x-2"),
    "tpu7x-128": ("v7x:4x4x4", 64, 16, 128, (T, T, T), "tpu7x-128"),
    "ironwood:16x24x24": ("v7x:16x24x24", 9216, 2304, 18432, (T, T, T), None),
    "v5litepod-1": ("v5e:1x1", 1, 1, 1, (F, F), "v5litepod-1"),
    "v5litepod-64": ("v5e:8x8", 64, 8, 64, (F, F), "v5litepod-64"),
    "v5e-128": ("v5e:8x16", 128, 16, 128, (F, T), "v5litepod-128"),
    "v5e-256": ("v5e:16x16", 256, 32, 256, (T, T), "v5litepod-256"),
    "v6e-256": ("v6e:16x16", 256, 32, 256, (T, T), "v6e-256"),
    "trillium-16": ("v6e:4x4", 16, 2, 16, (F, F), "v6e-16"),
    "v3-1024": ("v3:16x32", 512, 128, 1024, (F, F), "v3-1024"),
    "v3-2048": ("v3:32x32", 1024, 256, 2048, (T, T), "v3-2048"),
    "v2-512": ("v2:16x16", 256, 64, 512, (T, T), "v2-512"),
    "h100:1024": ("h100:1024", 1024, 128, 1024, (F,), None),
    "h100:4": ("h100:4", 4, 1, 4, (F,), None),
    "gb200:576": ("gb200:576", 576, 144, 576, (F,), None),
    "cpu:8": ("cpu:8", 8, 1, 8, (F,), None),
    "cpu:3": ("cpu:3", 3, 1, 3, (F,), None),
}

# Other spellings of the same.
SPELLINGS = {
    "4xv5p:16x20x28": ["4 x v5p:16x20x28", "4*V5P:16X20X28", "4xv5p-17920", "4xv5p-16x20x28"],
    "4xv5p:4x4x4": ["4xv5p-128", "4 x TPU v5p-128", "4xtpu-v5p-slice:4x4x4"],
    "2xv5e:16x16": ["2 x v5e-256", "2xv5litepod-256", "2xTPU v5 lite-256", "2xv5litepod-16x16"],
    "v5p:4x4x4": [
        "  v5p:4x4x4\n",
        "v5p=4x4x4",
        "v5p 4x4x4",
        "v5p: 4 x 4 x 4",
        "v5p:4\N{MULTIPLICATION SIGN}4\N{MULTIPLICATION SIGN}4",
    ],
    "h100:64": ["h100-sxm:64", "H100 SXM5:64", "NVIDIA H100 80GB HBM3:64", "64xh100", "h100x64"],
    "h100-pcie:8": ["H100 PCIe:8", "nvidia h100 pcie-8"],
    "a100:16": ["a100-80:16", "A100-80GB:16", "NVIDIA A100-SXM4-80GB:16"],
    "a100-40:16": ["A100-SXM4-40GB:16", "a100-40gb-16"],
    "mi300x:8": ["AMD Instinct MI300X:8", "8xmi300x", "mi300x-8"],
    "cpu:8": ["8xcpu", "CPU-8"],
    "2xcpu:4": ["2 x cpu:4"],
    "h100:128": ["2xh100:64"],
    "v5p:16x20x28": ["v5p:8960"],
    "v5p:4x4x8": ["v5p:128"],
    "v4:4x8x8": ["v4:256", "v4-512"],
    "v5e:4x8": ["v5e:32"],
}

# Google's default topology of a size (the one most like a cube), as public tools list it too.
DEFAULTS = {
    "v4-384": "4x4x12",
    "v4-1024": "8x8x8",
    "v4-4096": "8x16x16",
    "v5p-768": "4x8x12",
    "v5p-1536": "8x8x12",
    "v5p-2048": "8x8x16",
    "v5p-3072": "8x12x16",
    "v5p-5376": "8x12x28",
    "v5p-6912": "12x12x24",
    "v5p-8960": "8x20x28",
    "v5p-9216": "12x16x24",
    "v5p-11520": "12x20x24",
}

REFUSED = {
    "v5p:8x8": "3-D torus; write v5p:4x4x4",
    "v5e:4x4x4": "2-D torus; write v5e:8x8",
    "v5e:8x4": "ascend; write v5e:4x8",
    "v4:1x2x2": "ascend; write v4:2x2x1",
    "v5e:4x16": "shapes are 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16 or 16x16",
    "v4:4x4x6": "nearest: v4:4x4x4 or v4:4x4x8",
    "v4:2x4x8": "nearest: v4:2x4x4 or v4:4x4x4",
    "v4:16x16x20": "v4 pod ends at 4096 chips",
    "v5p:32x32x32": "v5p pod ends at 8960 chips",
    "v5p:4x4x300": "a dim ends at 256",
    "v5p:99999999999x4x4": "v5p pod ends at 8960 chips",
    "v6e:16x32": "v6e pod ends at 256 chips",
    "v6e-512": "nearest: v6e-256",
    "v5p-7": "nearest: v5p-8",
    "v5p-130": "nearest: v5p-128 or v5p-256",
    "v5p-2": "nearest: v5p-8",
    "v5p-20000": "nearest: v5p-17920",
    "v5p:65": "nearest: v5p:4x4x4 or v5p:4x4x8",
    "v5p:9000": "more chips than a v5p pod has, 8960",
    "v7x:9216": "v7x:16x24x24",
    "v5e-100": "nearest: v5litepod-64 or v5litepod-128",
    "v5p:0x4x4": "zero",
    "v5p-0": "zero",
    "v5p:-4x4x4": "no size",
    "v5p:-128": "no size",
    "0xv5p-8": "0 slices",
    "4xv5p": "how large; write v5p:4x4x4 or v5p-128",
    "v5p": "says no size; write v5p:4x4x4 or v5p-128",
    "a100-80": "says no size; write a100:8",
    "cpu": "says no size; write cpu:8",
    "h100:6": "nearest: h100:4 or h100:8",
    "h100:100": "nearest: h100:96 or h100:104",
    "gb200:6": "nearest: gb200:4 or gb200:8",
    "h100:8x8": "no torus.*write a count: h100:64",
    "0xh100": "no chips",
    "h100:99999999999": "more than muster plans",
    "100000xv5p:4x4x4": "more than muster plans",
    "v5p:٤x٤x٤": "characters that no name has",
    "v5p\n:4x4x4": "characters that no name has",
    "": "empty",
    " ": "empty",
    "v5p:4x4x4" * 200_000: "1800000 characters",
}


@pytest.mark.parametrize("text", GOLDEN)
def test_golden(text: str) -> None:
    cluster = parse_cluster(text)
    one = cluster.slice
    found = (one.name, one.chips, one.hosts, one.devices, one.wrap, one.accelerator_type)
    assert found == GOLDEN[text]
    assert cluster.slices == 1
    assert cluster.name == one.name


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, ts in SPELLINGS.items() for t in ts])
def test_spellings(name: str, text: str) -> None:
    assert parse_cluster(text).name == name
    assert parse_cluster(text) == parse_cluster(name)


@pytest.mark.parametrize("text", DEFAULTS)
def test_default_topologies(text: str) -> None:
    cluster = parse_cluster(text)
    assert cluster.name.endswith(":" + DEFAULTS[text])
    assert cluster.slice.accelerator_type == text


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:24] or "empty")
def test_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput, match=REFUSED[text]) as error:
        parse_cluster(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_several_slices() -> None:
    cluster = parse_cluster("4xv5p:16x20x28")
    assert (cluster.slices, cluster.chips) == (4, 35840)
    assert any("18432" in warning for warning in cluster.warnings)


def test_a_bare_count_says_how_it_was_read() -> None:
    assert "v5p-128 is 64 chips" in parse_cluster("v5p:128").warnings[0]
    assert parse_cluster("v5e:64").warnings == ()


def test_groups_of_gpus_are_one_cluster() -> None:
    cluster = parse_cluster("2xh100:64")
    assert cluster.slices == 1
    assert cluster.warnings == ("2 x 64 GPUs are one cluster of 128 GPUs",)


def test_part_of_a_scale_up_domain_is_mentioned() -> None:
    assert parse_cluster("gb200:576").warnings == ()
    assert "28 GPUs of another" in parse_cluster("gb200:100").warnings[0]


def test_weak_figures_are_mentioned() -> None:
    assert any("nominal" in warning for warning in parse_cluster("cpu:8").warnings)
    assert any("scale_out" in warning for warning in parse_cluster("mi300x:8").warnings)
    assert parse_cluster("v5p-128").warnings == parse_cluster("h100:64").warnings == ()


@pytest.mark.parametrize(
    ("text", "axes"),
    [("v5p:4x4x4", 3), ("v5p:2x2x1", 2), ("v5e:1x1", 0), ("v5e:16x16", 2), ("h100:64", 0)],
)
def test_torus_axes(text: str, axes: int) -> None:
    assert parse_cluster(text).slice.torus_axes == axes


@pytest.mark.parametrize(
    ("text", "twists"),
    [
        ("v4:4x4x8", True),
        ("v5p:8x16x16", True),
        ("v5p:12x12x24", True),
        ("v5p:16x16x24", False),
        ("v5p:4x4x4", False),
        ("v5p:2x2x4", False),
        ("v5e:8x16", False),
        ("h100:8", False),
    ],
)
def test_what_may_be_twisted(text: str, twists: bool) -> None:
    assert parse_cluster(text).slice.can_twist is twists
