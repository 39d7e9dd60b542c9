/* Provokes every error code of a bundle of tests/compiler/networks.py's mlp, and prints each, and whether memory is as it
 * was before: lines of a name, the code's text, and "same" or "changed". */
#include <stdio.h>
#include <stdlib.h>

#include "mlp.h"

static _Alignas(MLP_ALIGNMENT) unsigned char variables[MLP_VARIABLES_BYTES + MLP_ALIGNMENT];
static _Alignas(MLP_ALIGNMENT) unsigned char arena[MLP_ARENA_BYTES + MLP_ALIGNMENT];
static unsigned char file[65536], read_back[65536];
static size_t length, limit;
static float x[256], loss, output[40];
static int64_t labels[4];
static mlp_handle handle;

static uint32_t sum(void) {
  uint32_t state = 2166136261u;
  for (size_t at = 0; at < sizeof variables; at++) state = (state ^ variables[at]) * 16777619u;
  return state;
}

static uint32_t before;

static void say(const char *name, uint32_t code) {
  printf("%s: %s, %s\n", name, mlp_error(code), sum() == before ? "same" : "changed");
  before = sum();
}

static size_t write(void *own, const void *data, size_t bytes) {
  (void)own;
  for (size_t at = 0; at < bytes; at++) {
    if (length == limit) return at;
    file[length++] = ((const unsigned char *)data)[at];
  }
  return bytes;
}

static size_t read(void *own, size_t offset, void *data, size_t bytes) {
  unsigned char *from = own;
  for (size_t at = 0; at < bytes; at++) {
    if (offset + at >= limit) return at;
    ((unsigned char *)data)[at] = from[offset + at];
  }
  return bytes;
}

static void variables_and_files(void) {
  uint32_t number = mlp_find("head.weight");
  size_t bytes = mlp_variables[number].elements * mlp_variables[number].size;
  say("get", mlp_get(&handle, number, read_back, bytes));
  say("get of no variable", mlp_get(&handle, MLP_VARIABLES, read_back, bytes));
  say("set of another size", mlp_set(&handle, number, read_back, bytes - 1));
  printf("find: %s\n", mlp_find("tail") == MLP_VARIABLES && mlp_find(NULL) == MLP_VARIABLES ? "none" : "some");
  limit = 1000;
  say("save that ends", mlp_save(&handle, write, NULL));
  length = 0, limit = sizeof file;
  say("save", mlp_save(&handle, write, NULL));
  say("step", mlp_step(&handle, x, labels, NULL, &loss));
  limit = length - 1;
  say("load of a short file", mlp_load(&handle, read, file));
  limit = length;
  for (size_t at = 0; at < length; at++) read_back[at] = file[at];
  read_back[20] ^= 1;
  say("load of another file", mlp_load(&handle, read, read_back));
  say("load", mlp_load(&handle, read, file));
}

int main(void) {
  mlp_memory memory = {
      .version = MLP_VERSION,
      .variables = variables,
      .variables_bytes = MLP_VARIABLES_BYTES,
      .arena = arena,
      .arena_bytes = MLP_ARENA_BYTES,
  };
  before = sum();
  say("step before init", mlp_step(&handle, x, labels, NULL, &loss));
  say("init of null", mlp_init(&handle, NULL));
  memory.version++;
  say("init of another version", mlp_init(&handle, &memory));
  memory.version--;
  memory.arena = arena + 4;
  say("init beside", mlp_init(&handle, &memory));
  memory.arena = arena;
  memory.variables_bytes--;
  say("init of less", mlp_init(&handle, &memory));
  memory.variables_bytes++;
  memory.arena = variables;
  say("init of one for both", mlp_init(&handle, &memory));
  memory.arena = arena;
  say("init", mlp_init(&handle, &memory));
  for (int at = 0; at < 256; at++) x[at] = (float)(at % 7) / 8;
  say("step", mlp_step(&handle, x, labels, NULL, NULL));
  x[3] = __builtin_nanf("");
  say("step of NaN", mlp_step(&handle, x, labels, NULL, &loss));
  x[3] = 0;
  say("predict to null", mlp_predict(&handle, x, NULL));
  say("predict", mlp_predict(&handle, x, output));
  variables_and_files();
  return 0;
}
