/* Provokes every error code of a bundle named m, on variables that must stay as they are, and says what came. */
#include <stdio.h>
#include <string.h>

#include "m.h"

static _Alignas(M_ALIGNMENT) unsigned char variables[M_VARIABLES_BYTES + 1], before[M_VARIABLES_BYTES];
static _Alignas(M_ALIGNMENT) unsigned char arena[M_ARENA_BYTES];
static float x[8], scores[8], loss, bias[8];
static int64_t labels[8];
static unsigned char file[1 << 16];
static size_t file_bytes;
static m_handle handle;

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
  const char *changed = memcmp(before, variables, M_VARIABLES_BYTES) ? " CHANGED" : "";
  printf("%s: %u %s%s\n", what, (unsigned)code, m_error(code), changed);
}

int main(void) {
  m_memory good = {M_VERSION, variables, M_VARIABLES_BYTES, arena, sizeof arena, NULL, NULL}, memory = good;
  m_handle empty = {0};
  uint32_t made = m_init(&handle, &good);
  memcpy(before, variables, M_VARIABLES_BYTES);
  provoked("OK", made);

  provoked("NULL_POINTER", m_init(&handle, NULL));
  provoked("NULL_POINTER", m_step(&handle, NULL, labels, NULL, &loss));
  memory.version++;
  provoked("OTHER_VERSION", m_init(&empty, &memory));
  provoked("NOT_INITIALISED", m_predict(&empty, x, scores));
  memory = good, memory.variables = variables + 1;
  provoked("MISALIGNED", m_init(&empty, &memory));
  memory = good, memory.arena_bytes--;
  provoked("TOO_SMALL", m_init(&empty, &memory));
  x[0] = __builtin_nanf("");
  provoked("NOT_FINITE", m_step(&handle, x, labels, NULL, &loss));
  x[0] = __builtin_inff();
  provoked("NOT_FINITE", m_step(&handle, x, labels, NULL, &loss));
  x[0] = 1;
  provoked("NO_SUCH_VARIABLE", m_get(&handle, m_find("none"), bias, sizeof bias));
  provoked("WRONG_SIZE", m_get(&handle, 0, bias, 3));
  provoked("WRITE_FAILED", m_save(&handle, write_nothing, NULL));
  provoked("OK", m_save(&handle, write, NULL));
  file_bytes--;
  provoked("READ_FAILED", m_load(&handle, read, NULL));
  file_bytes++, file[20] ^= 1;
  provoked("OTHER_WEIGHTS", m_load(&handle, read, NULL));
  file[20] ^= 1;
  provoked("OK", m_load(&handle, read, NULL));
  printf("9999: %s\n", m_error(9999));
  return 0;
}
