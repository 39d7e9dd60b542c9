"""The C header of a bundle: the whole of its interface, with what it needs and how it is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.contents import ROLES
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, c_type, hyper_of, parameter
from glowtrain.bundles.weights import file_size
from glowtrain.version import __version__


def header(module: BundleModule) -> str:
    """The text of ``NAME.h``. C99, C++ as well."""
    guard = f"{module.name.upper()}_H"
    parts = [
        _about(module),
        f"#ifndef {guard}\n#define {guard}\n\n#include <stddef.h>\n#include <stdint.h>\n",
        '#ifdef __cplusplus\nextern "C" {\n#endif\n',
        _sizes(module),
        _errors(module.name),
        _memory(module),
        *([_variables(module)] if module.memory.places else []),
        *([_hyper(module)] if module.hyper else []),
        *(_function(module.name, function) for function in module.functions),
        f"#ifdef __cplusplus\n}}\n#endif\n\n#endif /* {guard} */\n",
    ]
    return "\n".join(parts)


def _about(module: BundleModule) -> str:
    needs = module.target.needs or "nothing: no library, no heap, no other symbol"
    return f"""/* {module.name}: a network that {_does(module)}, for {module.target.name}, by Glowtrain {__version__}.
 *
 * The object file needs {needs}.
 *
 * Memory is the caller's: variables and an arena, whose sizes and alignment are below. A handle belongs to one caller
 * at a time; several handles, each with memory of its own, can be used at the same time. Between two calls the arena
 * holds nothing and may be used for something else. Calls may be interrupted by what leaves the handle's memory alone;
 * a step that was begun cannot be taken up again elsewhere than where it was interrupted. What a call writes to must
 * not overlap with what it reads from: outputs are partly written before all inputs have been read.
 */
"""


def _does(module: BundleModule) -> str:
    return " and ".join("trains" if function.trains else "predicts" for function in module.functions)


def _sizes(module: BundleModule) -> str:
    big, interface = module.name.upper(), module.interface
    return f"""#define {big}_VERSION {module.version}u /* this header's; goes into {module.name}_memory */
#define {big}_ALIGNMENT {module.memory.alignment}
#define {big}_VARIABLES_BYTES {module.memory.size}
#define {big}_ARENA_BYTES {interface.arena}
#define {big}_THREADS {module.threads} /* of {module.name}_parallel_for, at most */

/* The same numbers, as the object file has them. */
typedef struct {{
  uint32_t version, variables;
  size_t alignment, variables_bytes, arena_bytes;
}} {module.name}_size;
extern const {module.name}_size {module.name}_sizes;
"""


def _errors(name: str) -> str:
    big = name.upper()
    codes = "\n".join(f"  {big}_{code.name} = {code.value}, /* {code.text} */" for code in ErrorCode)
    return f"""/* What functions return. Whatever is not {big}_OK has changed nothing, unless it says so. */
enum {{
{codes}
}};
const char *{name}_error(uint32_t code); /* the text above */
"""


def _memory(module: BundleModule) -> str:
    name, big = module.name, module.name.upper()
    return f"""/* Runs body(context, thread, begin, end) for ranges that together are 0 ... tasks, of about `each`, and
 * returns when all have been done; `thread` is below {big}_THREADS, and no two run with the same one at a time. */
typedef void (*{name}_parallel_for)(
    void *own, void (*body)(void *context, size_t thread, size_t begin, size_t end), void *context, size_t tasks,
    size_t each);

typedef struct {{
  uint32_t version; /* {big}_VERSION */
  void *variables;
  size_t variables_bytes;
  void *arena;
  size_t arena_bytes;
  {name}_parallel_for parallel_for; /* null: one thread */
  void *own;                        /* what parallel_for is given */
}} {name}_memory;

/* An instance. Its fields are not to be touched. */
typedef struct {{
  uint32_t version;
  void *variables, *arena;
  {name}_parallel_for parallel_for;
  void *own, *run;
}} {name}_handle;

/* Make a handle ready{", and its variables what they are at the start" if module.memory.places else ""}. */
uint32_t {name}_init({name}_handle *handle, const {name}_memory *memory);
"""


def _variables(module: BundleModule) -> str:
    name, big = module.name, module.name.upper()
    roles = ", ".join(f"{big}_{role.upper()} = {number}" for number, role in enumerate(ROLES))
    numbers = "\n".join(
        f"  {number:>4}  {place.role:<9}  {visible(place.name)}: {place.type}"
        for number, place in enumerate(module.memory.places)
    )
    return f"""/* Variables. Parameters are trained, statistics belong to the model, too, the state to training alone.
 *
{_commented(numbers)}
 */
enum {{ {roles}, {big}_VARIABLES = {len(module.memory.places)} }};

typedef struct {{
  const char *name, *type;          /* "f32", "i64", ... */
  uint32_t role, size, rank;        /* bytes of an element, axes */
  const uint32_t *shape, *strides;  /* strides: in memory, in elements */
  size_t elements, offset;          /* the byte of the variables' memory at which it begins */
}} {name}_variable;
extern const {name}_variable {name}_variables[{big}_VARIABLES];

/* The number of a variable, or {big}_VARIABLES where there is none of this name. */
uint32_t {name}_find(const char *variable);

/* A variable's elements in row-major order; `bytes` must be elements * size. */
uint32_t {name}_get({name}_handle *handle, uint32_t variable, void *data, size_t bytes);
uint32_t {name}_set({name}_handle *handle, uint32_t variable, const void *data, size_t bytes);

/* All variables as they are at the start{_unknown(module)}. */
uint32_t {name}_reset({name}_handle *handle);

/* All variables to and from a file (safetensors). Callbacks return how many bytes they wrote or read. A file is read
 * twice, and changes nothing if it is of another model or if it cannot be read the first time. Nothing behind the
 * bytes of such a file is read. */
#define {big}_FILE_BYTES {file_size(module.memory.types)}
typedef size_t (*{name}_write)(void *own, const void *data, size_t bytes);
typedef size_t (*{name}_read)(void *own, size_t offset, void *data, size_t bytes);
uint32_t {name}_save({name}_handle *handle, {name}_write write, void *own);
uint32_t {name}_load({name}_handle *handle, {name}_read read, void *own);
"""


def _unknown(module: BundleModule) -> str:
    return ": parameters and statistics are NaN before they are set or loaded" if module.memory.unknown else ""


def _hyper(module: BundleModule) -> str:
    name = module.name
    defaults = module.hyper
    fields = "\n".join(
        f"  {c_type(each.type.dtype)} {each.name}; /* {defaults[each.name]:g} */" for each in hyper_of(module.functions)
    )
    return f"""/* Hyperparameters, and what they are by default. */
typedef struct {{
{fields}
}} {name}_hyper;
extern const {name}_hyper {name}_defaults;
"""


def _function(name: str, function: BundleFunction) -> str:
    step = "One step of training on a batch; `hyper` may be null (the defaults), and so may `loss`."
    what = step if function.trains else "Predictions for a batch."
    lines = _commented("\n".join(f"   {_told(each)}" for each in (*function.inputs, *function.outputs)))
    hyper = [f"const {name}_hyper *hyper"] if function.hyper else []
    parameters = ", ".join(
        [f"{name}_handle *handle", *_pointers(function.inputs, "const "), *hyper, *_pointers(function.outputs)]
    )
    return f"""/* {what}
 *
{lines}
 */
uint32_t {name}_{function.name}({parameters});
"""


def _told(tensor: BundleTensor) -> str:
    """An input or output, with its name in the model where that is another."""
    source = f" ({visible(tensor.source)})" if tensor.source != tensor.name else ""
    return f"{parameter(tensor.name)}: {tensor.type}{source}"


def _pointers(tensors: Sequence[BundleTensor], qualifier: str = "") -> Iterator[str]:
    return (f"{qualifier}{c_type(each.type.dtype)} *{parameter(each.name)}" for each in tensors)


def visible(name: str) -> str:
    """A name in one line whose letters stand in the order in which they are read: others are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)


def _commented(text: str) -> str:
    """Lines of a comment, which names in them do not end."""
    return "\n".join(f" *{line}" for line in text.replace("*/", "* /").replace("/*", "/ *").splitlines())
