// Runs network on made-up batches and prints what comes out, as bits; expected.txt holds them. With Node:
//   node example.mjs | cmp - expected.txt
import { load } from "./network.mjs";

const STEPS = 5;

// Batches: the upper bits of a congruential generator, multiples of 1/64 from -2 up to 2; whole numbers are 0 or 1.
let last = 0;

function word() {
  last = (Math.imul(last, 1664525) + 1013904223) >>> 0;
  return last >>> 24;
}

function number(dtype) {
  const drawn = word();
  const float = (drawn - 128) / 64;
  if (dtype === "f32" || dtype === "f64") return float;
  const bits = new Uint32Array(Float32Array.of(float).buffer)[0];
  if (dtype === "bf16") return bits >>> 16;
  if (dtype === "f16") return float ? ((bits >>> 16) & 0x8000) | ((bits >>> 13) & 0x3ffff) - (112 << 10) : 0;
  return drawn & 1;
}

function batch(inputs) {
  return Object.fromEntries(
    inputs.map(({ name, dtype, bytes, size }) => {
      const type = /^b?f16$/.test(dtype) ? Uint16Array : Array;
      return [name, type.from({ length: bytes / size }, () => number(dtype))];
    }),
  );
}

function checksum(bytes) {
  let state = ~0;
  for (const byte of bytes) {
    state ^= byte;
    for (let bit = 0; bit < 8; bit++) state = (state >>> 1) ^ (0xedb88320 & -(state & 1));
  }
  return (~state >>> 0).toString(16).padStart(8, "0");
}

function bits(loss, { dtype, size }) {
  const view = new DataView(new ArrayBuffer(8));
  if (dtype === "f64") view.setFloat64(0, loss);
  else if (dtype === "f32") view.setFloat32(0, loss);
  else view.setUint16(0, loss);
  return view.getBigUint64(0).toString(16).padStart(16, "0").slice(0, 2 * size);
}

const model = await load();
const { step, predict } = model.description.functions;
if (step) {
  for (let at = 1; at <= STEPS; at++) {
    const loss = model.train(batch(step.inputs));
    console.log(`step ${at}: loss ${bits(loss, step.outputs[0])}, variables ${checksum(model.save())}`);
  }
}
const outputs = model.predict(batch(predict.inputs));
for (const { name, source } of predict.outputs)
  console.log(`predict: ${source} ${checksum(new Uint8Array(outputs[name].buffer))}`);
