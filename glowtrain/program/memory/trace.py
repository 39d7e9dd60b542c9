"""When each activation of a plan is alive, as a table that other programs read."""

from __future__ import annotations

import csv
import io

from glowtrain.program.memory.plan import lifetimes, lines
from glowtrain.program.program import Plan


def trace(plan: Plan) -> str:
    """CSV as MiniMalloc reads it: ``id,lower,upper,size``, alive in ``lower <= time < upper``, in order of ``lower``.

    Sizes are bytes, rounded up to the plan's alignment, so that a capacity of the plan's arena is enough for them.
    Times count the instructions as the planner does: those of a repeat once.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("id", "lower", "upper", "size"))
    lives = lifetimes(plan.program.instructions)
    for buffer, (first, last) in sorted(lives.items(), key=lambda life: life[1]):
        table.writerow((buffer.name, first, last + 1, lines(buffer, plan.alignment) * plan.alignment))
    return text.getvalue()
