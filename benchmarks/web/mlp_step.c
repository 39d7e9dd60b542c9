/* What a bundle is measured against: a training step of the same mlp by hand, for WebAssembly with vectors.
 *
 * 784-512-512-10 with ReLU, softmax cross-entropy, batch 64, SGD with momentum. Products are computed in tiles of 4 rows
 * by 8 columns that stay in registers; those with a transposed weight transpose it first, and the update of a weight
 * follows its gradient's tile at once.
 */
#include <stdint.h>
#include <wasm_simd128.h>

enum { BATCH = 64, IN = 784, HIDDEN = 512, OUT = 10, PADDED = 16 };

typedef struct {
  float *weight, *bias, *weight_momentum, *bias_momentum;
  int in, out; /* out: a multiple of 8 */
} layer;

static float w1[IN * HIDDEN], w2[HIDDEN * HIDDEN], w3[HIDDEN * PADDED];
static float m1[IN * HIDDEN], m2[HIDDEN * HIDDEN], m3[HIDDEN * PADDED];
static float b1[HIDDEN], b2[HIDDEN], b3[PADDED], c1[HIDDEN], c2[HIDDEN], c3[PADDED];
static float h1[BATCH * HIDDEN], h2[BATCH * HIDDEN], scores[BATCH * PADDED];
static float d1[BATCH * HIDDEN], d2[BATCH * HIDDEN], d3[BATCH * PADDED];
static float turned[HIDDEN * HIDDEN];
float images[BATCH * IN];
int32_t labels[BATCH];

static const layer layers[] = {
    {w1, b1, m1, c1, IN, HIDDEN}, {w2, b2, m2, c2, HIDDEN, HIDDEN}, {w3, b3, m3, c3, HIDDEN, PADDED}};

#define TILE(each) \
  each(0, 0) each(0, 1) each(1, 0) each(1, 1) each(2, 0) each(2, 1) each(3, 0) each(3, 1)
#define ZERO(r, v) v128_t t##r##v = wasm_f32x4_splat(0);
#define ADD(r, v) t##r##v = wasm_f32x4_add(t##r##v, wasm_f32x4_mul(a##r, b##v));

/* The tile of a product: rows of a `along` apart by `across`, rows of b `n` apart. */
#define PRODUCT(k, a, along, across, b, n)                          \
  TILE(ZERO)                                                        \
  for (int at = 0; at < (k); at++) {                                \
    v128_t a0 = wasm_v128_load32_splat((a) + at * (along));         \
    v128_t a1 = wasm_v128_load32_splat((a) + at * (along) + (across)); \
    v128_t a2 = wasm_v128_load32_splat((a) + at * (along) + 2 * (across)); \
    v128_t a3 = wasm_v128_load32_splat((a) + at * (along) + 3 * (across)); \
    v128_t b0 = wasm_v128_load((b) + at * (n)), b1 = wasm_v128_load((b) + at * (n) + 4); \
    TILE(ADD)                                                       \
  }

/* y = x w + b, and ReLU. */
static void forward(float *y, const float *x, const layer *l, int relu) {
  const int n = l->out, k = l->in;
  for (int column = 0; column < n; column += 8)
    for (int row = 0; row < BATCH; row += 4) {
      const float *a = x + row * k, *b = l->weight + column;
      PRODUCT(k, a, 1, k, b, n)
      const v128_t s0 = wasm_v128_load(l->bias + column), s1 = wasm_v128_load(l->bias + column + 4);
      const v128_t least = wasm_f32x4_splat(relu ? 0 : -1e30f);
#define KEEP(r, v) wasm_v128_store(y + (row + r) * n + column + 4 * v, wasm_f32x4_pmax(least, wasm_f32x4_add(t##r##v, s##v)));
      TILE(KEEP)
    }
}

/* dx = dy transposed w, where x is positive. */
static void backward(float *dx, const float *dy, const float *x, const layer *l) {
  const int k = l->out, n = l->in;
  for (int row = 0; row < n; row++)
    for (int column = 0; column < k; column++) turned[column * n + row] = l->weight[row * k + column];
  for (int column = 0; column < n; column += 8)
    for (int row = 0; row < BATCH; row += 4) {
      const float *a = dy + row * k, *b = turned + column;
      PRODUCT(k, a, 1, k, b, n)
#define MASK(r, v) { \
    const int to = (row + r) * n + column + 4 * v; \
    wasm_v128_store(dx + to, wasm_v128_and(t##r##v, wasm_f32x4_gt(wasm_v128_load(x + to), wasm_f32x4_splat(0)))); }
      TILE(MASK)
    }
}

static v128_t moved(float *weight, float *momentum, v128_t gradient, v128_t rate, v128_t keep) {
  v128_t fresh = wasm_f32x4_add(wasm_f32x4_mul(keep, wasm_v128_load(momentum)), gradient);
  wasm_v128_store(momentum, fresh);
  return wasm_f32x4_sub(wasm_v128_load(weight), wasm_f32x4_mul(rate, fresh));
}

/* w -= rate * (m = keep * m + x' dy), and the bias likewise. */
static void update(const float *x, const float *dy, const layer *l, float rate_, float keep_) {
  const int m = l->in, n = l->out;
  const v128_t rate = wasm_f32x4_splat(rate_), keep = wasm_f32x4_splat(keep_);
  for (int column = 0; column < n; column += 8)
    for (int row = 0; row < m; row += 4) {
      const float *a = x + row, *b = dy + column;
      PRODUCT(BATCH, a, m, 1, b, n)
#define MOVE(r, v) { \
    float *w = l->weight + (row + r) * n + column + 4 * v, *o = l->weight_momentum + (row + r) * n + column + 4 * v; \
    wasm_v128_store(w, moved(w, o, t##r##v, rate, keep)); }
      TILE(MOVE)
    }
  for (int column = 0; column < n; column += 4) {
    v128_t sum = wasm_f32x4_splat(0);
    for (int row = 0; row < BATCH; row++) sum = wasm_f32x4_add(sum, wasm_v128_load(dy + row * n + column));
    wasm_v128_store(l->bias + column, moved(l->bias + column, l->bias_momentum + column, sum, rate, keep));
  }
}

/* e to a power, to about 1e-7: 2^n times a polynomial in the rest. */
static float power(float x) {
  if (x < -87) return 0;
  const float n = __builtin_rintf(x * 1.44269504f);
  const float r = x - n * 0.69314718f;
  const float p = 1 + r * (1 + r * (0.5f + r * (0.16666667f + r * (0.041666667f + r * 0.0083333333f))));
  union { int32_t bits; float number; } two = {((int32_t)n + 127) << 23};
  return p * two.number;
}

static float logarithm(float x) { /* of sums of powers: from 1 to 10 */
  union { float number; int32_t bits; } parts = {x};
  float y = (parts.bits - 0x3f800000) * 8.2629582e-8f;
  for (int turn = 0; turn < 4; turn++) y += x * power(-y) - 1;
  return y;
}

static float loss_of(void) {
  float loss = 0;
  for (int row = 0; row < BATCH; row++) {
    const float *s = scores + row * PADDED;
    float *d = d3 + row * PADDED, most = s[0], sum = 0;
    for (int at = 1; at < OUT; at++) most = s[at] > most ? s[at] : most;
    for (int at = 0; at < OUT; at++) sum += d[at] = power(s[at] - most);
    for (int at = 0; at < OUT; at++) d[at] = (d[at] / sum - (at == labels[row])) / BATCH;
    for (int at = OUT; at < PADDED; at++) d[at] = 0;
    loss += logarithm(sum) - (s[labels[row]] - most);
  }
  return loss / BATCH;
}

/* Weights, images and labels from a congruential generator. */
__attribute__((export_name("start"))) void start(void) {
  uint32_t last = 1;
  for (int at = 0; at < 3; at++)
    for (int each = 0; each < layers[at].in * layers[at].out; each++) {
      last = last * 1664525u + 1013904223u;
      const int real = at < 2 || each % PADDED < OUT;
      layers[at].weight[each] = real ? ((int)(last >> 16) - 32768) * 1.5e-6f : 0;
    }
  for (int at = 0; at < BATCH * IN; at++) images[at] = (last = last * 1664525u + 1013904223u) >> 24 & 1;
  for (int at = 0; at < BATCH; at++) labels[at] = at % OUT;
}

__attribute__((export_name("step"))) float step(float rate, float keep) {
  forward(h1, images, &layers[0], 1);
  forward(h2, h1, &layers[1], 1);
  forward(scores, h2, &layers[2], 0);
  const float loss = loss_of();
  backward(d2, d3, h2, &layers[2]);
  backward(d1, d2, h1, &layers[1]);
  update(h2, d3, &layers[2], rate, keep);
  update(h1, d2, &layers[1], rate, keep);
  update(images, d1, &layers[0], rate, keep);
  return loss;
}
