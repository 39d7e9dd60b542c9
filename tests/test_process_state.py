"""Importing Glowtrain, and training with it, leaves what a process shares with all of its other code as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

STATE = """
import atexit, faulthandler, gc, json, os, random, signal, sys, threading, warnings

hooks = []

def noting(register):
    def noted(*args, **named):
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.startswith(("glowtrain", "__main__")):
            hooks.append(caller)
        return register(*args, **named)
    return noted

os.register_at_fork, atexit.register = noting(os.register_at_fork), noting(atexit.register)

import hypothesis, llvmlite.binding, ml_dtypes, numpy as np, onnx, rich.style  # whose imports change some

def handlers():
    return {int(number): repr(signal.getsignal(number)) for number in signal.valid_signals()}

def mask():
    os.umask(found := os.umask(0))
    return found

def state():
    return {
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks), gc.get_debug()],
        "signals": [handlers(), faulthandler.is_enabled()],
        "environment": dict(os.environ),
        "folder": [os.getcwd(), mask()],
        "threads": len(os.listdir("/proc/self/task")) if os.path.exists("/proc") else threading.active_count(),
        "interpreter": [sys.getswitchinterval(), sys.getrecursionlimit(), repr(sys.excepthook), repr(sys.meta_path)],
        "tracing": [repr(sys.gettrace()), repr(sys.getprofile())],
        "warnings": [repr(rule) for rule in warnings.filters],
        "numpy": [np.geterr(), repr(np.get_printoptions()), repr(np.random.get_state()[1].sum())],
        "random": hash(random.getstate()),
        "hooks": list(hooks),
    }

before = state()
"""

IMPORTS = f"""{STATE}
import glowtrain as gt
for name in gt.__all__:
    getattr(gt, name)
import glowtrain.backends.cpu.emit, glowtrain.cli, glowtrain.compiler.walk, glowtrain.verification
print(json.dumps([before, state()]))
"""

TRAINS = f"""{STATE}
import glowtrain as gt
@gt.model(x=gt.f32["batch", 4])
def model(x):
    return gt.nn.linear(x, 2)
trainer = gt.Trainer(model, gt.losses.mse(), gt.optim.Adam(), threads=1)
trainer.step({{"x": np.ones((3, 4), np.float32), "target": np.ones((3, 2), np.float32)}})
print(json.dumps([before, state()]))
"""


def states(script: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Before and after, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    before, after = json.loads(run.stdout)
    return before, after


def test_imports_change_nothing() -> None:
    before, after = states(IMPORTS)
    assert {name: value for name, value in after.items() if value != before[name]} == {}


def test_a_training_step_leaves_the_hook_for_its_locks_alone() -> None:
    """A child of fork makes locks anew."""
    before, after = states(TRAINS)
    changed = {name: value for name, value in after.items() if value != before[name]}
    assert changed == {"hooks": ["glowtrain.forks"]}


CHANGES = {
    "collector": "gc.freeze()",
    "signals": "signal.signal(signal.SIGUSR1, lambda *_: None)",
    "environment": "os.environ['SOMETHING'] = 'else'",
    "folder": "os.umask(0o77)",
    "threads": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "interpreter": "sys.setrecursionlimit(5000)",
    "warnings": "warnings.simplefilter('ignore')",
    "numpy": "np.seterr(all='ignore')",
    "random": "random.seed(1)",
    "hooks": "os.register_at_fork(before=print)",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen(what: str) -> None:
    before, after = states(f"{STATE}\n{CHANGES[what]}\nprint(json.dumps([before, state()]))")
    assert [name for name, value in after.items() if value != before[name]] == [what]
