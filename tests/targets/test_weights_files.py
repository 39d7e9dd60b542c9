"""One table of damaged files of weights runs through every language: what C refuses, each refuses, and changes nothing.

make test-targets runs this. It needs a C and a C++ compiler, gfortran, rustc and cargo, and Node.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import BundleError
from tests.targets.test_faces import ran

CODES = {0: "OK", 9: "READ_FAILED", 11: "OTHER_WEIGHTS"}


@gt.model(x=gt.f32["batch", 3])
def three(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 2, name="layer")


def written(folder: Path, **options: object) -> Path:
    rule = gt.optim.SGD(0.1, momentum=0.9)
    gt.bundle(three, folder, loss="mse", optimizer=rule, dims={"batch": 4}, **options)  # type: ignore[arg-type]
    return folder


def trained(folder: Path) -> bytes:
    """A file of weights that are not those of the start."""
    one, random = gt.load_bundle(folder), np.random.default_rng(3)
    one.step(x=random.normal(size=(4, 3)).astype(np.float32), target=random.normal(size=(4, 2)).astype(np.float32))
    one.save(folder / "trained")
    return (folder / "trained").read_bytes()


def damaged(good: bytes) -> list[bytes]:
    """Every bit of the header flipped, ends missing and added, other lengths, and headers that describe the same data
    otherwise."""
    end = 8 + int.from_bytes(good[:8], "little")
    flipped = [good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :] for at in range(end) for bit in range(8)]
    short = [good[:length] for length in (0, 1, 7, 8, 9, end - 1, end, end + 1, len(good) - 1)]
    longer = [good + b"\0", good + b"{}", good + bytes(4096), good + good]
    lengths = [number.to_bytes(8, "little") + good[8:] for number in (0, 1, len(good), 1 << 53, 1 << 63, (1 << 64) - 1)]
    said = json.loads(good[8:end])
    names = [name for name in said if name != "__metadata__"]
    first, last = said[names[0]]["data_offsets"], said[names[-1]]["data_offsets"]
    texts = [
        json.dumps({**said, names[0]: {**said[names[0]], "data_offsets": offsets}}).encode()
        for offsets in ([0, first[1] + 4], [4, first[1]], [first[1], first[0]], last, [0.5, first[1]], [], None, "0")
    ]
    texts += [b"{}", b"[]", b"null", json.dumps({**said, "more": {"dtype": "F32", "shape": [0]}}).encode()]
    return [*flipped, *short, *longer, *lengths, *(len(t).to_bytes(8, "little") + t + good[end:] for t in texts)]


def in_c(folder: Path, count: int) -> str:
    (folder / "test.c").write_text(C)
    ran(folder, "cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "test.c", "three.o", "-o", "program")
    return ran(folder, "program", str(count))


def in_cpp(folder: Path, count: int) -> str:
    (folder / "test.cpp").write_text(CPP)
    ran(folder, "g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "test.cpp", "three.o", "-o", "program")
    return ran(folder, "program", str(count))


def in_fortran(folder: Path, count: int) -> str:
    (folder / "test.f90").write_text(FORTRAN)
    options = "-Wall", "-std=f2018", "fortran/three.f90", "test.f90", "three.o"
    ran(folder, "gfortran", *options, "-o", "program")
    return ran(folder, "program", str(count))


def test_a_file_that_cannot_be_written_whole_is_an_error_in_fortran(tmp_path: Path) -> None:
    """Where the system takes no byte, as that of a full disk."""
    written(tmp_path, faces=["fortran"])
    (tmp_path / "test.f90").write_text(FORTRAN_SAVES)
    options = "-Wall", "-std=f2018", "-fno-backtrace", "fortran/three.f90", "test.f90", "three.o"
    ran(tmp_path, "gfortran", *options, "-o", "program")
    assert ran(tmp_path, "program").split() == ["0"]
    assert ran(tmp_path, "bash", "-c", "trap '' XFSZ; ulimit -f 0; ./program").split() == ["10"]


def in_rust(folder: Path, count: int) -> str:
    (folder / "rust" / "examples" / "test.rs").write_text(RUST)
    options = "--quiet", "--offline", "--manifest-path", "rust/Cargo.toml", "--example", "test"
    return ran(folder, "cargo", "run", *options, "--", str(count))


def in_python(folder: Path, count: int) -> str:
    model, lines = gt.load_bundle(folder), []
    for number in range(count):
        model.reset()
        code = "OK"
        try:
            model.load(folder / f"file{number}")
        except BundleError as failure:
            code = failure.code  # type: ignore[attr-defined]
        model.save(folder / "after")
        lines.append(f"{code} {zlib.crc32((folder / 'after').read_bytes()):08x}\n")
    return "".join(lines)


def in_javascript(folder: Path, count: int) -> str:
    written(folder / "web", target="wasm32")
    (folder / "test.mjs").write_text(JAVASCRIPT)
    return ran(folder, "node", "test.mjs", str(count))


def parsed(printed: str) -> list[tuple[str, str]]:
    """Codes by name, and checksums of all variables as they are saved afterwards."""
    rows = [line.split() for line in printed.splitlines()]
    return [(CODES[int(code)] if code.isdigit() else code, sum_.lower()) for code, sum_ in rows]


@pytest.mark.parametrize("language", [in_c, in_cpp, in_fortran, in_rust, in_python, in_javascript])
def test_damaged_files_change_nothing_in_any_language(language: Callable[[Path, int], str], tmp_path: Path) -> None:
    good = trained(written(tmp_path, faces=["rust", "fortran"]))
    files = [good, *damaged(good)]
    gt.load_bundle(tmp_path).save(tmp_path / "start")
    before = f"{zlib.crc32((tmp_path / 'start').read_bytes()):08x}"
    for number, data in enumerate(files):
        (tmp_path / f"file{number}").write_bytes(data)
    first, *rest = parsed(language(tmp_path, len(files)))
    assert first == ("OK", f"{zlib.crc32(good):08x}")
    assert len(rest) == len(files) - 1
    refused = {(code, before) for code in ("READ_FAILED", "OTHER_WEIGHTS")}
    assert {number: row for number, row in enumerate(rest, 1) if row not in refused} == {}


C = r"""#include <stdio.h>
#include <stdlib.h>
#include "three.h"

static uint64_t variables[THREE_VARIABLES_BYTES / 8 + THREE_ALIGNMENT / 8];
static uint64_t arena[THREE_ARENA_BYTES / 8 + THREE_ALIGNMENT / 8 + 1];

static void *aligned(void *memory) {
  return (void *)(((uintptr_t)memory + THREE_ALIGNMENT - 1) / THREE_ALIGNMENT * THREE_ALIGNMENT);
}

static size_t add(void *state, const void *data, size_t bytes) {
  uint32_t *sum = state;
  for (size_t at = 0; at < bytes; at++) {
    *sum ^= ((const unsigned char *)data)[at];
    for (int bit = 0; bit < 8; bit++) *sum = *sum >> 1 ^ (0xedb88320u & -(*sum & 1));
  }
  return bytes;
}

static size_t read_at(void *file, size_t offset, void *data, size_t bytes) {
  return fseek(file, (long)offset, SEEK_SET) ? 0 : fread(data, 1, bytes, file);
}

int main(int count, char **given) {
  three_handle handle;
  three_memory memory = {
      THREE_VERSION, aligned(variables), THREE_VARIABLES_BYTES, aligned(arena), THREE_ARENA_BYTES, 0, 0};
  if (count != 2 || three_init(&handle, &memory)) return 1;
  for (int number = 0; number < atoi(given[1]); number++) {
    char path[30];
    sprintf(path, "file%d", number);
    FILE *file = fopen(path, "rb");
    uint32_t state = ~0u, code = THREE_OTHER_WEIGHTS;
    three_reset(&handle);
    fseek(file, 0, SEEK_END);
    if (ftell(file) <= THREE_FILE_BYTES) code = three_load(&handle, read_at, file);
    fclose(file);
    three_save(&handle, add, &state);
    printf("%u %08x\n", (unsigned)code, (unsigned)~state);
  }
  return 0;
}
"""
CPP = r"""#include <cstdlib>
#include <string>
#include "three.hpp"

static std::size_t add(void *state, const void *data, std::size_t bytes) {
  auto &sum = *static_cast<std::uint32_t *>(state);
  for (std::size_t at = 0; at < bytes; at++) {
    sum ^= static_cast<const unsigned char *>(data)[at];
    for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (0xedb88320u & -(sum & 1));
  }
  return bytes;
}

int main(int, char **given) {
  three::Model model;
  for (int number = 0; number < std::atoi(given[1]); number++) {
    std::FILE *file = std::fopen(("file" + std::to_string(number)).c_str(), "rb");
    std::uint32_t state = ~0u, code = THREE_OK;
    model.reset();
    try { model.load(file); } catch (const three::Error &error) { code = error.code(); }
    std::fclose(file);
    three_save(model.handle(), add, &state);
    std::printf("%u %08x\n", code, ~state);
  }
}
"""
FORTRAN_SAVES = """
program test
  use three
  implicit none
  type(three_model) :: model
  if (three_open(model) /= three_OK) error stop
  print '(i0)', three_save_file(model%handle, "saved")
end program
"""
FORTRAN = """program main
  use, intrinsic :: iso_c_binding
  use three
  implicit none
  type(three_model) :: model
  character(len=20) :: given, path
  integer :: count, number, file, bytes, at, bit
  integer(c_int32_t) :: code, state
  integer(c_int8_t), allocatable :: all(:)
  call get_command_argument(1, given)
  read (given, *) count
  if (three_open(model) /= three_OK) error stop
  do number = 0, count - 1
    write (path, '(a, i0)') "file", number
    if (three_reset(model%handle) /= three_OK) error stop
    code = three_load_file(model%handle, trim(path))
    if (three_save_file(model%handle, "after") /= three_OK) error stop
    open (newunit=file, file="after", access="stream", form="unformatted", status="old")
    inquire (unit=file, size=bytes)
    allocate (all(bytes))
    read (file) all
    close (file)
    state = not(0_c_int32_t)
    do at = 1, bytes
      state = ieor(state, iand(int(all(at), c_int32_t), 255))
      do bit = 1, 8
        state = merge(ieor(shiftr(state, 1), -306674912), shiftr(state, 1), btest(state, 0))
      end do
    end do
    deallocate (all)
    write (*, '(i0, a, z8.8)') code, " ", not(state)
  end do
  call three_close(model)
end program
"""
RUST = """use three::{codes, Error, Model, FILE_BYTES};

fn main() {
    let mut model = Model::new().unwrap();
    for number in 0..std::env::args().nth(1).unwrap().parse().unwrap() {
        let file = std::fs::read(format!("file{number}")).unwrap();
        model.reset().unwrap();
        let done = if file.len() > FILE_BYTES {
            Err(Error::Code(codes::OTHER_WEIGHTS))
        } else {
            model.load(|at, to| match file.get(at..at + to.len()) {
                Some(piece) => { to.copy_from_slice(piece); true }
                None => false,
            })
        };
        let code = match done { Ok(()) => 0, Err(Error::Code(code)) => code, Err(_) => 99 };
        let mut state = !0u32;
        model.save(|bytes| {
            for byte in bytes {
                state ^= u32::from(*byte);
                for _ in 0..8 { state = state >> 1 ^ (0xedb8_8320 & (state & 1).wrapping_neg()); }
            }
            true
        }).unwrap();
        println!("{code} {:08x}", !state);
    }
}
"""
JAVASCRIPT = """import { readFileSync } from "node:fs";
import { GlowtrainError, load } from "./web/three.mjs";

const model = await load();
for (let number = 0; number < Number(process.argv[2]); number++) {
  let code = "OK", state = ~0;
  model.reset();
  try {
    model.load(readFileSync(`file${number}`));
  } catch (error) {
    code = error instanceof GlowtrainError ? error.code : error.name;
  }
  for (const byte of model.save()) {
    state ^= byte;
    for (let bit = 0; bit < 8; bit++) state = (state >>> 1) ^ (0xedb88320 & -(state & 1));
  }
  console.log(code, (~state >>> 0).toString(16).padStart(8, "0"));
}
"""
