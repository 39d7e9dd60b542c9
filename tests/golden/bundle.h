/* tiny: a network that trains and predicts, for generic, by Glowtrain 0.2.0.
 *
 * The object file needs nothing: no library, no heap, no other symbol.
 *
 * Memory is the caller's: variables and an arena, whose sizes and alignment are below. A handle belongs to one caller
 * at a time; several handles, each with memory of its own, can be used at the same time. Between two calls the arena
 * holds nothing and may be used for something else. Calls may be interrupted by what leaves the handle's memory alone;
 * a step that was begun cannot be taken up again elsewhere than where it was interrupted. What a call writes to must
 * not overlap with what it reads from: outputs are partly written before all inputs have been read.
 */

#ifndef TINY_H
#define TINY_H
#define TINY_H_tiny

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TINY_VERSION 3262667167u /* this header's; goes into tiny_memory */
#define TINY_ALIGNMENT 8
#define TINY_VARIABLES_BYTES 72
#define TINY_ARENA_BYTES 256
#define TINY_THREADS 1 /* of tiny_parallel_for, at most */

/* The same numbers, as the object file has them. */
typedef struct {
  uint32_t version, variables;
  size_t alignment, variables_bytes, arena_bytes;
} tiny_size;
extern const tiny_size tiny_sizes;

/* What functions return. Whatever is not TINY_OK has changed nothing, unless it says so. */
enum {
  TINY_OK = 0, /* success */
  TINY_NULL_POINTER = 1, /* a pointer that must not be null is null */
  TINY_OTHER_VERSION = 2, /* the header is of another bundle or version than the object file */
  TINY_NOT_INITIALISED = 3, /* the handle has not been initialised */
  TINY_MISALIGNED = 4, /* variables or arena do not begin at a multiple of the alignment */
  TINY_TOO_SMALL = 5, /* variables or arena have fewer bytes than are needed */
  TINY_NOT_FINITE = 6, /* the loss or a hyperparameter is NaN or infinite; no variable has changed */
  TINY_NO_SUCH_VARIABLE = 7, /* there is no variable of that number */
  TINY_WRONG_SIZE = 8, /* a variable or an array has another size */
  TINY_READ_FAILED = 9, /* reading failed or ended early; variables have changed only if it did so the second time */
  TINY_WRITE_FAILED = 10, /* writing failed; what was written is incomplete */
  TINY_OTHER_WEIGHTS = 11, /* the file holds the weights of another model */
  TINY_OVERLAP = 12, /* variables and arena have bytes in common */
  TINY_NO_WEIGHTS = 13, /* weights that are not in the object file have not all been set or loaded */
};
const char *tiny_error(uint32_t code); /* the text above */

/* Runs body(context, thread, begin, end) for ranges that together are 0 ... tasks, of about `each`, and
 * returns when all have been done; `thread` is below TINY_THREADS, and no two run with the same one at a time. */
typedef void (*tiny_parallel_for)(
    void *own, void (*body)(void *context, size_t thread, size_t begin, size_t end), void *context, size_t tasks,
    size_t each);

typedef struct {
  uint32_t version; /* TINY_VERSION */
  void *variables;
  size_t variables_bytes;
  void *arena;
  size_t arena_bytes;
  tiny_parallel_for parallel_for; /* null: one thread */
  void *own;                        /* what parallel_for is given */
} tiny_memory;

/* An instance. Its fields are not to be touched. */
typedef struct {
  uint32_t version;
  void *variables, *arena;
  tiny_parallel_for parallel_for;
  void *own, *run;
} tiny_handle;

/* Make a handle ready, and its variables what they are at the start. */
uint32_t tiny_init(tiny_handle *handle, const tiny_memory *memory);

/* Variables. Parameters are trained, statistics belong to the model, too, the state to training alone.
 *
 *     0  state      optimizer.step: i64[]
 *     1  parameter  layer.bias: f32[2]
 *     2  state      layer.bias.sgd.momentum: f32[2]
 *     3  parameter  layer.weight: f32[3,2]
 *     4  state      layer.weight.sgd.momentum: f32[3,2]
 */
enum { TINY_PARAMETER = 0, TINY_STATISTIC = 1, TINY_STATE = 2, TINY_VARIABLES = 5 };

typedef struct {
  const char *name, *type;          /* "f32", "i64", ... */
  uint32_t role, size, rank;        /* bytes of an element, axes */
  const uint32_t *shape, *strides;  /* strides: in memory, in elements */
  size_t elements, offset;          /* the byte of the variables' memory at which it begins */
} tiny_variable;
extern const tiny_variable tiny_variables[TINY_VARIABLES];

/* The number of a variable, or TINY_VARIABLES where there is none of this name. */
uint32_t tiny_find(const char *variable);

/* A variable's elements in row-major order; `bytes` must be elements * size. */
uint32_t tiny_get(tiny_handle *handle, uint32_t variable, void *data, size_t bytes);
uint32_t tiny_set(tiny_handle *handle, uint32_t variable, const void *data, size_t bytes);

/* All variables as they are at the start. */
uint32_t tiny_reset(tiny_handle *handle);

/* All variables to and from a file (safetensors). Callbacks return how many bytes they wrote or read. A file is read
 * twice, and changes nothing if it is of another model or if it cannot be read the first time. Nothing behind the
 * bytes of such a file is read. */
#define TINY_FILE_BYTES 480
typedef size_t (*tiny_write)(void *own, const void *data, size_t bytes);
typedef size_t (*tiny_read)(void *own, size_t offset, void *data, size_t bytes);
uint32_t tiny_save(tiny_handle *handle, tiny_write write, void *own);
uint32_t tiny_load(tiny_handle *handle, tiny_read read, void *own);

/* Hyperparameters, and what they are by default. */
typedef struct {
  float lr; /* 0.25 */
  float weight_decay; /* 0 */
  float momentum; /* 0.5 */
  float dampening; /* 0 */
} tiny_hyper;
extern const tiny_hyper tiny_defaults;

/* One step of training on a batch; `hyper` may be null (the defaults), and so may `loss`.
 *
 *   x: f32[2,3]
 *   target: f32[2,2]
 *   loss: f32[]
 */
uint32_t tiny_step(tiny_handle *handle, const float *x, const float *target, const tiny_hyper *hyper, float *loss);

/* Predictions for a batch.
 *
 *   x: f32[2,3]
 *   output: f32[2,2]
 */
uint32_t tiny_predict(tiny_handle *handle, const float *x, float *output);

#ifdef __cplusplus
}
#endif

#elif !defined TINY_H_tiny
#error "a bundle whose name has the letters of tiny in another case is here already, with the same macros: rename one"
#endif /* TINY_H */
