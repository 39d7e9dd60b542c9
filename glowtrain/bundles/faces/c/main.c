/* Runs network on made-up batches and prints what comes out, as bits; expected.txt holds them. */
#include <stdio.h>
#include <stdlib.h>

#include "network.h"

/* Memory is the caller's: here it is static. */
static unsigned char variables[{{room}} + NETWORK_ALIGNMENT];
static unsigned char arena[NETWORK_ARENA_BYTES + NETWORK_ALIGNMENT];
/*{{buffers}}*/

/* Batches: the upper bits of a congruential generator. */
static uint32_t last{{seeded}};

static uint32_t word(void) {
  last = last * 1664525u + 1013904223u;
  return last;
}

/* {{#halves}} */
static uint32_t float_bits(float number) {
  union { float number; uint32_t bits; } both = {number};
  return both.bits;
}

static inline uint16_t half(float number) { /* of numbers that are halves */
  uint32_t bits = float_bits(number);
  if (!(bits & 0x7fffffff)) return 0;
  return (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 13 & 0x3fc00) - ((127 - 15) << 10)) | (bits >> 13 & 0x3ff));
}

/* {{/halves}} */
/*{{fills}}*/
/* CRC-32, begun with ~0 and inverted at the end. */
static uint32_t checksum(uint32_t state, const void *data, size_t bytes) {
  for (size_t at = 0; at < bytes; at++) {
    state ^= ((const unsigned char *)data)[at];
    for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (0xedb88320u & -(state & 1));
  }
  return state;
}

/* {{#trains}} */
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

/* {{/trains}} */
/* {{#largest}} */
static void print_variables(network_handle *handle) {
  static unsigned char data[{{largest}}];
  for (uint32_t number = 0; number < NETWORK_VARIABLES; number++) {
    size_t bytes = network_variables[number].elements * network_variables[number].size;
    network_get(handle, number, data, bytes);
    printf("variable %u: %08x\n", (unsigned)number, (unsigned)~checksum(~0u, data, bytes));
  }
}

/* {{/largest}} */
static void check(const char *what, uint32_t code) {
  if (code == NETWORK_OK) return;
  printf("%s: %s\n", what, network_error(code));
  exit(1);
}

/* The first byte that lies at a multiple of the alignment. */
static void *aligned(unsigned char *memory) {
  return memory + (NETWORK_ALIGNMENT - (uintptr_t)memory % NETWORK_ALIGNMENT) % NETWORK_ALIGNMENT;
}

int main(void) {
  network_handle handle;
  network_memory memory = {
      .version = NETWORK_VERSION,
      .variables = aligned(variables),
      .variables_bytes = NETWORK_VARIABLES_BYTES,
      .arena = aligned(arena),
      .arena_bytes = NETWORK_ARENA_BYTES,
  };
  /* {{#trains}} */
  uint32_t state;
  /* {{/trains}} */
  check("init", network_init(&handle, &memory));
  /* {{#trains}} */
  for (int number = 1; number <= {{steps}}; number++) {
    /*{{step}}*/
    state = ~0u;
    check("save", network_save(&handle, add, &state));
    printf("step %d: loss ", number);
    bits({{loss}}, sizeof {{loss}});
    printf(", variables %08x\n", (unsigned)~state);
    /* {{#largest}} */
    print_variables(&handle);
    /* {{/largest}} */
  }
  /* {{/trains}} */
  /*{{calls}}*/
  return 0;
}
