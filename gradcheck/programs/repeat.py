"""``python -m glowtrain.gradcheck.programs.repeat FILE.onnx``: a random program's failure again, from its files.

Prints the program and every comparison of the oracle that failed; the exit code is 1 if it still fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from glowtrain.errors import GlowtrainError
from glowtrain.gradcheck.programs.options import described
from glowtrain.gradcheck.programs.rungs import check_case
from glowtrain.gradcheck.programs.shrink import load_case


def main(arguments: Sequence[str]) -> int:
    """Repeat one case; returns the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    try:
        saved = load_case(arguments[0])
    except GlowtrainError as error:
        print(error, file=sys.stderr)
        return 2
    print(saved.case)
    if with_options := described(saved.choice):
        print(f"compiled with {with_options}")
    measures = list(check_case(saved.case, [saved.oracle], saved.seed, saved.choice))
    for measure in measures:
        told = f": {measure.detail}" if measure.detail else ""
        print(f"{measure.oracle} {measure.status}, error {measure.error:.3g}, {measure.ratio:.3g} of allowed{told}")
    return int(any(measure.status == "failed" for measure in measures))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
