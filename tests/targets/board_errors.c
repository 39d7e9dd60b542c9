/* Provokes every error code of a bundle named net, on variables that must stay as they are, and says what came. */
#include <stdio.h>
#include <string.h>

#include "net.h"

static _Alignas(NET_ALIGNMENT) unsigned char variables[NET_VARIABLES_BYTES + 1], before[NET_VARIABLES_BYTES];
static _Alignas(NET_ALIGNMENT) unsigned char arena[NET_ARENA_BYTES];
static float x[8], scores[8], loss, bias[8];
static int64_t labels[8];
static unsigned char file[1 << 16];
static size_t file_bytes;
static net_handle handle;

static size_t write(void *own, const void *data, size_t bytes) {
  (void)own, memcpy(file + file_bytes, data, bytes), file_bytes += bytes;
  return bytes;
}
static size_t write_nothing(void *own, const void *data, size_t bytes) { return (void)own, (void)data, (void)bytes, 0; }
static size_t read(void *own, size_t offset, void *data, size_t bytes) {
  (void)own;
  if (offset + bytes > file_bytes) return 0;
  memcpy(data, file + offset, bytes);
  return bytes;
}

static void provoked(const char *what, uint32_t code) {
  const char *changed = memcmp(before, variables, NET_VARIABLES_BYTES) ? " CHANGED" : "";
  printf("%s: %u %s%s\n", what, (unsigned)code, net_error(code), changed);
}

int main(void) {
  net_memory good = {NET_VERSION, variables, NET_VARIABLES_BYTES, arena, sizeof arena, NULL, NULL}, memory = good;
  net_handle empty = {0};
  uint32_t made = net_init(&handle, &good);
  memcpy(before, variables, NET_VARIABLES_BYTES);
  provoked("OK", made);

  provoked("NULL_POINTER", net_init(&handle, NULL));
  provoked("NULL_POINTER", net_step(&handle, NULL, labels, NULL, &loss));
  memory.version++;
  provoked("OTHER_VERSION", net_init(&empty, &memory));
  provoked("NOT_INITIALISED", net_predict(&empty, x, scores));
  memory = good, memory.variables = variables + 1;
  provoked("MISALIGNED", net_init(&empty, &memory));
  memory = good, memory.arena_bytes--;
  provoked("TOO_SMALL", net_init(&empty, &memory));
  memory = good, memory.arena = variables;
  provoked("OVERLAP", net_init(&empty, &memory));
  x[0] = __builtin_nanf("");
  provoked("NOT_FINITE", net_step(&handle, x, labels, NULL, &loss));
  x[0] = __builtin_inff();
  provoked("NOT_FINITE", net_step(&handle, x, labels, NULL, &loss));
  x[0] = 1;
  provoked("NO_SUCH_VARIABLE", net_get(&handle, net_find("none"), bias, sizeof bias));
  provoked("WRONG_SIZE", net_get(&handle, 0, bias, 3));
  provoked("WRITE_FAILED", net_save(&handle, write_nothing, NULL));
  provoked("OK", net_save(&handle, write, NULL));
  file_bytes--;
  provoked("READ_FAILED", net_load(&handle, read, NULL));
  file_bytes++, file[20] ^= 1;
  provoked("OTHER_WEIGHTS", net_load(&handle, read, NULL));
  file[20] ^= 1;
  provoked("OK", net_load(&handle, read, NULL));
  printf("9999: %s\n", net_error(9999));
  return 0;
}
