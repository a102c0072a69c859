"""The effects of a restore or a rescale, which `--dry-run` shows."""

import click

from weir.control.console import Refused, Row
from weir.control.output import write_json


def write_restore(plan: Row, *, as_json: bool) -> None:
    """The mapping of the operators, output that would be repeated, problems and warnings."""
    if as_json:
        write_json(plan)
        return
    for operator in plan["operators"]:
        click.echo(f"{operator['uid']}: {operator['fate']}, {operator['reason']}", err=True)
    repeats = plan["repeats"]
    if repeats:
        click.echo(f"output of checkpoints {repeats['first']} to {repeats['last']} is written a second time", err=True)
    for problem in plan["problems"]:
        click.echo(f"problem: {problem['field']}: {problem['detail']}", err=True)
    for warning in plan["warnings"]:
        click.echo(f"warning: {warning}", err=True)


def show_rescale(plan: Row, *, as_json: bool) -> None:
    """Slots, state, and the durations of earlier stops and restores. Raises Refused if the rescale is not possible."""
    if as_json:
        write_json(plan)
    else:
        click.echo(f"parallelism {plan['parallelism_before'] or '-'} to {plan['parallelism'] or '-'}")
        click.echo(f"slots of other jobs: {plan['slots_elsewhere']}")
        if plan["state_bytes"] is not None:
            click.echo(f"state: {plan['state_bytes']} bytes")
        for kind in ("stop", "restore"):
            if earlier := plan[kind]:
                median_s, longest_s = earlier["median_ms"] / 1000, earlier["longest_ms"] / 1000
                click.echo(f"earlier {kind}s: {median_s:.1f} s (median), {longest_s:.1f} s (longest)")
    if plan["refusal"]:
        raise Refused(plan["refusal"])
