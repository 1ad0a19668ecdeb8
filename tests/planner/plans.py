"""Plans that several tests ask for."""

from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import make_plan
from muster.planner.plan import Plan
from muster.planner.rules import Rule
from muster.planner.search import Restrictions
from muster.planner.workload import make_workload
from muster.units import parse_batch


def plan_of(
    model: str,
    hardware: str,
    batch: str,
    *,
    seq: int = 4096,
    tokens: int | None = None,
    constants: str = "documented",
    restrictions: Restrictions | None = None,
    mfu: float | None = None,
) -> Plan:
    architecture = find_model(model)
    workload = make_workload(
        architecture, parse_batch(batch), sequence_length=seq, train_tokens=tokens
    )
    cluster = parse_cluster(hardware, constants=constants)
    return make_plan(architecture, cluster, workload, mfu=mfu, restrictions=restrictions)


def rule_of(plan: Plan, name: str) -> Rule:
    return next(rule for rule in plan.rules if rule.id == name)
