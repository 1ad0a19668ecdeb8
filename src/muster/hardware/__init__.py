"""Chips, slices and clusters: facts as data with sources, and which slices are legal."""

from muster.hardware.catalogue import all_chips, chip_by_name, profiles, sources
from muster.hardware.chip import Chip, CompilerTarget, Loopback, Network, Switched, Torus
from muster.hardware.cluster import Cluster
from muster.hardware.facts import Alternative, Fact, Source
from muster.hardware.parse import parse_cluster
from muster.hardware.shapes import Shape, SliceRule
from muster.hardware.slice import Slice, accelerator_types, slice_of

__all__ = [
    "Alternative",
    "Chip",
    "Cluster",
    "CompilerTarget",
    "Fact",
    "Loopback",
    "Network",
    "Shape",
    "Slice",
    "SliceRule",
    "Source",
    "Switched",
    "Torus",
    "accelerator_types",
    "all_chips",
    "chip_by_name",
    "parse_cluster",
    "profiles",
    "slice_of",
    "sources",
]
