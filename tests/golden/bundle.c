/* Runs tiny on made-up batches and prints what comes out, as bits; expected.txt holds them. */
#include <stdio.h>
#include <stdlib.h>

#include "tiny.h"

/* Memory is the caller's: here it is static. */
static unsigned char variables[72 + TINY_ALIGNMENT];
static unsigned char arena[TINY_ARENA_BYTES + TINY_ALIGNMENT];
static float step_x_data[6];
static float step_target_data[4];
static float step_loss_data[1];
static float predict_x_data[6];
static float predict_output_data[4];

/* Batches: the upper bits of a congruential generator. */
static uint32_t last;

static uint32_t word(void) {
  last = last * 1664525u + 1013904223u;
  return last;
}

static void fill_f32(float *data, size_t count) {
  for (size_t at = 0; at < count; at++) data[at] = (float)(((int)(word() >> 24) - 128) / 64.0f);
}

/* CRC-32, begun with ~0 and inverted at the end. */
static uint32_t checksum(uint32_t state, const void *data, size_t bytes) {
  for (size_t at = 0; at < bytes; at++) {
    state ^= ((const unsigned char *)data)[at];
    for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (0xedb88320u & -(state & 1));
  }
  return state;
}

/* What NAME_save hands its bytes to: they are only counted in. */
static size_t add(void *state, const void *data, size_t bytes) {
  *(uint32_t *)state = checksum(*(uint32_t *)state, data, bytes);
  return bytes;
}

static void bits(const void *number, size_t bytes) {
  uint64_t all = 0;
  for (size_t at = 0; at < bytes; at++) all |= (uint64_t)((const unsigned char *)number)[at] << (8 * at);
  if (bytes > 4) printf("%08x", (unsigned)(all >> 32));
  printf("%0*x", (int)(bytes > 4 ? 8 : 2 * bytes), (unsigned)all);
}

static void check(const char *what, uint32_t code) {
  if (code == TINY_OK) return;
  printf("%s: %s\n", what, tiny_error(code));
  exit(1);
}

/* The first byte that lies at a multiple of the alignment. */
static void *aligned(unsigned char *memory) {
  return memory + (TINY_ALIGNMENT - (uintptr_t)memory % TINY_ALIGNMENT) % TINY_ALIGNMENT;
}

int main(void) {
  tiny_handle handle;
  tiny_memory memory = {
      .version = TINY_VERSION,
      .variables = aligned(variables),
      .variables_bytes = TINY_VARIABLES_BYTES,
      .arena = aligned(arena),
      .arena_bytes = TINY_ARENA_BYTES,
  };
  uint32_t state;
  check("init", tiny_init(&handle, &memory));
  for (int number = 1; number <= 5; number++) {
    fill_f32(step_x_data, 6);
    fill_f32(step_target_data, 4);
    check("step", tiny_step(&handle, step_x_data, step_target_data, NULL, step_loss_data));
    state = ~0u;
    check("save", tiny_save(&handle, add, &state));
    printf("step %d: loss ", number);
    bits(step_loss_data, sizeof step_loss_data);
    printf(", variables %08x\n", (unsigned)~state);
  }
  fill_f32(predict_x_data, 6);
  check("predict", tiny_predict(&handle, predict_x_data, predict_output_data));
  printf("predict: %s %08x\n", "output", (unsigned)~checksum(~0u, predict_output_data, sizeof predict_output_data));
  return 0;
}
