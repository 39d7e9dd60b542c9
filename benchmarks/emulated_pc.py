"""A PC in an emulator, Bochs, that runs compiled functions and no operating system."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

JOB = 0x100000
LIST = 0x1000
"""Where the boot code looks for calls, and how many bytes are kept for them."""
PROCESSORS = {
    "avx512vnni": ("tigerlake", "corei7_skylake_x"),
    "avxvnni": ("sapphire_rapids", "corei7_haswell_4770"),
}
"""Bochs' names of processors for each target: one with its instructions, and one with all of them but ``vpdpbusd``."""
GUARD = bytes([0xA5]) * 64
SECTOR = 512
CYLINDER = 16 * 63 * SECTOR
"""Sizes of the disk: only whole cylinders can be read."""
BOOT = Path(__file__).with_suffix(".s")
SECTIONS = "SECTIONS {{ . = {at}; all : {{ QUAD({entry}) *(.text*) *(.*data* .bss*) }} /DISCARD/ : {{ *(*) }} }}"
"""For the linker: everything in one piece, behind the address of its entry."""
SETTINGS = """
cpu: model={processor}, reset_on_triple_fault=0, ips=1000000
memory: guest={size}, host={size}
romimage: file=boot.rom
ata0-master: type=disk, path=disk, mode=flat
plugin_ctrl: speaker=0
display_library: term
log: log
panic: action=fatal
"""


class Fault(Exception):
    """The emulated processor stopped before the end, at the instruction that ``code`` begins with."""

    def __init__(self, message: str, code: bytes) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Place:
    """Where an array of results is, and its shape and type."""

    at: int
    like: np.ndarray


class Job:
    """Memory of the PC: a list of calls, code, and arrays."""

    def __init__(self, code: bytes, entry: str, folder: Path) -> None:
        self.code = code
        linked = link(code, entry, JOB + LIST, folder)
        self.entry = int.from_bytes(linked[:8], "little")
        self.memory = bytearray(LIST) + linked
        self.calls: list[Sequence[Place]] = []

    def put(self, array: np.ndarray) -> int:
        """The address of a copy of an array."""
        self.memory += bytes(-len(self.memory) % 64)
        self.memory += np.ascontiguousarray(array).tobytes()
        return JOB + len(self.memory) - array.nbytes

    def result(self, array: np.ndarray) -> Place:
        """A place that begins as the array; behind it are bytes that stay as they are, or the run fails."""
        place = Place(self.put(array), array)
        self.memory += GUARD
        return place

    def call(self, arguments: Sequence[int], results: Sequence[Place]) -> None:
        """Call the code, and keep what it leaves in results that were put one after the other."""
        rest = [0] * (6 - len(arguments))
        numbers = np.array([self.entry, *arguments, *rest, results[0].at, size_of(results)], np.uint64)
        start = numbers.nbytes * len(self.calls)
        if start + 2 * numbers.nbytes > LIST:
            raise ValueError(f"there is no room for more than {len(self.calls)} calls")
        self.memory[start : start + numbers.nbytes] = numbers.tobytes()
        self.calls.append(results)

    @property
    def sectors(self) -> int:
        """Of the disk that the memory is read from."""
        return sectors(len(self.memory))

    def parted(self, data: bytes) -> list[np.ndarray]:
        """The results of all calls, from what was written. Raises :class:`Fault` if more was written."""
        found, start = [], 0
        for call in self.calls:
            for place in call:
                at = start + place.at - call[0].at
                end = at + place.like.nbytes
                if data[end : end + len(GUARD)] != GUARD:
                    raise Fault(f"something was written behind a result of {place.like.nbytes:,} bytes", b"")
                piece = np.frombuffer(data[at:end], np.uint8)
                found.append(piece.view(place.like.dtype).reshape(place.like.shape))
            start += SECTOR * sectors(size_of(call))
        return found


def sectors(size: int) -> int:
    """Sectors that hold so many bytes."""
    return -(-size // SECTOR)


def size_of(results: Sequence[Place]) -> int:
    """Bytes from the first to the last of some results, with what is behind it."""
    return results[-1].at + results[-1].like.nbytes + len(GUARD) - results[0].at


@dataclass(frozen=True)
class Pc:
    """A PC with a processor of Bochs' list; its files lie in ``folder``."""

    bochs: str
    processor: str
    folder: Path

    def run(self, job: Job) -> list[np.ndarray]:
        """The results of a job's calls. Raises :class:`Fault` where it does not come to its end."""
        self._write(job)
        command = [self.bochs, "-q", "-f", "settings"]
        surroundings = {"TERM": "xterm", **os.environ}
        go = "c\n"  # where Bochs was built with its debugger, that waits for a command
        told = subprocess.run(
            command, cwd=self.folder, env=surroundings, input=go, capture_output=True, text=True, check=False
        )
        data = (self.folder / "disk").read_bytes()
        if at := int.from_bytes(data[:8], "little"):
            raise self._fault(job, at, told.stderr)
        return job.parted(data[job.sectors * SECTOR :])

    def _fault(self, job: Job, at: int, told: str) -> Fault:
        if at != job.entry:
            return Fault(f"{self.processor}: a fault at {at:#x}", bytes(job.memory[max(0, at - JOB) :][:16]))
        log = (self.folder / "log").read_text() if (self.folder / "log").exists() else told
        panic = re.search(r">>PANIC<< (.*)", log)
        return Fault(f"{self.processor} did not come to the end: {panic[1] if panic else log[-500:]}", b"")

    def _write(self, job: Job) -> None:
        for name in ("log", "disk.lock"):
            (self.folder / name).unlink(missing_ok=True)
        size = SECTOR * (job.sectors + sum(sectors(size_of(call)) for call in job.calls))
        with (self.folder / "disk").open("wb") as disk:
            disk.write(job.memory)
            disk.truncate(CYLINDER * -(-size // CYLINDER))
        mega = 64
        while mega << 20 < JOB + len(job.memory):
            mega *= 2
        (self.folder / "settings").write_text(SETTINGS.format(processor=self.processor, size=mega))
        tool(self.folder, "as", "--defsym", f"SECTORS={job.sectors}", str(BOOT), "-o", "boot.o")
        tool(self.folder, "ld", "-Ttext=0xF0000", "-e", "0xF0000", "--oformat", "binary", "boot.o", "-o", "boot.rom")


def link(code: bytes, entry: str, at: int, folder: Path) -> bytes:
    """An object as it is in memory, behind the address of its entry."""
    (folder / "code.o").write_bytes(code)
    (folder / "code.ld").write_text(SECTIONS.format(at=at, entry=entry))
    tool(folder, "ld", "-T", "code.ld", "--oformat", "binary", "code.o", "-o", "code.bin")
    return (folder / "code.bin").read_bytes()


def encodings(code: bytes, mnemonic: str, folder: Path) -> list[bytes]:
    """All instructions of one kind in an object, as bytes."""
    (folder / "code.o").write_bytes(code)
    lines = tool(folder, "objdump", "-d", "-w", "code.o").splitlines()
    found = (re.match(rf"\s*\w+:\t([\w ]+?)\s*\t(?:{{\w+}} )?{mnemonic} ", line) for line in lines)
    return [bytes.fromhex(match[1]) for match in found if match]


def tool(folder: Path, *command: str) -> str:
    """What a program prints."""
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
