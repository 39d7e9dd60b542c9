@group(0) @binding(0) var<storage, read_write> work: array<u32>;
@group(0) @binding(1) var<storage, read_write> variables: array<u32>;
@group(0) @binding(2) var<storage, read> constants: array<u32>;
@group(1) @binding(0) var<uniform> arguments: array<vec4<u32>, 1>;

@compute @workgroup_size(64)
fn k0_gemm_relu(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let task = i32(id.y * groups.x * 64u + id.x);
  if (task >= 96) { return; }
  let base0 = arguments[0].x;
  let base1 = arguments[0].y;
  let base2 = arguments[0].z;
  let base3 = arguments[0].w;
  let v1: i32 = (task / 24);
  let v2: i32 = task % 24;
  let v3: u32 = u32(v2);
  let v4: f32 = bitcast<f32>(variables[base1 + v3]);
  var sum5: f32 = 0.0f;
  for (var at6: i32 = 0; at6 < 64; at6++) {
    let v7: u32 = u32((at6 * 24 + v2));
    let v8: f32 = bitcast<f32>(variables[base2 + v7]);
    let v9: u32 = u32((v1 * 64 + at6));
    let v10: f32 = bitcast<f32>(work[base3 + v9]);
    let v11: f32 = v10 * v8;
    sum5 = sum5 + v11;
  }
  let v12: f32 = sum5 + v4;
  let v13: f32 = f32_max(v12, 0.0f);
  let v14: u32 = u32((v1 * 24 + v2));
  work[base0 + v14] = bitcast<u32>(v13);
}

fn f32_max(a: f32, b: f32) -> f32 {
  if (f32_isnan(a)) { return a; }
  if (f32_isnan(b)) { return b; }
  return select(b, a, a > b);
}

// By bits: an implementation may assume that no float is NaN.
fn f32_isnan(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
