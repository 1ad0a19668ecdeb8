"""What one device of a chip does in a second."""

from dataclasses import dataclass

from muster.errors import BadInput
from muster.hardware import Chip
from muster.roofline.efficiency import efficiency
from muster.roofline.host_link import host_bandwidth

LANES, ALUS = 8 * 128, 4  # of a core's vector unit: the book's Part 2


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What one device does in a second.

    Attributes:
        clock: cycles.
        peak_flops: bf16 multiplications and additions of its matrix units.
        int8_flops: the same of 8-bit integers; 0 where that is not known.
        vector_ops: operations of its vector units.
        matmul_flops: that a kernel's matmul was fitted to reach.
        hbm: bytes.
        host: bytes, one way.
        matrix_unit: numbers along a side of a matrix unit.
    """

    clock: float
    peak_flops: float
    int8_flops: float
    vector_ops: float
    matmul_flops: float
    hbm: float
    host: float
    matrix_unit: int


def rates_of(chip: Chip) -> Rates:
    """What one device of a chip does in a second.

    Raises:
        BadInput: its clock is not known.
    """
    clock = _number(chip, "core.clock_hz")
    if not clock:
        raise BadInput(f"the clock of {chip.id} is not known; programs are timed on TPUs alone")
    fitted = efficiency(chip.id, "xla")
    devices = chip.devices_per_chip
    cores = (_number(chip, "core.tensor_cores_per_chip") or 1.0) / devices
    return Rates(
        clock=clock,
        peak_flops=chip.bf16_flops / devices,
        int8_flops=chip.peak_flops.get("int8", 0.0) / devices,
        vector_ops=LANES * ALUS * clock * cores,
        matmul_flops=chip.bf16_flops * fitted.matmul / devices,
        hbm=chip.hbm_bandwidth / devices,
        host=host_bandwidth(chip) / devices,
        matrix_unit=int(_number(chip, "core.mxu_dim") or 128),
    )


def _number(chip: Chip, fact_id: str) -> float | None:
    value = fact.value if (fact := chip.fact(fact_id)) is not None else None
    return float(value) if isinstance(value, int | float) else None
