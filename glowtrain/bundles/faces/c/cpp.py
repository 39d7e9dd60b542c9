"""C++17 over the C interface: a class that owns its memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from glowtrain.bundles.faces.words import named
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import KEYWORDS, BundleFunction, BundleTensor, c_type, parameter

WORDS = KEYWORDS | {"std"}
"""What no namespace is called."""


def cpp(module: BundleModule) -> str:
    """The text of ``NAME.hpp``."""
    name, big = module.name, module.name.upper()
    variables = _VARIABLES.format(name=name, big=big) if module.memory.places else ""
    calls = "\n".join(_call(module, function) for function in module.functions)
    return _TEXT.format(name=name, big=big, space=named(name, WORDS), calls=calls, variables=variables)


def _call(module: BundleModule, function: BundleFunction) -> str:
    taken = WORDS | {"hyper", "loss", *re.findall(r"\w+", _TEXT + _VARIABLES)}
    inputs = [(named(parameter(e.name), taken), e) for e in function.inputs]
    outputs = [(named(parameter(e.name), taken - {"loss"} if function.trains else taken), e) for e in function.outputs]
    checks = "\n".join(
        f"    if ({name}.size() != {e.type.size}) return failed({module.name.upper()}_WRONG_SIZE);"
        for name, e in (*inputs, *(() if function.trains else outputs))
    )
    parameters, arguments = _lists(module, function, inputs, outputs)
    shapes = "\n".join(f"  //   {name}: {e.type}" for name, e in (*inputs, *outputs))
    what = "One step of training on a batch." if function.trains else "Predictions for a batch."
    return f"""  // {what} Arrays are row-major, and checked for their sizes.
{shapes}
  Result {function.name}({", ".join(parameters)}) {{
{checks}
    return done({module.name}_{function.name}({", ".join(["&handle_", *arguments])}));
  }}
"""


def _lists(
    module: BundleModule,
    function: BundleFunction,
    inputs: Sequence[tuple[str, BundleTensor]],
    outputs: Sequence[tuple[str, BundleTensor]],
) -> tuple[list[str], list[str]]:
    """Parameters and what C is given for them: hyperparameters and metrics come last, as they may be left out."""
    arguments = [f"{name}.data()" for name, _ in inputs]
    parameters = [*_views(inputs, "const ")]
    if not function.trains:
        return [*parameters, *_views(outputs)], [*arguments, *(f"{name}.data()" for name, _ in outputs)]
    (name, loss), *metrics = outputs
    parameters.append(f"{c_type(loss.type.dtype)} &{name}")
    if function.hyper:
        parameters.append(f"const {module.name}_hyper &hyper = {module.name}_defaults")
        arguments.append("&hyper")
    parameters += [f"{c_type(each.type.dtype)} *{metric} = nullptr" for metric, each in metrics]
    return parameters, [*arguments, f"&{name}", *(metric for metric, _ in metrics)]


def _views(tensors: Sequence[tuple[str, BundleTensor]], qualifier: str = "") -> Iterator[str]:
    return (f"View<{qualifier}{c_type(e.type.dtype)}> {name}" for name, e in tensors)


_TEXT = """/* {name}.h as a class. C++17; nothing but the object file is linked.
 *
 * Failures are exceptions (Error). With {big}_RETURN_CODES defined before this header is included there are none:
 * functions return the codes of {name}.h, and status() has what came of the beginning.
 */
#ifndef {big}_HPP
#define {big}_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <new>
#include <type_traits>
#include <utility>
#ifndef {big}_RETURN_CODES
#include <stdexcept>
#endif

#include "{name}.h"

namespace {space} {{

#ifdef {big}_RETURN_CODES
using Result = std::uint32_t;
inline Result done(std::uint32_t code) {{ return code; }}
#else
using Result = void;

class Error : public std::runtime_error {{
 public:
  explicit Error(std::uint32_t code) : std::runtime_error({name}_error(code)), code_(code) {{}}
  std::uint32_t code() const noexcept {{ return code_; }}

 private:
  std::uint32_t code_;
}};

inline Result done(std::uint32_t code) {{
  if (code != {big}_OK) throw Error(code);
}}
#endif
inline Result failed(std::uint32_t code) {{ return done(code); }}

// Elements that lie somewhere else: those of a vector or an array, or {{pointer, count}}.
template <class Element>
class View {{
 public:
  View(Element *data, std::size_t size) : data_(data), size_(size) {{}}
  template <class Container, class = decltype(std::data(std::declval<Container &>()))>
  View(Container &&all) : data_(std::data(all)), size_(std::size(all)) {{}}

  Element *data() const noexcept {{ return data_; }}
  std::size_t size() const noexcept {{ return size_; }}

 private:
  Element *data_;
  std::size_t size_;
}};

// An instance: it owns variables and arena, or uses the caller's, which must outlive it. It can be moved, not copied.
class Model {{
 public:
  explicit Model({name}_parallel_for parallel_for = nullptr, void *own = nullptr) : owned_(allocate()) {{
    {name}_memory memory{{}};
    memory.version = {big}_VERSION;
    memory.variables = owned_;
    memory.variables_bytes = {big}_VARIABLES_BYTES;
    memory.arena = owned_ == nullptr ? nullptr : owned_ + {big}_VARIABLES_BYTES;
    memory.arena_bytes = {big}_ARENA_BYTES;
    memory.parallel_for = parallel_for;
    memory.own = own;
    begin(memory);
  }}

  explicit Model(const {name}_memory &memory) {{ begin(memory); }}

  Model(Model &&other) noexcept
      : handle_(std::exchange(other.handle_, {{}})),
        owned_(std::exchange(other.owned_, nullptr)),
        status_(std::exchange(other.status_, {big}_NOT_INITIALISED)) {{}}

  Model &operator=(Model &&other) noexcept {{
    std::swap(handle_, other.handle_);
    std::swap(owned_, other.owned_);
    std::swap(status_, other.status_);
    return *this;
  }}

  ~Model() {{ release(); }}

{calls}{variables}
  // For what is only in C.
  {name}_handle *handle() noexcept {{ return &handle_; }}
  std::uint32_t status() const noexcept {{ return status_; }}

 private:
  static constexpr std::align_val_t alignment{{{big}_ALIGNMENT}};
  static constexpr std::size_t owned_bytes = {big}_VARIABLES_BYTES + {big}_ARENA_BYTES;

  static unsigned char *allocate() {{
#ifdef {big}_RETURN_CODES
    return static_cast<unsigned char *>(::operator new(owned_bytes, alignment, std::nothrow));
#else
    return static_cast<unsigned char *>(::operator new(owned_bytes, alignment));
#endif
  }}

  void begin(const {name}_memory &memory) {{
    status_ = {name}_init(&handle_, &memory);
#ifndef {big}_RETURN_CODES
    if (status_ != {big}_OK) {{
      release();
      throw Error(status_);
    }}
#endif
  }}

  void release() noexcept {{ ::operator delete(owned_, alignment); }}

  {name}_handle handle_{{}};
  unsigned char *owned_ = nullptr;
  std::uint32_t status_ = {big}_NOT_INITIALISED;
}};

}}  // namespace {space}

#endif  // {big}_HPP
"""
_VARIABLES = """
  // A variable's elements, row-major, by name; theirs is the type of C that its own is passed as.
  template <class Container>
  Result get(const char *variable, Container &&to) {{
    const std::uint32_t number = {name}_find(variable);
    return done({name}_get(&handle_, number, std::data(to), bytes_of(number, std::data(to), std::size(to))));
  }}
  template <class Container>
  Result set(const char *variable, const Container &from) {{
    const std::uint32_t number = {name}_find(variable);
    return done({name}_set(&handle_, number, std::data(from), bytes_of(number, std::data(from), std::size(from))));
  }}

  // All variables as they are at the start, or to and from an open file.
  Result reset() {{ return done({name}_reset(&handle_)); }}
  Result save(std::FILE *file) {{
    const std::uint32_t code = {name}_save(&handle_, write, file);
    if (code == {big}_OK && std::fflush(file) != 0) return failed({big}_WRITE_FAILED);
    return done(code);
  }}
  Result load(std::FILE *file) {{
    const bool longer = std::fseek(file, 0, SEEK_END) == 0 && std::ftell(file) > {big}_FILE_BYTES;
    return longer ? failed({big}_OTHER_WEIGHTS) : done({name}_load(&handle_, read, file));
  }}

 private:
  // Bytes of so many elements; of elements of another type than a variable's, more than any has.
  template <class Element>
  static std::size_t bytes_of(std::uint32_t number, const Element *, std::size_t count) noexcept {{
    if (number >= {big}_VARIABLES) return 0;
    const {name}_variable &variable = {name}_variables[number];
    const bool floating = variable.type[0] == 'f' && variable.size >= sizeof(float);
    const bool same = sizeof(Element) == variable.size && std::is_floating_point_v<Element> == floating;
    return same ? count * sizeof(Element) : SIZE_MAX;
  }}
  static std::size_t write(void *file, const void *data, std::size_t bytes) noexcept {{
    return std::fwrite(data, 1, bytes, static_cast<std::FILE *>(file));
  }}
  static std::size_t read(void *file, std::size_t offset, void *data, std::size_t bytes) noexcept {{
    auto *from = static_cast<std::FILE *>(file);
    if (std::fseek(from, static_cast<long>(offset), SEEK_SET) != 0) return 0;
    return std::fread(data, 1, bytes, from);
  }}

 public:
"""
