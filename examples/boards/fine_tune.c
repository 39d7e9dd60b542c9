/* Trains a digits model's head on a microcontroller, and says how many digits it reads before and after. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "digits.h"
#include "examples.h"

#define PIXELS 64
#define CLASSES 10
#define EPOCHS 6

static _Alignas(DIGITS_ALIGNMENT) unsigned char variables[DIGITS_VARIABLES_BYTES];
static _Alignas(DIGITS_ALIGNMENT) unsigned char arena[DIGITS_ARENA_BYTES];
static float images[BATCH * PIXELS], scores[BATCH * CLASSES], loss;
static int64_t labels[BATCH];
static digits_handle handle;

extern unsigned char stack_limit[], stack_top[];

static void check(uint32_t code) {
  if (code == DIGITS_OK) return;
  printf("%s\n", digits_error(code));
  exit(1);
}

/* Unused stack is painted before a call; what is not painted behind it was used. */
static unsigned char *stack_pointer(void) {
  unsigned char *at;
  __asm__ volatile("mov %0, sp" : "=r"(at));
  return at;
}

static __attribute__((noinline)) unsigned used(int trains) {
  unsigned char *top = stack_pointer();
  for (volatile unsigned char *at = stack_limit; at < top; at++) *at = 0xa5;
  check(trains ? digits_step(&handle, images, labels, NULL, &loss) : digits_predict(&handle, images, scores));
  volatile unsigned char *at = stack_limit;
  while (at < top && *at == 0xa5) at++;
  return (unsigned)(top - (unsigned char *)at);
}

static void take(const unsigned char (*from)[PIXELS], const unsigned char *known, int first) {
  for (int n = 0; n < BATCH; n++) {
    labels[n] = known[first + n];
    for (int pixel = 0; pixel < PIXELS; pixel++) images[n * PIXELS + pixel] = from[first + n][pixel] / 16.0f;
  }
}

static void test(const char *when) {
  int right = 0;
  for (int first = 0; first + BATCH <= TESTED; first += BATCH) {
    take(tested_images, tested_labels, first);
    check(digits_predict(&handle, images, scores));
    for (int n = 0; n < BATCH; n++) {
      int best = 0;
      for (int c = 1; c < CLASSES; c++)
        if (scores[n * CLASSES + c] > scores[n * CLASSES + best]) best = c;
      right += best == labels[n];
    }
  }
  printf("%s: %d of %d digits\n", when, right, TESTED);
}

int main(void) {
  digits_memory memory = {
      .version = DIGITS_VERSION,
      .variables = variables,
      .variables_bytes = sizeof variables,
      .arena = arena,
      .arena_bytes = sizeof arena,
  };
  check(digits_init(&handle, &memory));
  take(learnt_images, learnt_labels, 0);
  printf("stack of a prediction: %u bytes, said: at most %u\n", used(0), PREDICT_STACK);
  printf("stack of a step: %u bytes, said: at most %u\n", used(1), STEP_STACK);
  check(digits_reset(&handle));
  test("before");
  for (int epoch = 0; epoch < EPOCHS; epoch++)
    for (int first = 0; first + BATCH <= LEARNT; first += BATCH) {
      take(learnt_images, learnt_labels, first);
      check(digits_step(&handle, images, labels, NULL, &loss));
    }
  test("after");
  union { float number; uint32_t bits; } last = {loss};
  printf("the last batch's loss, as bits: %08x\n", (unsigned)last.bits);
  return 0;
}
