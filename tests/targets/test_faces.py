"""Bundles from other languages print the same bits as from C, and libraries load where Glowtrain is not.

make test-targets runs this. It needs a C and a C++ compiler, gfortran, rustc and cargo, and ziglang from pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.target import Target, target_names
from glowtrain.bundles.libraries.linking import shared_library, zig_target
from tests.bundles.small_bundles import BATCH, digits, halves, odd_names, trainer, written
from tests.compiler.networks import cnn, gpt, lstm, mlp

PACKAGES = "gcc g++ gfortran rustc cargo"
MODELS = {
    "mlp": lambda: (trainer(), {"dims": {"batch": BATCH}}),
    "cnn": lambda: (gt.Trainer(cnn, "softmax_cross_entropy", gt.optim.SGD(0.1)), {"dims": {"batch": BATCH}}),
    "lstm": lambda: (gt.Trainer(lstm, "softmax_cross_entropy", gt.optim.Adam(0.01)), {"dims": {"batch": BATCH}}),
    "gpt": lambda: (gt.Trainer(gpt, "softmax_cross_entropy", gt.optim.AdamW(0.01)), {"dims": {"batch": BATCH}}),
    "odd names": lambda: (odd_names(), {}),
    "long name": lambda: (odd_names(), {"name": "a_network_with_a_rather_long_name_indeed"}),
    "bf16": lambda: (gt.Trainer(halves, "mse", gt.optim.SGD(0.1)), {"dims": {"batch": 2}}),
    "f16": lambda: (gt.Trainer(in_f16, "mse", gt.optim.SGD(0.1)), {"dims": {"batch": 2}}),
    "f64": lambda: (gt.Trainer(in_f64, "mse", gt.optim.SGD(0.1)), {"dims": {"batch": 2}}),
    "predicts": lambda: (mlp, {"dims": {"batch": 2}}),
    "no rows": lambda: (in_f64, {"dims": {"batch": 0}}),
}
"""What bundles are made of, by what is tested of it: the model, and options."""


@gt.model(x=gt.f16["batch", 5])
def in_f16(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 7)), 3)


@gt.model(x=gt.f64["batch", 5])
def in_f64(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 7)), 3)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ran(folder: Path, program: str, *arguments: str) -> str:
    """What a program prints. It must succeed, and say nothing on the error stream."""
    found = shutil.which(program) or shutil.which(folder / program)
    assert found, f"install {program}: Debian has {PACKAGES}"
    done = subprocess.run([found, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def bundle_of(name: str, folder: Path, *, extra: Mapping[str, object] | None = None) -> str:
    """Write a bundle of one of the models; the name of its files."""
    made, options = MODELS[name]()
    return gt.bundle(made, folder, **options, **(extra or {})).module.name


def test_c(model: str, tmp_path: Path) -> None:
    bundle_of(model, tmp_path)
    assert "the same bits" in ran(tmp_path, "make", "check", "CFLAGS=-std=c99 -Wall -Wextra -Wpedantic -Werror")


def test_fortran(model: str, tmp_path: Path) -> None:
    name = bundle_of(model, tmp_path, extra={"faces": ["fortran"]})
    folder = tmp_path / "fortran"
    ran(folder, "gfortran", "-O1", "-Wall", "-std=f2018", f"{name}.f90", "main.f90", f"../{name}.o", "-o", "example")
    assert ran(folder, "example") == (tmp_path / "expected.txt").read_text()


FORTRAN_TEST = """program test
  use mlp
  use iso_c_binding
  implicit none
  type(mlp_model) :: model
  real(c_float), allocatable :: x(:, :, :, :), scores(:, :), few(:, :)
  integer(c_int64_t), allocatable :: labels(:)
  real(c_float) :: loss, rows(4, 10)
  allocate (x(8, 8, 1, 4), scores(10, 4), few(10, 3), labels(4))
  x = 0.5
  labels = 1
  call require(mlp_open(model) == mlp_OK)
  call require(mlp_step(model%handle, x, labels, loss=loss) == mlp_OK)
  call require(mlp_step(model%handle, x(:, :, :, 4:1:-1), labels) == mlp_OK)
  call require(mlp_step(model%handle, reshape(x, [8, 8, 4, 1]), labels) == mlp_WRONG_SIZE)
  call require(mlp_step(model%handle, x, labels(:size(few, 2))) == mlp_WRONG_SIZE)
  call require(mlp_predict(model%handle, x, scores) == mlp_OK)
  call require(mlp_predict(model%handle, x, few) == mlp_WRONG_SIZE)
  call require(mlp_predict(model%handle, x, rows) == mlp_WRONG_SIZE)
  print '(a)', mlp_message(mlp_WRONG_SIZE)

contains

  subroutine require(condition)
    logical, intent(in) :: condition
    if (.not. condition) error stop 1
  end subroutine
end program
"""


def test_arrays_of_other_shapes_in_fortran(tmp_path: Path) -> None:
    """C takes their addresses alone: what is too short would be read, and written, behind its end."""
    written(tmp_path, faces=["fortran"])
    (tmp_path / "test.f90").write_text(FORTRAN_TEST)
    ran(tmp_path, "gfortran", "-std=f2018", "-Wall", "fortran/mlp.f90", "test.f90", "mlp.o", "-o", "program")
    assert ran(tmp_path, "program") == "a variable or an array has another size\n"


def test_rust(model: str, tmp_path: Path) -> None:
    bundle_of(model, tmp_path, extra={"faces": ["rust"]})
    folder = tmp_path / "rust"
    assert ran(folder, "cargo", "run", "--quiet", "--offline", "--example", "train") == (
        (tmp_path / "expected.txt").read_text()
    )
    ran(folder, "cargo", "build", "--quiet", "--offline", "--no-default-features")


RUST_TEST = """use mlp::{codes, Error, Hyper, Model};

#[test]
fn all_of_it() {
    let mut model = Model::new().unwrap();
    let (x, labels) = (vec![0.5f32; 256], vec![1i64; 4]);
    let short = model.step(&x[1..], &labels, &Hyper::default());
    assert_eq!(short, Err(Error::Length { tensor: "x", given: 255, needed: 256 }));
    assert_eq!(short.unwrap_err().to_string(), "x has 256 elements, not 255");
    let first = model.step(&x, &labels, &Hyper { lr: 0.1, ..Hyper::default() }).unwrap();
    let mut file = Vec::new();
    model.save(|bytes| { file.extend_from_slice(bytes); true }).unwrap();
    assert_eq!(model.save(|_| false), Err(Error::Code(codes::WRITE_FAILED)));
    let bias = Model::find("head.bias").unwrap();
    assert_eq!(Model::variables()[bias as usize].shape(), [10]);
    let mut values = [0f32; 10];
    model.get(bias, &mut values).unwrap();
    assert_eq!(model.get(bias, &mut [0f64; 10]), Err(Error::Type));
    assert_eq!(model.get(bias, &mut [0f32; 9]), Err(Error::Code(codes::WRONG_SIZE)));
    assert_eq!(model.get(1000, &mut values), Err(Error::Code(codes::NO_SUCH_VARIABLE)));

    let (mut variables, mut arena) = (vec![0u8; mlp::VARIABLES_BYTES + 64], vec![0u8; mlp::ARENA_BYTES + 64]);
    let (v, a) = (variables.as_ptr().align_offset(64), arena.as_ptr().align_offset(64));
    assert_eq!(
        Model::within(&mut variables[v..v + 1], &mut arena[a..]).err(),
        Some(Error::Code(codes::TOO_SMALL))
    );
    let mut other = Model::within(&mut variables[v..], &mut arena[a..]).unwrap();
    assert_eq!(other.load(|_, _| false), Err(Error::Code(codes::READ_FAILED)));
    other.load(|at, to| { to.copy_from_slice(&file[at..at + to.len()]); true }).unwrap();
    let mut same = [0f32; 10];
    other.get(bias, &mut same).unwrap();
    assert_eq!(values, same);
    other.set(bias, &[1f32; 10]).unwrap();
    other.reset().unwrap();
    assert_eq!(other.step(&x, &labels, &Hyper::default()), Ok(first));
    assert_eq!(other.step(&[f32::NAN; 256], &labels, &Hyper::default()), Err(Error::Code(codes::NOT_FINITE)));
    std::thread::spawn(move || model.reset()).join().unwrap().unwrap();
}
"""


def test_rust_s_errors_memory_and_files(tmp_path: Path) -> None:
    written(tmp_path, faces=["rust"])
    (tmp_path / "rust" / "tests").mkdir()
    (tmp_path / "rust" / "tests" / "all.rs").write_text(RUST_TEST)
    assert "1 passed" in ran(tmp_path / "rust", "cargo", "test", "--quiet", "--offline", "--test", "all")


CPP_TEST = """#include <array>
#include <cstdlib>
#include <vector>
#include "mlp.hpp"

#define REQUIRE(condition) if (!(condition)) { std::puts(#condition); return 1; }

int main() {
  std::vector<float> x(256, 0.5f), scores(40), bias(10), same(10);
  std::int64_t labels[4] = {1, 1, 1, 1};
  float first = 0;
#ifdef MLP_RETURN_CODES
  mlp::Model model;
  REQUIRE(model.status() == MLP_OK);
  REQUIRE(model.step(x, labels, first) == MLP_OK);
  REQUIRE(model.step({x.data(), 255}, labels, first) == MLP_WRONG_SIZE);
  mlp_memory none{};
  mlp::Model bad(none);
  REQUIRE(bad.status() == MLP_OTHER_VERSION);
  REQUIRE(bad.step(x, labels, first) == MLP_NOT_INITIALISED);
#else
  mlp::Model moved;
  moved.step(x, labels, first);
  mlp::Model model(std::move(moved));
  float again = 0;
  mlp_hyper hyper = mlp_defaults;
  hyper.lr = 0.1f;
  model.step(x, labels, again, hyper);
  REQUIRE(again < first);
  const auto &constant = x;
  model.predict(constant, scores);
  model.get("head.bias", bias);
  std::FILE *file = std::tmpfile();
  model.save(file);
  mlp::Model other;
  other.load(file);
  std::fclose(file);
  other.get("head.bias", same);
  REQUIRE(bias == same);
  other.set("head.bias", std::array<float, 10>{7});
  other.get("head.bias", same);
  REQUIRE(same[0] == 7);
  other.reset();
  other.step(x, labels, again);
  REQUIRE(again == first);
  moved = std::move(other);
  std::uint32_t code = 0;
  try { moved.step({x.data(), 255}, labels, first); } catch (const mlp::Error &error) { code = error.code(); }
  REQUIRE(code == MLP_WRONG_SIZE);
  try { moved.get("nothing", bias); } catch (const mlp::Error &error) { code = error.code(); }
  REQUIRE(code == MLP_NO_SUCH_VARIABLE);
  code = 0;
  std::int32_t whole[10];
  try { moved.get("head.bias", whole); } catch (const mlp::Error &error) { code = error.code(); }
  REQUIRE(code == MLP_WRONG_SIZE);
  code = 0;
  try { moved.set("head.bias", std::array<double, 5>{7}); } catch (const mlp::Error &error) { code = error.code(); }
  REQUIRE(code == MLP_WRONG_SIZE);
  std::FILE *full = std::fopen("/dev/full", "wb");  // takes what a buffer holds, and loses it
  std::vector<char> buffer(MLP_FILE_BYTES + 1);
  REQUIRE(full && std::setvbuf(full, buffer.data(), _IOFBF, buffer.size()) == 0);
  try { moved.save(full); } catch (const mlp::Error &error) { code = error.code(); }
  REQUIRE(code == MLP_WRITE_FAILED);
  std::fclose(full);
  alignas(MLP_ALIGNMENT) static unsigned char variables[MLP_VARIABLES_BYTES], arena[MLP_ARENA_BYTES];
  mlp_memory memory{};
  memory.version = MLP_VERSION;
  memory.variables = variables;
  memory.variables_bytes = sizeof variables;
  memory.arena = arena;
  memory.arena_bytes = sizeof arena - 1;
  try { mlp::Model small(memory); } catch (const mlp::Error &error) { code = error.code(); }
  REQUIRE(code == MLP_TOO_SMALL);
  memory.arena_bytes++;
  mlp::Model mine(memory);
  mine.step(x, labels, again);
  REQUIRE(again == first);
#endif
  std::puts("good");
}
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("options", [["-fsanitize=address,undefined"], ["-fno-exceptions", "-DMLP_RETURN_CODES"]])
def test_cpp(compiler: str, options: list[str], tmp_path: Path) -> None:
    written(tmp_path, archive=True)
    (tmp_path / "test.cpp").write_text(CPP_TEST)
    warnings = "-Wall", "-Wextra", "-Wshadow", "-Wpedantic", "-Wconversion", "-Werror"
    ran(tmp_path, compiler, "-std=c++17", *warnings, *options, "test.cpp", "libmlp.a", "-o", "program")
    assert ran(tmp_path, "program") == "good\n"


CPP_CODES = """#define MLP_RETURN_CODES
#include "mlp.hpp"

std::uint32_t codes(const float *x, std::size_t count, float *scores) {
  return mlp::Model().predict({x, count}, {scores, 40});
}
"""
CPP_EXCEPTIONS = """#include <vector>
#include "mlp.hpp"

std::uint32_t codes(const float *x, std::size_t count, float *scores);

int main() {
  std::vector<float> x(255), scores(40);
  std::printf("%u ", codes(x.data(), x.size(), scores.data()));
  try { mlp::Model().predict(x, scores); } catch (const mlp::Error &error) { std::printf("%u", error.code()); }
}
"""


@pytest.mark.parametrize("order", [["codes.cpp", "exceptions.cpp"], ["exceptions.cpp", "codes.cpp"]])
def test_files_of_one_cpp_program_take_codes_and_exceptions(order: list[str], tmp_path: Path) -> None:
    """Functions of the class have the same names in both: the linker would take those of the first file for both."""
    written(tmp_path, archive=True)
    (tmp_path / "codes.cpp").write_text(CPP_CODES)
    (tmp_path / "exceptions.cpp").write_text(CPP_EXCEPTIONS)
    ran(tmp_path, "g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *order, "libmlp.a", "-o", "program")
    assert ran(tmp_path, "program") == "8 8"


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_headers_of_every_model_in_cpp(compiler: str, model: str, tmp_path: Path) -> None:
    name = bundle_of(model, tmp_path)
    (tmp_path / "test.cpp").write_text(f'#include "{name}.hpp"\nint main() {{ return 0; }}\n')
    ran(tmp_path, compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-c", "test.cpp")


WITHOUT_GLOWTRAIN = """
import sys
sys.path.insert(0, "modules")
import numpy as np
from mlp import load
batch = np.load("batch.npz")
network = load(threads=2)
print(network.step(**batch).hex(), network.another().step(**batch).hex())
network.save("trained.safetensors")
(scores,) = network.predict(x=batch["x"]).values()
print(scores.tobytes().hex())
print(*sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
"""


@pytest.mark.parametrize("linker", ["cc", "clang", f"{sys.executable} -m ziglang cc"])
def test_python_without_glowtrain(linker: str, tmp_path: Path) -> None:
    written(tmp_path, shared=True, linker=linker, threads=2)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "numpy").symlink_to(Path(np.__file__).parent, target_is_directory=True)
    (tmp_path / "modules" / "numpy.libs").symlink_to(Path(np.__file__).parent.parent / "numpy.libs")
    np.savez(tmp_path / "batch.npz", **digits(1))
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{WITHOUT_GLOWTRAIN}"
    losses, scores, modules = ran(tmp_path, sys.executable, "-I", "-S", "-c", script).splitlines()
    own = trainer()
    loss = own.step(digits(1))
    assert losses.split() == [float(loss).hex()] * 2
    (expected,) = gt.compile(own.model())({"x": digits(1)["x"]}).values()
    assert scores == expected.tobytes().hex()
    assert {name for name in modules.split() if not name.startswith("_")} <= {"mlp", "numpy"}
    loaded = gt.load_bundle(tmp_path)
    loaded.load(tmp_path / "trained.safetensors")
    assert all(array.tobytes() == own.variables()[name].tobytes() for name, array in loaded.variables.items())


NAMED = {name: Target.named(name) for name in target_names()}
HOSTED = [name for name, target in NAMED.items() if target.hosted and target == target.unasked]


@pytest.mark.parametrize("target", HOSTED)
def test_libraries_and_archives_of_every_system_are_linked(target: str, tmp_path: Path) -> None:
    """With Zig for each; what is not of this system is only linked."""
    resolved = Target.named(target)
    made = gt.bundle(trainer(), tmp_path, dims={"batch": BATCH}, target=target, archive=True)
    zig = f"{sys.executable} -m ziglang cc -target {zig_target(resolved)}"
    assert len(shared_library(made.module.code, "mlp", resolved, zig)) > 1000
    ran(tmp_path, *zig.split(), "-std=c11", "main.c", "libmlp.a", "-o", "example")


def test_archives_are_indexed(tmp_path: Path) -> None:
    written(tmp_path, archive=True)
    ran(tmp_path, "cc", "-std=c11", "main.c", "-L.", "-lmlp", "-o", "example")
    assert ran(tmp_path, "example") == (tmp_path / "expected.txt").read_text()
    assert ran(tmp_path, "ar", "t", "libmlp.a") == "mlp.o\n"
