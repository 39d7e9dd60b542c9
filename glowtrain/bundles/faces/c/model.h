/* {{about}}.
 *
 * The object file needs {{needs}}.
 *
 * Memory is the caller's: variables and an arena, whose sizes and alignment are below. A handle belongs to one caller
 * at a time; several handles, each with memory of its own, can be used at the same time. Between two calls the arena
 * holds nothing and may be used for something else. Calls may be interrupted by what leaves the handle's memory alone;
 * a step that was begun cannot be taken up again elsewhere than where it was interrupted. What a call writes to must
 * not overlap with what it reads from: outputs are partly written before all inputs have been read.
 */

#ifndef NETWORK_H
#define NETWORK_H
#define NETWORK_H_network

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NETWORK_VERSION {{version}}u /* this header's; goes into network_memory */
#define NETWORK_ALIGNMENT {{alignment}}
#define NETWORK_VARIABLES_BYTES {{variables_bytes}}
#define NETWORK_ARENA_BYTES {{arena_bytes}}
#define NETWORK_THREADS {{threads}} /* of network_parallel_for, at most */

/* The same numbers, as the object file has them. */
typedef struct {
  uint32_t version, variables;
  size_t alignment, variables_bytes, arena_bytes;
} network_size;
extern const network_size network_sizes;

/* What functions return. Whatever is not NETWORK_OK has changed nothing, unless it says so. */
enum {
  /*{{codes}}*/
};
const char *network_error(uint32_t code); /* the text above */

/* Runs body(context, thread, begin, end) for ranges that together are 0 ... tasks, of about `each`, and
 * returns when all have been done; `thread` is below NETWORK_THREADS, and no two run with the same one at a time. */
typedef void (*network_parallel_for)(
    void *own, void (*body)(void *context, size_t thread, size_t begin, size_t end), void *context, size_t tasks,
    size_t each);

typedef struct {
  uint32_t version; /* NETWORK_VERSION */
  void *variables;
  size_t variables_bytes;
  void *arena;
  size_t arena_bytes;
  network_parallel_for parallel_for; /* null: one thread */
  void *own;                        /* what parallel_for is given */
} network_memory;

/* An instance. Its fields are not to be touched. */
typedef struct {
  uint32_t version;
  void *variables, *arena;
  network_parallel_for parallel_for;
  void *own, *run;
} network_handle;

/* Make a handle ready{{and_variables}}. */
uint32_t network_init(network_handle *handle, const network_memory *memory);

/* {{#variables}} */
/* Variables. Parameters are trained, statistics belong to the model, too, the state to training alone.
 *
{{listed}}
 */
enum { NETWORK_PARAMETER = 0, NETWORK_STATISTIC = 1, NETWORK_STATE = 2, NETWORK_VARIABLES = {{variables}} };

typedef struct {
  const char *name, *type;          /* "f32", "i64", ... */
  uint32_t role, size, rank;        /* bytes of an element, axes */
  const uint32_t *shape, *strides;  /* strides: in memory, in elements */
  size_t elements, offset;          /* the byte of the variables' memory at which it begins */
} network_variable;
extern const network_variable network_variables[NETWORK_VARIABLES];

/* The number of a variable, or NETWORK_VARIABLES where there is none of this name. */
uint32_t network_find(const char *variable);

/* A variable's elements in row-major order; `bytes` must be elements * size. */
uint32_t network_get(network_handle *handle, uint32_t variable, void *data, size_t bytes);
uint32_t network_set(network_handle *handle, uint32_t variable, const void *data, size_t bytes);

/* All variables as they are at the start{{unknown}}. */
uint32_t network_reset(network_handle *handle);

/* All variables to and from a file (safetensors). Callbacks return how many bytes they wrote or read. A file is read
 * twice, and changes nothing if it is of another model or if it cannot be read the first time. Nothing behind the
 * bytes of such a file is read. */
#define NETWORK_FILE_BYTES {{file_bytes}}
typedef size_t (*network_write)(void *own, const void *data, size_t bytes);
typedef size_t (*network_read)(void *own, size_t offset, void *data, size_t bytes);
uint32_t network_save(network_handle *handle, network_write write, void *own);
uint32_t network_load(network_handle *handle, network_read read, void *own);

/* {{/variables}} */
/* {{#hyper}} */
/* Hyperparameters, and what they are by default. */
typedef struct {
  /*{{hyper}}*/
} network_hyper;
extern const network_hyper network_defaults;

/* {{/hyper}} */
/*{{functions}}*/
#ifdef __cplusplus
}
#endif

#elif !defined NETWORK_H_network
#error "a bundle whose name has the letters of network in another case is here already, with the same macros: rename one"
#endif /* NETWORK_H */
