"""gradcheck's oracles and the ladder on emulated processors of other instructions, Python and all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.targets.emulated import PACKAGES

PROCESSORS = {
    "Nehalem": "SSE4.2",
    "SandyBridge": "AVX, but neither AVX2 nor fused multiply-add",
    "Haswell": "AVX2 and fused multiply-add",
    "Skylake-Client": "those of Haswell, without AVX-512",
    "EPYC": "Zen's",
}
"""QEMU's names, and what they have. This processor, on which all other tests run, is the sixth."""
OPERATORS = ("Exp", "Gemm", "com.microsoft.DynamicQuantizeLSTM")
SECONDS = 900
CHECKS = f"""
from glowtrain.backends.target import Target
from glowtrain.gradcheck import check_registry
check_registry({OPERATORS}, 1).raise_if_failed()
check_registry([], programs=1).raise_if_failed()
print(Target.host().features)
"""


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", PROCESSORS)
def test_operators_and_random_programs(name: str, tmp_path: Path) -> None:
    assert shutil.which("qemu-x86_64"), f"Debian has it in {PACKAGES}"
    command = ["qemu-x86_64", "-cpu", name, sys.executable, "-W", "ignore", "-c", CHECKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    features = done.stdout.split()[-1].split(",")
    assert ("+fma" in features) is (name not in ("Nehalem", "SandyBridge")), "the emulated processor was not asked"
