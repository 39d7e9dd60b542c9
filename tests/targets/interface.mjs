// The interface in JavaScript of a small bundle: x f32[4,3], target f32[4,2], a layer without activation, mean squares.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [, , folder] = process.argv;
const url = (name) => new URL(name, pathToFileURL(`${folder}/`));
const { GlowtrainError, description, load } = await import(url("three.mjs"));
const x = Float32Array.from({ length: 12 }, (_, at) => at / 12);
const target = Float32Array.from({ length: 8 }, (_, at) => at % 3);

function fails(code, action, message = /./) {
  assert.throws(action, (error) => error instanceof GlowtrainError && error.code === code && message.test(error.message));
}

// Loading: from the file beside the module, an address, and bytes.
const model = await load();
const bytes = await readFile(url("three.wasm"));
for (const source of [url("three.wasm"), url("three.wasm").pathname, bytes]) {
  const other = await load(source);
  assert.deepEqual(other.predict({ x }), model.predict({ x }));
}
const empty = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0);
await assert.rejects(load(empty), ({ code }) => code === "OTHER_VERSION");
const unread = (message) => (error) => error instanceof GlowtrainError && error.code === "READ_FAILED" && message.test(error.message);
await assert.rejects(load(Uint8Array.of(1, 2, 3)), unread(/no whole module of WebAssembly/));
await assert.rejects(load(bytes.subarray(0, bytes.length - 9)), unread(/no whole module of WebAssembly/));
await assert.rejects(load(url("absent.wasm")), unread(/absent.wasm cannot be read: /));
await assert.rejects(load("http://127.0.0.1:1/absent.wasm"), unread(/absent.wasm cannot be read: /));

// Training, with the usual rate and another; instances are apart.
const before = model.getWeights();
const other = await load();
const losses = Array.from({ length: 20 }, () => model.train({ x, target }));
assert.ok(losses.at(-1) < losses[0] / 2);
assert.deepEqual(other.getWeights(), before);
assert.equal(other.train({ x: Array.from(x), target }, { lr: 0 }), losses[0]);
assert.deepEqual(other.getWeights(), before);

// Weights by name, and all of them as a file.
const trained = model.getWeights();
assert.deepEqual(Object.keys(trained).sort(), ["layer.bias", "layer.weight"]);
assert.ok(trained["layer.weight"] instanceof Float32Array);
other.setWeights(trained);
assert.deepEqual(other.predict({ x }), model.predict({ x }));
other.load(model.save());
assert.deepEqual(other.getWeights({ state: true }), model.getWeights({ state: true }));
assert.equal(other.train({ x, target }), model.train({ x, target }));
assert.deepEqual(other.save(), model.save());
model.reset();
assert.deepEqual(model.getWeights(), before);

// Mistakes change nothing and have names.
const whole = other.save();
const weights = { "layer.bias": Float32Array.of(1, 2) };
fails("NO_SUCH_VARIABLE", () => model.setWeights({ ...weights, nobody: [1] }), /there is no variable nobody/);
fails("WRONG_SIZE", () => model.setWeights({ ...weights, "layer.weight": [1] }), /layer.weight is f32\[3,2\], 6 elements; given: 1/);
fails("WRONG_SIZE", () => model.train({ x, target: [1] }), /target is f32\[4,2\]/);
fails("WRONG_SIZE", () => model.predict(), /x is f32\[4,3\], 12 elements; given: nothing/);
fails("BAD_INPUT", () => model.train({ x, target, y: [1] }), /there is no input y; there are: x, target/);
fails("BAD_INPUT", () => model.train({ x, target }, { rate: 1 }), /there is no hyperparameter rate; there are: lr/);
fails("NOT_FINITE", () => model.train({ x: x.map(() => NaN), target }));
fails("READ_FAILED", () => model.load(whole.subarray(0, whole.length - 1)), /ends early/);
fails("READ_FAILED", () => model.load(new Uint8Array(3)));
for (const wrong of [0.1, null, [0.1], new Map([["lr", 0.1]])]) fails("BAD_INPUT", () => model.train({ x, target }, wrong), /given by name/);
for (const wrong of [null, 7, new Map([["x", x]])]) fails("BAD_INPUT", () => model.predict(wrong), /inputs are given by name/);
for (const wrong of [null, undefined, new Map(Object.entries(weights))]) fails("BAD_INPUT", () => model.setWeights(wrong), /given by name/);
for (const lr of ["", " ", [], {}, "fast", Symbol()]) fails("BAD_INPUT", () => model.train({ x, target }, { lr }), /lr is f32/);
for (const wrong of [null, undefined, "", "a", [], [1], {}, Symbol()])
  fails("BAD_INPUT", () => model.predict({ x: Array(12).fill(wrong) }), /x is f32\[4,3\], and .* is no such number/);
for (const wrong of [null, undefined, 400, "three.safetensors", Promise.resolve(whole)]) fails("BAD_INPUT", () => model.load(wrong), /taken as bytes/);
const renamed = Buffer.from(Buffer.from(whole).toString("latin1").replace("layer.bias", "layer.best"), "latin1");
fails("OTHER_WEIGHTS", () => model.load(renamed), /does not begin as this model's weights do/);
const more = { toString: { dtype: "F32", shape: [0], data_offsets: [0, 0] }, ...JSON.parse(description.header) };
const header = Buffer.from(JSON.stringify(more));
const counted = Buffer.alloc(8);
counted.writeBigUInt64LE(BigInt(header.length));
const longer = Buffer.concat([counted, header, whole.subarray(8 + description.header.length)]);
fails("OTHER_WEIGHTS", () => model.load(longer));
const reshaped = Buffer.from(Buffer.from(whole).toString("latin1").replace("[3,2]", "[2,3]"), "latin1");
fails("OTHER_WEIGHTS", () => model.load(reshaped));
assert.deepEqual(model.getWeights(), before);

// Weights of a file of their own: those beside the module, others, or those that are set.
const apart = await import(url("apart/three.mjs"));
const beside = await apart.load();
assert.deepEqual(beside.getWeights(), before);
beside.train({ x, target });
beside.reset();
assert.deepEqual(beside.getWeights(), before);
assert.deepEqual((await apart.load(undefined, whole)).getWeights(), other.getWeights());
assert.deepEqual((await apart.load(undefined, url("apart/three.safetensors").pathname)).getWeights(), before);
assert.ok((await apart.load(undefined, null)).getWeights()["layer.bias"].every(Number.isNaN));
await assert.rejects(apart.load(undefined, whole.subarray(0, 9)), ({ code }) => code === "READ_FAILED");

// Labels are whole numbers.
const sorts = await (await import(url("sorts/three.mjs"))).load();
const first = sorts.train({ x, labels: [0, 1, 1, 0] });
sorts.reset();
assert.equal(sorts.train({ x, labels: ["0", 1n, 1.0, false] }), first);
const sorted = sorts.save();
const refused = ({ name, code, message }) =>
  name === "GlowtrainError" && code === "BAD_INPUT" && /labels is i64\[4\], and .* is no such number/.test(message);
for (const wrong of [1.5, NaN, Infinity, "one", "", " ", [], [1], null, undefined, {}, 2n ** 63n])
  assert.throws(() => sorts.train({ x, labels: [0, wrong, 1, 0] }), refused);
assert.deepEqual(sorts.save(), sorted);

// Numbers that are finite stay so.
for (const wrong of [1e39, -1e300, "1e39"])
  assert.throws(() => model.train({ x: Array(x.length).fill(wrong), target }), ({ code }) => code === "BAD_INPUT");
const endless = await model.predict({ x: Array(x.length).fill(Infinity) });
assert.ok(Object.values(endless)[0].some((value) => !Number.isFinite(value)));

// Half precision is bits: numbers would be taken for other ones.
const halves = await (await import(url("halves/three.mjs"))).load();
const outputs = halves.predict({ x: new Uint16Array(12).fill(0x3c00) });
assert.ok(Object.values(outputs)[0] instanceof Uint16Array);
for (const wrong of [Array(12).fill(1), new Float32Array(12).fill(1)])
  assert.throws(() => halves.predict({ x: wrong }), ({ code, message }) => code === "BAD_INPUT" && /bits in a Uint16Array/.test(message));

// Memory does not grow.
const size = model.memoryBytes;
for (let step = 0; step < 100000; step++) model.train({ x, target });
assert.equal(model.memoryBytes, size);
assert.ok(size < description.variablesBytes + description.arenaBytes + 4 * 65536);
console.log("ok");
