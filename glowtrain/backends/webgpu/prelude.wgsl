// Functions that kernels call, each with what it calls; a module has those that it needs. One blank line ends each.
// u64 and i64 are two's-complement numbers of two u32: x is the lower half, y the upper one.

// The same number, about which a compiler knows nothing: it must not simplify (x + magic) - magic. The first word of
// constants is 0. (Drivers compile shaders anew for values of uniforms, so those are known.)
fn f32_opaque(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) ^ constants[0]);
}

// A float from its bits, also those of infinities and NaN, which a constant expression must not have.
fn f32_of_bits(bits: u32) -> f32 {
  return bitcast<f32>(bits ^ constants[0]);
}

// By bits: an implementation may assume that no float is NaN.
fn f32_isnan(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn f32_isinf(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}

fn f32_copysign(magnitude: f32, sign: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(magnitude) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}

fn f32_min(a: f32, b: f32) -> f32 {
  if (f32_isnan(a)) { return a; }
  if (f32_isnan(b)) { return b; }
  return select(b, a, a < b);
}

fn f32_max(a: f32, b: f32) -> f32 {
  if (f32_isnan(a)) { return a; }
  if (f32_isnan(b)) { return b; }
  return select(b, a, a > b);
}

// The biased exponent and the significand of 24 bits of a positive finite number: significand * 2^(exponent - 150).
fn f32_split(bits: u32) -> vec2<i32> {
  let exponent = i32(bits >> 23u);
  let fraction = bits & 0x7fffffu;
  if (exponent != 0) { return vec2<i32>(exponent, i32(fraction | 0x800000u)); }
  let up = countLeadingZeros(fraction) - 8u;
  return vec2<i32>(1 - i32(up), i32(fraction << up));
}

// a * b + c, rounded once, in integers: WGSL's fma may round the product. Zeros, infinities and NaN need no care.
fn f32_fma(a: f32, b: f32, c: f32) -> f32 {
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  let z = bitcast<u32>(c) & 0x7fffffffu;
  let largest = max(x, max(y, z));
  if (min(x, min(y, z)) == 0u || largest >= 0x7f800000u) { return a * b + c; }
  let p = f32_split(x);
  let q = f32_split(y);
  let r = f32_split(z);
  let product = u32_product(u32(p.y), u32(q.y));
  let up = countLeadingZeros(product.y) - 1u;
  var large = u64_shl(product, up);
  var small = u64_shl(vec2<u32>(u32(r.y), 0u), 39u);
  var exponent = p.x + q.x - 300 - i32(up);
  let distance = exponent - (r.x - 189);
  var sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  let differs = (sign ^ bitcast<u32>(c)) >= 0x80000000u;
  if (distance < 0 || (distance == 0 && u64_lt(large, small))) {
    let other = large;
    large = small;
    small = other;
    exponent = r.x - 189;
    sign = bitcast<u32>(c) & 0x80000000u;
  }
  small = u64_shr_sticky(small, u32(abs(distance)));
  var total = select(u64_add(large, small), u64_sub(large, small), differs);
  if (all(total == vec2<u32>(0u))) { return f32_of_bits(0u); }
  let zeros = u64_zeros(total);
  return f32_rounded(sign, exponent - i32(zeros) + 190, u64_shl(total, zeros));
}

// A float from its sign, biased exponent and 64 bits of significand, the first of them set: to nearest, ties to even.
fn f32_rounded(sign: u32, exponent: i32, significand: vec2<u32>) -> f32 {
  if (exponent >= 255) { return f32_of_bits(sign | 0x7f800000u); }
  var digits = significand;
  if (exponent <= 0) { digits = u64_shr_sticky(significand, u32(1 - exponent)); }
  let kept = digits.y >> 8u;
  let rest = digits.y & 255u;
  let up = rest > 128u || (rest == 128u && (digits.x != 0u || (kept & 1u) == 1u));
  let base = select(kept, kept + (u32(exponent - 1) << 23u), exponent > 0);
  return f32_of_bits(sign | (base + select(0u, 1u, up)));
}

// The exact remainder with the sign of x: long division, a bit in each trip.
fn f32_fmod(x: f32, y: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  if (a >= 0x7f800000u || b == 0u || b > 0x7f800000u) { return f32_of_bits(0x7fc00000u); }
  if (a < b) { return x; }
  let whole = f32_split(a);
  let divisor = f32_split(b);
  var rest = u32(whole.y);
  let by = u32(divisor.y);
  for (var exponent = whole.x; exponent > divisor.x; exponent--) {
    if (rest >= by) { rest -= by; }
    rest = rest << 1u;
  }
  if (rest >= by) { rest -= by; }
  if (rest == 0u) { return f32_of_bits(sign); }
  let zeros = countLeadingZeros(rest);
  return f32_rounded(sign, divisor.x + 8 - i32(zeros), vec2<u32>(0u, rest << zeros));
}

// The remainder with the sign of y.
fn f32_mod(x: f32, y: f32) -> f32 {
  let rest = f32_fmod(x, y);
  if (rest == 0.0) { return f32_copysign(0.0, y); }
  return select(rest, rest + y, (bitcast<u32>(rest) ^ bitcast<u32>(y)) >= 0x80000000u);
}

fn f32_to_bool(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) != 0u;
}

// Without its fraction; what does not fit becomes the least number.
fn f32_to_i32(x: f32) -> i32 {
  if (!(x >= -2147483648.0 && x < 2147483648.0) || f32_isnan(x)) { return i32(-2147483647 - 1); }
  return i32(x);
}

fn f32_to_i64(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  if (bits >= 0x5f000000u) { return vec2<u32>(0u, 0x80000000u); }
  let whole = f32_magnitude(bits);
  return select(whole, i64_neg(whole), bitcast<u32>(x) >= 0x80000000u);
}

fn f32_to_u64(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  let negative = bitcast<u32>(x) >= 0x80000000u;
  if (negative && bits < 0x5f000000u) { return i64_neg(f32_magnitude(bits)); }
  if (bits < 0x5f800000u && !negative) { return f32_magnitude(bits); }
  return select(vec2<u32>(0u), vec2<u32>(0u, 0x80000000u), negative || bits > 0x7f800000u);
}

// The whole part of a number below 2^64, from its bits.
fn f32_magnitude(bits: u32) -> vec2<u32> {
  let exponent = i32(bits >> 23u) - 150;
  let significand = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  if (exponent < -23) { return vec2<u32>(0u); }
  if (exponent < 0) { return vec2<u32>(significand.x >> u32(-exponent), 0u); }
  return u64_shl(significand, u32(exponent));
}

// The nearest bf16, ties to even.
fn bf16_round(x: f32) -> f32 {
  if (f32_isnan(x)) { return x; }
  let bits = bitcast<u32>(x);
  return f32_of_bits((bits + 0x7fffu + ((bits >> 16u) & 1u)) & 0xffff0000u);
}

fn bf16_of_bits(bits: u32) -> f32 {
  return f32_of_bits(bits << 16u);
}

// A NaN of f32 keeps a bit that makes it one.
fn bf16_bits(x: f32) -> u32 {
  return (bitcast<u32>(x) >> 16u) | select(0u, 0x40u, f32_isnan(x));
}

fn f16_round(x: f32) -> f32 {
  return f16_of_bits(f16_bits(x));
}

fn f16_of_bits(bits: u32) -> f32 {
  let sign = (bits & 0x8000u) << 16u;
  let rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) { return f32_of_bits(sign | 0x7f800000u | ((rest & 0x3ffu) << 13u)); }
  if (rest >= 0x400u) { return f32_of_bits(sign | ((rest << 13u) + 0x38000000u)); }
  return f32_copysign(f32(rest) * 5.9604645e-8, f32_of_bits(sign));
}

// The nearest f16, ties to even.
fn f16_bits(x: f32) -> u32 {
  let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  if (bits > 0x7f800000u) { return sign | 0x7e00u; }
  if (bits >= 0x47800000u) { return sign | 0x7c00u; }
  if (bits >= 0x38800000u) {
    let moved = bits - 0x38000000u;
    return sign | ((moved + 0xfffu + ((moved >> 13u) & 1u)) >> 13u);
  }
  if (bits < 0x33000000u) { return sign; }
  let significand = (bits & 0x7fffffu) | 0x800000u;
  let down = 126u - (bits >> 23u);
  let kept = significand >> down;
  let rest = significand & ((1u << down) - 1u);
  let middle = 1u << (down - 1u);
  return sign | (kept + select(0u, 1u, rest > middle || (rest == middle && (kept & 1u) == 1u)));
}

// Towards zero; 0 where b is 0; the least number over -1 wraps.
fn i32_div(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return -a; }
  return a / b;
}

fn i32_fmod(a: i32, b: i32) -> i32 {
  if (b == 0 || b == -1) { return 0; }
  return a % b;
}

// The remainder with the sign of b.
fn i32_mod(a: i32, b: i32) -> i32 {
  let rest = i32_fmod(a, b);
  return select(rest, rest + b, rest != 0 && (rest ^ b) < 0);
}

fn u32_div(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a / b;
}

fn u32_mod(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a % b;
}

// Counts outside of the size give 0, or -1 where a negative number is shifted right.
fn i32_shl(a: i32, count: u32) -> i32 {
  return select(0, a << (count & 31u), count < 32u);
}

fn i32_shr(a: i32, count: u32) -> i32 {
  return a >> min(count, 31u);
}

fn u32_shl(a: u32, count: u32) -> u32 {
  return select(0u, a << (count & 31u), count < 32u);
}

fn u32_shr(a: u32, count: u32) -> u32 {
  return select(0u, a >> (count & 31u), count < 32u);
}

// By repeated squaring, wrapping; a negative exponent gives the true power cut to an integer.
fn i32_pow(base: i32, exponent: i32) -> i32 {
  if (exponent < 0) {
    if (base == 1 || base == -1) { return select(base, 1, (exponent & 1) == 0); }
    return 0;
  }
  return i32(u32_pow(u32(base), u32(exponent)));
}

fn u32_pow(base: u32, exponent: u32) -> u32 {
  var result = 1u;
  var factor = base;
  for (var rest = exponent; rest != 0u; rest = rest >> 1u) {
    if ((rest & 1u) == 1u) { result = result * factor; }
    factor = factor * factor;
  }
  return result;
}

// The product of two numbers of 32 bits.
fn u32_product(a: u32, b: u32) -> vec2<u32> {
  return vec2<u32>(a * b, u32_mulhi(a, b));
}

fn u32_mulhi(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}

fn u64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn u64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn u64_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let product = u32_product(a.x, b.x);
  return vec2<u32>(product.x, product.y + a.x * b.y + a.y * b.x);
}

fn u64_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn u64_zeros(a: vec2<u32>) -> u32 {
  return select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
}

fn u64_shl(a: vec2<u32>, count: u32) -> vec2<u32> {
  if (count == 0u) { return a; }
  if (count >= 64u) { return vec2<u32>(0u); }
  if (count >= 32u) { return vec2<u32>(0u, a.x << (count - 32u)); }
  return vec2<u32>(a.x << count, (a.y << count) | (a.x >> (32u - count)));
}

fn u64_shr(a: vec2<u32>, count: u32) -> vec2<u32> {
  if (count == 0u) { return a; }
  if (count >= 64u) { return vec2<u32>(0u); }
  if (count >= 32u) { return vec2<u32>(a.y >> (count - 32u), 0u); }
  return vec2<u32>((a.x >> count) | (a.y << (32u - count)), a.y >> count);
}

// Shifted right; the last bit is set where a bit was lost.
fn u64_shr_sticky(a: vec2<u32>, count: u32) -> vec2<u32> {
  let moved = u64_shr(a, count);
  let lost = any(u64_shl(moved, count) != a);
  return vec2<u32>(moved.x | select(0u, 1u, lost), moved.y);
}

fn u64_count(count: vec2<u32>) -> u32 {
  return select(count.x, 64u, count.y != 0u || count.x > 63u);
}

fn u64_shift_left(a: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
  return u64_shl(a, u64_count(count));
}

fn u64_shift_right(a: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
  return u64_shr(a, u64_count(count));
}

fn i64_shift_right(a: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
  let places = min(u64_count(count), 63u);
  let moved = u64_shr(a, places);
  if (a.y < 0x80000000u || places == 0u) { return moved; }
  return moved | u64_shl(vec2<u32>(0xffffffffu), 64u - places);
}

// Quotient (x, y) and remainder (z, w): long division, a bit in each trip. Of 0 both are 0.
fn u64_divide(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if (all(b == vec2<u32>(0u))) { return vec4<u32>(0u); }
  if (a.y == 0u && b.y == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var rest = vec2<u32>(0u);
  var quotient = vec2<u32>(0u);
  for (var bit = 0u; bit < 64u; bit++) {
    let out = rest.y >> 31u;
    rest = u64_shl(rest, 1u);
    rest.x |= u64_shr(a, 63u - bit).x & 1u;
    quotient = u64_shl(quotient, 1u);
    if (out == 1u || !u64_lt(rest, b)) {
      rest = u64_sub(rest, b);
      quotient.x |= 1u;
    }
  }
  return vec4<u32>(quotient, rest);
}

fn u64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return u64_divide(a, b).xy;
}

fn u64_mod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return u64_divide(a, b).zw;
}

fn u64_pow(base: vec2<u32>, exponent: vec2<u32>) -> vec2<u32> {
  var result = vec2<u32>(1u, 0u);
  var factor = base;
  for (var rest = exponent; any(rest != vec2<u32>(0u)); rest = u64_shr(rest, 1u)) {
    if ((rest.x & 1u) == 1u) { result = u64_mul(result, factor); }
    factor = u64_mul(factor, factor);
  }
  return result;
}

fn u64_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(b, a, u64_lt(a, b));
}

fn u64_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, u64_lt(a, b));
}

// To nearest, ties to even: 32 bits and whether others are set decide.
fn u64_to_f32(a: vec2<u32>) -> f32 {
  if (all(a == vec2<u32>(0u))) { return 0.0; }
  let zeros = u64_zeros(a);
  return f32_rounded(0u, 190 - i32(zeros), u64_shl(a, zeros));
}

fn i64_to_f32(a: vec2<u32>) -> f32 {
  let size = u64_to_f32(i64_abs(a));
  return select(size, -size, a.y >= 0x80000000u);
}

fn i64_of_i32(a: i32) -> vec2<u32> {
  return vec2<u32>(u32(a), u32(a >> 31u));
}

fn i64_neg(a: vec2<u32>) -> vec2<u32> {
  return u64_sub(vec2<u32>(0u), a);
}

fn i64_abs(a: vec2<u32>) -> vec2<u32> {
  return select(a, i64_neg(a), a.y >= 0x80000000u);
}

fn i64_sign(a: vec2<u32>) -> vec2<u32> {
  if (a.y >= 0x80000000u) { return vec2<u32>(0xffffffffu); }
  return vec2<u32>(select(0u, 1u, any(a != vec2<u32>(0u))), 0u);
}

fn i64_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return u64_lt(vec2<u32>(a.x, a.y ^ 0x80000000u), vec2<u32>(b.x, b.y ^ 0x80000000u));
}

fn i64_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(b, a, i64_lt(a, b));
}

fn i64_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, i64_lt(a, b));
}

fn i64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let quotient = u64_div(i64_abs(a), i64_abs(b));
  return select(quotient, i64_neg(quotient), (a.y ^ b.y) >= 0x80000000u);
}

fn i64_fmod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let rest = u64_mod(i64_abs(a), i64_abs(b));
  return select(rest, i64_neg(rest), a.y >= 0x80000000u);
}

fn i64_mod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let rest = i64_fmod(a, b);
  let moves = any(rest != vec2<u32>(0u)) && (rest.y ^ b.y) >= 0x80000000u;
  return select(rest, u64_add(rest, b), moves);
}

fn i64_pow(base: vec2<u32>, exponent: vec2<u32>) -> vec2<u32> {
  if (exponent.y < 0x80000000u) { return u64_pow(base, exponent); }
  if (all(i64_abs(base) == vec2<u32>(1u, 0u))) { return select(base, vec2<u32>(1u, 0u), (exponent.x & 1u) == 0u); }
  return vec2<u32>(0u);
}

// Whether a subscript lies from 0 to before an extent.
fn i64_within(a: vec2<u32>, extent: u32) -> bool {
  return a.y == 0u && a.x < extent;
}

fn u64_product(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  let low = u32_product(a.x, b.x);
  let left = u32_product(a.x, b.y);
  let right = u32_product(a.y, b.x);
  let middle = u64_add(u64_add(vec2<u32>(low.y, 0u), vec2<u32>(left.x, 0u)), vec2<u32>(right.x, 0u));
  let high = u64_add(u64_product_high(a.y, b.y, left.y), vec2<u32>(right.y, 0u));
  return vec4<u32>(low.x, middle.x, u64_add(high, vec2<u32>(middle.y, 0u)));
}

fn u64_product_high(a: u32, b: u32, carry: u32) -> vec2<u32> {
  return u64_add(u32_product(a, b), vec2<u32>(carry, 0u));
}

// f64: its bits as a u64. Results are those of IEEE 754, rounded to nearest, ties to even.
fn f64_magnitude(a: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x, a.y & 0x7fffffffu);
}

fn f64_sign(a: vec2<u32>) -> u32 {
  return a.y & 0x80000000u;
}

fn f64_isnan(a: vec2<u32>) -> bool {
  return u64_lt(vec2<u32>(0u, 0x7ff00000u), f64_magnitude(a));
}

fn f64_isinf(a: vec2<u32>) -> bool {
  return all(f64_magnitude(a) == vec2<u32>(0u, 0x7ff00000u));
}

fn f64_neg(a: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x, a.y ^ 0x80000000u);
}

fn f64_abs(a: vec2<u32>) -> vec2<u32> {
  return f64_magnitude(a);
}

// Of a finite number that is not 0: a significand whose first bit is set (x, y), and the biased exponent (z).
fn f64_split(a: vec2<u32>) -> vec3<u32> {
  let exponent = (a.y >> 20u) & 0x7ffu;
  let fraction = vec2<u32>(a.x, a.y & 0xfffffu);
  if (exponent != 0u) { return vec3<u32>(u64_shl(fraction | vec2<u32>(0u, 0x100000u), 11u), exponent); }
  let zeros = u64_zeros(fraction);
  return vec3<u32>(u64_shl(fraction, zeros), u32(12 - i32(zeros)));
}

// A number from its sign, biased exponent and a significand, which is not 0.
fn f64_rounded(sign: u32, biased: i32, significand: vec2<u32>) -> vec2<u32> {
  let zeros = u64_zeros(significand);
  let exponent = biased - i32(zeros);
  if (exponent >= 2047) { return vec2<u32>(0u, sign | 0x7ff00000u); }
  var digits = u64_shl(significand, zeros);
  if (exponent <= 0) { digits = u64_shr_sticky(digits, u32(1 - exponent)); }
  var kept = u64_shr(digits, 11u);
  let rest = digits.x & 0x7ffu;
  if (exponent > 0) { kept.y += u32(exponent - 1) << 20u; }
  let up = rest > 0x400u || (rest == 0x400u && (kept.x & 1u) == 1u);
  return u64_add(kept, vec2<u32>(select(0u, 1u, up), 0u)) | vec2<u32>(0u, sign);
}

fn f64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let first = u64_lt(f64_magnitude(a), f64_magnitude(b));
  let large = select(a, b, first);
  let small = select(b, a, first);
  let differs = f64_sign(a) != f64_sign(b);
  if (f64_magnitude(large).y >= 0x7ff00000u) {
    return select(large, vec2<u32>(0u, 0x7ff80000u), f64_isinf(large) && f64_isinf(small) && differs);
  }
  if (all(f64_magnitude(small) == vec2<u32>(0u))) {
    return select(large, vec2<u32>(0u, a.y & b.y), all(f64_magnitude(large) == vec2<u32>(0u)));
  }
  let p = f64_split(large);
  let q = f64_split(small);
  let moved = u64_shr_sticky(u64_shr(q.xy, 1u), p.z - q.z);
  let most = u64_shr(p.xy, 1u);
  let total = select(u64_add(most, moved), u64_sub(most, moved), differs);
  if (all(total == vec2<u32>(0u))) { return total; }
  return f64_rounded(f64_sign(large), i32(p.z) + 1, total);
}

fn f64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return f64_add(a, f64_neg(b));
}

fn f64_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let sign = (a.y ^ b.y) & 0x80000000u;
  let x = f64_magnitude(a);
  let y = f64_magnitude(b);
  let zero = all(x == vec2<u32>(0u)) || all(y == vec2<u32>(0u));
  if (f64_isnan(a) || f64_isnan(b)) { return select(b, a, f64_isnan(a)); }
  if (x.y >= 0x7ff00000u || y.y >= 0x7ff00000u) { return vec2<u32>(0u, select(sign | 0x7ff00000u, 0x7ff80000u, zero)); }
  if (zero) { return vec2<u32>(0u, sign); }
  let p = f64_split(x);
  let q = f64_split(y);
  let product = u64_product(p.xy, q.xy);
  let sticky = select(0u, 1u, any(product.xy != vec2<u32>(0u)));
  return f64_rounded(sign, i32(p.z) + i32(q.z) - 1022, product.zw | vec2<u32>(sticky, 0u));
}

// Long division, a bit in each trip.
fn f64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let sign = (a.y ^ b.y) & 0x80000000u;
  let x = f64_magnitude(a);
  let y = f64_magnitude(b);
  if (f64_isnan(a) || f64_isnan(b)) { return select(b, a, f64_isnan(a)); }
  let undefined = (f64_isinf(x) && f64_isinf(y)) || all((x | y) == vec2<u32>(0u));
  if (undefined) { return vec2<u32>(0u, 0x7ff80000u); }
  if (f64_isinf(x) || all(y == vec2<u32>(0u))) { return vec2<u32>(0u, sign | 0x7ff00000u); }
  if (f64_isinf(y) || all(x == vec2<u32>(0u))) { return vec2<u32>(0u, sign); }
  let p = f64_split(x);
  let q = f64_split(y);
  let divisor = u64_shr(q.xy, 1u);
  var rest = u64_shr(p.xy, 1u);
  var quotient = vec2<u32>(0u);
  for (var bit = 0u; bit < 64u; bit++) {
    quotient = u64_shl(quotient, 1u);
    if (!u64_lt(rest, divisor)) {
      rest = u64_sub(rest, divisor);
      quotient.x |= 1u;
    }
    rest = u64_shl(rest, 1u);
  }
  quotient.x |= select(0u, 1u, any(rest != vec2<u32>(0u)));
  return f64_rounded(sign, i32(p.z) - i32(q.z) + 1023, quotient);
}

// An i64 that is in the same order; of both zeros 0.
fn f64_rank(a: vec2<u32>) -> vec2<u32> {
  let size = f64_magnitude(a);
  return select(size, i64_neg(size), a.y >= 0x80000000u);
}

fn f64_eq(a: vec2<u32>, b: vec2<u32>) -> bool {
  return !f64_isnan(a) && !f64_isnan(b) && all(f64_rank(a) == f64_rank(b));
}

fn f64_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return !f64_isnan(a) && !f64_isnan(b) && i64_lt(f64_rank(a), f64_rank(b));
}

fn f64_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (f64_isnan(a)) { return a; }
  return select(b, a, f64_lt(a, b));
}

fn f64_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (f64_isnan(a)) { return a; }
  return select(b, a, f64_lt(b, a));
}

fn f32_to_f64(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  let sign = bitcast<u32>(x) & 0x80000000u;
  if (bits >= 0x7f800000u) { return vec2<u32>(bits << 29u, sign | 0x7ff00000u | ((bits & 0x7fffffu) >> 3u)); }
  if (bits == 0u) { return vec2<u32>(0u, sign); }
  let split = f32_split(bits);
  return f64_rounded(sign, split.x + 936, vec2<u32>(u32(split.y), 0u));
}

fn f64_to_f32(a: vec2<u32>) -> f32 {
  let size = f64_magnitude(a);
  if (f64_isnan(a)) { return f32_of_bits(f64_sign(a) | 0x7fc00000u); }
  if (f64_isinf(a)) { return f32_of_bits(f64_sign(a) | 0x7f800000u); }
  if (all(size == vec2<u32>(0u))) { return f32_of_bits(f64_sign(a)); }
  let split = f64_split(size);
  return f32_rounded(f64_sign(a), i32(split.z) - 896, split.xy);
}

fn u64_to_f64(a: vec2<u32>) -> vec2<u32> {
  if (all(a == vec2<u32>(0u))) { return a; }
  return f64_rounded(0u, 1086, a);
}

fn i64_to_f64(a: vec2<u32>) -> vec2<u32> {
  return u64_to_f64(i64_abs(a)) | vec2<u32>(0u, a.y & 0x80000000u);
}

fn f64_to_bool(a: vec2<u32>) -> bool {
  return any(f64_magnitude(a) != vec2<u32>(0u));
}

// Without its fraction; what does not fit becomes the least number.
fn f64_to_i64(a: vec2<u32>) -> vec2<u32> {
  let size = f64_magnitude(a);
  if (size.y < 0x3ff00000u) { return vec2<u32>(0u); }
  if (size.y >= 0x43e00000u) { return vec2<u32>(0u, 0x80000000u); }
  let split = f64_split(size);
  let whole = u64_shr(split.xy, 1086u - split.z);
  return select(whole, i64_neg(whole), a.y >= 0x80000000u);
}

fn f64_to_i32(a: vec2<u32>) -> i32 {
  let whole = f64_to_i64(a);
  return select(i32(-2147483647 - 1), i32(whole.x), all(whole == i64_of_i32(i32(whole.x))));
}

// 0 from 2^64 on.
fn f64_to_u64(a: vec2<u32>) -> vec2<u32> {
  let half = vec2<u32>(0u, 0x43e00000u);
  if (f64_isnan(a) || f64_lt(a, half)) { return f64_to_i64(a); }
  return f64_to_i64(f64_sub(a, half)) ^ vec2<u32>(0u, 0x80000000u);
}

// What is left of an angle from 2^17 on over multiples of pi/2 (its bits), and their number modulo 4, by Payne and Hanek:
// the significand times the bits of 2/pi that matter, in fixed point with 94 bits after the point.
fn f32_large_angle(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let window = f32_two_over_pi(312u - ((bits >> 23u) & 255u));
  let significand = (bits & 0x7fffffu) | 0x800000u;
  let low = u32_product(window.x, significand);
  let middle = u64_add(u32_product(window.y, significand), vec2<u32>(low.y, 0u));
  let product = u96_negated_where(bits >= 0x80000000u, vec3<u32>(low.x, middle.x, window.z * significand + middle.y));
  let turned = (product.z + 0x20000000u) >> 30u;
  let rest = vec3<u32>(product.xy, product.z - (turned << 30u));
  let negative = rest.z >= 0x80000000u;
  var size = u96_negated_where(negative, rest) | vec3<u32>(1u, 0u, 0u);
  var zeros = 0u;
  while (size.z == 0u) {
    size = vec3<u32>(0u, size.xy);
    zeros += 32u;
  }
  let more = countLeadingZeros(size.z);
  let top = u64_shl(size.yz, more).y >> 1u;
  let turns = f32(top) * bitcast<f32>((98u - zeros - more) << 23u);
  let angle = turns * f32_opaque(1.5707964f) + turns * f32_opaque(-4.371139e-8f);
  return vec2<u32>(bitcast<u32>(angle) ^ select(0u, 0x80000000u, negative), turned);
}

// 96 bits of 2/pi from a bit on, of the first 256.
fn f32_two_over_pi(shift: u32) -> vec3<u32> {
  var words = array<u32, 9>(
    0xdebbc561u, 0xfe5163abu, 0x3c439041u, 0xdb629599u,
    0xf534ddc0u, 0xfc2757d1u, 0x4e441529u, 0xa2f9836eu, 0u,
  );
  let at = shift >> 5u;
  let by = shift & 31u;
  let low = u64_shr(vec2<u32>(words[at], words[at + 1u]), by);
  let middle = u64_shr(vec2<u32>(words[at + 1u], words[at + 2u]), by);
  let high = u64_shr(vec2<u32>(words[at + 2u], words[at + 3u]), by);
  return vec3<u32>(low.x, middle.x, high.x);
}

fn u96_negated_where(negative: bool, a: vec3<u32>) -> vec3<u32> {
  let low = i64_neg(a.xy);
  let high = ~a.z + select(0u, 1u, all(a.xy == vec2<u32>(0u)));
  return select(a, vec3<u32>(low, high), negative);
}
