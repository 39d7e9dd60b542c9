//{{description}}

// A model that Glowtrain wrote as a WebAssembly module, through the module's C interface. `description` says what is
// inside. Everything lies in the module's memory, which grows once, when the model is loaded.

/** What went wrong: `code` is a name of the C interface, such as NOT_FINITE, or BAD_INPUT, OUT_OF_MEMORY. */
class GlowtrainError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "GlowtrainError";
    this.code = code;
  }
}

// By element type; half precision is passed as its bits, and types that JavaScript has no array for as bytes.
const ARRAYS = {
  f64: Float64Array, f32: Float32Array, f16: Uint16Array, bf16: Uint16Array,
  i64: BigInt64Array, i32: Int32Array, i16: Int16Array, i8: Int8Array, i4: Int8Array, i2: Int8Array,
  u64: BigUint64Array, u32: Uint32Array, u16: Uint16Array,
};
const FLOATS = ["f64", "f32"], WHOLE_64 = ["i64", "u64"];
const PAGE = 65536;
const HANDLE_BYTES = 24, MEMORY_WORDS = 7;

class Model {
  #wasm;
  #memory;
  #handle;
  #views = {};
  #scratch;
  #arena;
  #variables;
  #weights;

  constructor(wasm, weights) {
    this.#wasm = wasm;
    this.#memory = wasm.memory;
    this.#weights = weights;
    this.#layOut();
    this.#init();
  }

  /** What is inside: functions with the types of their inputs and outputs, variables, hyperparameters. */
  get description() {
    return description;
  }

  /** Bytes of the module's memory. It stays as large as it is. */
  get memoryBytes() {
    return this.#memory.buffer.byteLength;
  }

  /** One step of training on a batch; gives the loss. Throws NOT_FINITE, and changes nothing, if that is no number. */
  train(inputs, hyper = {}) {
    return Number(this.#run("step", inputs, hyper)[0][0]);
  }

  /** Predictions for a batch, by the names of outputs. */
  predict(inputs) {
    const outputs = description.functions.predict.outputs;
    return Object.fromEntries(this.#run("predict", inputs).map((array, at) => [outputs[at].name, array.slice()]));
  }

  /** All variables as they were when the model was loaded. */
  reset() {
    this.#check(this.#call("reset", this.#handle));
    if (this.#weights) this.load(this.#weights);
  }

  /** The variables of the model by name, row-major; with `state`, those of the optimizer as well. */
  getWeights({ state = false } = {}) {
    const chosen = description.variables.filter(({ role }) => state || role !== "state");
    return Object.fromEntries(chosen.map((variable) => [variable.name, this.#get(variable)]));
  }

  /** Set variables by name. All are checked before the first is set. */
  setWeights(weights) {
    const found = named(weights, "weights").map(([name, values]) => {
      const variable = description.variables.find((each) => each.name === name);
      if (!variable) throw new GlowtrainError("NO_SUCH_VARIABLE", `there is no variable ${name}`);
      return [variable, converted(values, variable)];
    });
    for (const [variable, values] of found) this.#set(variable, values);
  }

  /** All variables, those of the optimizer among them, as a file of safetensors. */
  save() {
    const head = beginning();
    const file = new Uint8Array(head.length + dataBytes());
    file.set(head);
    let at = head.length;
    for (const variable of description.variables) {
      const values = this.#get(variable);
      file.set(new Uint8Array(values.buffer, values.byteOffset, variable.bytes), at);
      at += variable.bytes;
    }
    return file;
  }

  /** Take all variables from a file that `save` or the C interface wrote. Throws, and changes nothing, for another. */
  load(file) {
    const found = asBytes(file), head = beginning();
    const end = head.length + dataBytes();
    if (found.length >= head.length && head.some((byte, at) => found[at] !== byte))
      throw new GlowtrainError("OTHER_WEIGHTS", "the file does not begin as this model's weights do: it is another's, or damaged");
    if (found.length < end) throw new GlowtrainError("READ_FAILED", `the file ends early: ${found.length} of ${end} bytes`);
    if (found.length > end) throw new GlowtrainError("OTHER_WEIGHTS", `the file has ${found.length} bytes, not ${end}`);
    let at = head.length;
    for (const variable of description.variables) {
      this.#set(variable, found.subarray(at, at + variable.bytes));
      at += variable.bytes;
    }
  }

  // All that is ever needed, behind the module's own data: one place for each, since sizes are known.
  #layOut() {
    let end = this.#wasm.__heap_base.value;
    const take = (bytes, alignment = 16) => {
      const at = Math.ceil(end / alignment) * alignment;
      end = at + bytes;
      return at;
    };
    this.#handle = take(HANDLE_BYTES);
    this.#arena = take(description.arenaBytes, description.alignment);
    this.#variables = take(description.variablesBytes, description.alignment);
    const places = [];
    for (const [name, each] of Object.entries(description.functions))
      for (const tensor of [...each.inputs, ...each.hyper, ...each.outputs])
        places.push([name, tensor, take(tensor.bytes, each.hyper.indexOf(tensor) > 0 ? tensor.size : 16)]);
    this.#scratch = take(Math.max(4 * MEMORY_WORDS, ...description.variables.map(({ bytes }) => bytes)));
    this.#grow(end);
    for (const [name, tensor, at] of places) (this.#views[name] ??= []).push(this.#view(tensor, at));
  }

  #grow(bytes) {
    const missing = Math.ceil((bytes - this.memoryBytes) / PAGE);
    try {
      if (missing > 0) this.#memory.grow(missing);
    } catch {
      throw new GlowtrainError("OUT_OF_MEMORY", `${description.name} needs ${Math.ceil(bytes / 2 ** 20)} MiB of memory`);
    }
  }

  #view(tensor, at) {
    return new (arrayOf(tensor))(this.#memory.buffer, at, tensor.bytes / tensor.size);
  }

  #init() {
    const words = new Uint32Array(this.#memory.buffer, this.#scratch, MEMORY_WORDS);
    const { version, variablesBytes, arenaBytes } = description;
    words.set([version, this.#variables, variablesBytes, this.#arena, arenaBytes, 0, 0]);
    this.#check(this.#call("init", this.#handle, this.#scratch));
    if (this.#weights) this.load(this.#weights);
  }

  #call(name, ...values) {
    return this.#wasm[`${description.name}_${name}`](...values);
  }

  #check(code) {
    if (code) throw new GlowtrainError(...(description.errors[code] ?? ["UNKNOWN", `error ${code}`]));
  }

  // Copy inputs into their places, call, and give the places of outputs.
  #run(name, inputs = {}, hyper = {}) {
    const own = description.functions[name];
    if (!own) throw new GlowtrainError("BAD_INPUT", `this model has no function ${name}: it was written to predict only`);
    const views = this.#views[name];
    known(inputs, own.inputs, "input");
    known(hyper, own.hyper, "hyperparameter");
    const given = new Map(named(inputs, "inputs")); // without what every object has, such as a constructor
    own.inputs.forEach((tensor, at) => views[at].set(converted(given.get(tensor.name), tensor)));
    const [first, behind] = [own.inputs.length, own.inputs.length + own.hyper.length];
    own.hyper.forEach((each, at) => (views[first + at][0] = element(hyper[each.name] ?? each.default, each)));
    const chosen = own.hyper.length ? [views[first]] : [];
    const pointers = [...views.slice(0, first), ...chosen, ...views.slice(behind)].map((view) => view.byteOffset);
    this.#check(this.#call(name, this.#handle, ...pointers));
    return views.slice(behind);
  }

  #get(variable) {
    const number = description.variables.indexOf(variable);
    this.#check(this.#call("get", this.#handle, number, this.#scratch, variable.bytes));
    return this.#view(variable, this.#scratch).slice();
  }

  #set(variable, values) {
    const number = description.variables.indexOf(variable);
    const bytes = new Uint8Array(values.buffer, values.byteOffset, variable.bytes);
    new Uint8Array(this.#memory.buffer).set(bytes, this.#scratch);
    this.#check(this.#call("set", this.#handle, number, this.#scratch, variable.bytes));
  }
}

// Names and values of an object; a Map, a list or a number would be read as one that names nothing.
function named(given, what) {
  if (Object.prototype.toString.call(given) === "[object Object]") return Object.entries(given);
  throw new GlowtrainError("BAD_INPUT", `${what} are given by name, in an object: { name: value }`);
}

// Raise an error for names that nothing has.
function known(given, tensors, what) {
  const names = tensors.map(({ name }) => name);
  const listed = names.join(", ") || "none";
  for (const [name] of named(given, `${what}s`))
    if (!names.includes(name)) throw new GlowtrainError("BAD_INPUT", `there is no ${what} ${name}; there are: ${listed}`);
}

// The class of a tensor's arrays.
function arrayOf(tensor) {
  return ARRAYS[tensor.dtype] ?? Uint8Array;
}

// Values as the typed array of a tensor; plain numbers are taken where JavaScript has whole numbers of 64 bits.
function converted(values, tensor) {
  const type = arrayOf(tensor);
  const count = tensor.bytes / tensor.size;
  if (values?.length !== count) {
    const found = values?.length === undefined ? "nothing that has a length" : `${values.length} elements`;
    throw new GlowtrainError("WRONG_SIZE", `${tensor.name} is ${tensor.type}, ${count} elements; given: ${found}`);
  }
  if (values instanceof type) return values;
  if (/^b?f16$/.test(tensor.dtype))
    throw new GlowtrainError("BAD_INPUT", `${tensor.name} is ${tensor.type}, passed as its bits in a ${type.name}`);
  return type.from(values, (value) => element(value, tensor));
}

// A number as an element of a tensor: whole ones are neither rounded nor cut off, finite ones stay finite, truth is 0 or
// 1, and what JavaScript would read as 0 or NaN (null, empty text, an object) is none.
function element(value, tensor) {
  const digits = typeof value === "string" && /\S/.test(value) && !Number.isNaN(Number(value));
  const counts = digits || ["number", "bigint", "boolean"].includes(typeof value);
  try {
    const number = WHOLE_64.includes(tensor.dtype) ? BigInt(value) : Number(value);
    const [stored] = arrayOf(tensor).of(number);
    const fits = FLOATS.includes(tensor.dtype)
      ? Number.isFinite(stored) || !Number.isFinite(number)
      : stored === number && !(tensor.dtype === "bool" && number > 1);
    if (counts && fits) return number;
  } catch {} // what BigInt refuses
  throw new GlowtrainError("BAD_INPUT", `${tensor.name} is ${tensor.type}, and ${String(value)} is no such number`);
}

// What a file of weights begins with: the length of its header, and the header.
function beginning() {
  const header = new TextEncoder().encode(description.header);
  const bytes = new Uint8Array(8 + header.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(header.length), true);
  bytes.set(header, 8);
  return bytes;
}

function dataBytes() {
  return description.variables.reduce((sum, variable) => sum + variable.bytes, 0);
}

function asBytes(source) {
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (/ArrayBuffer\]$/.test(Object.prototype.toString.call(source))) return new Uint8Array(source);
  throw new GlowtrainError("BAD_INPUT", "weights are taken as bytes: a Uint8Array or an ArrayBuffer");
}

// The module's bytes: as they are, or from an address; Node does not fetch files.
async function bytesOf(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  const url = String(source);
  try {
    if (globalThis.process?.versions?.node && !/^(https?|data|blob):/.test(url)) {
      const { readFile } = await import("node:fs/promises");
      return await readFile(url.startsWith("file:") ? new URL(url) : url);
    }
    const response = await fetch(url);
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    return await response.arrayBuffer();
  } catch (error) {
    throw new GlowtrainError("READ_FAILED", `${url} cannot be read: ${error.message}`);
  }
}

// An instance of a module, which imports nothing.
async function instanceOf(bytes) {
  try {
    return (await WebAssembly.instantiate(bytes)).instance;
  } catch (error) {
    throw new GlowtrainError("READ_FAILED", `this is no whole module of WebAssembly that runs here: ${error.message}`);
  }
}

/** Load the model from the bytes of its module, or from where they are; likewise its weights, if they are given. */
async function instantiate(source, weights) {
  const instance = await instanceOf(await bytesOf(source));
  if (!instance.exports[`${description.name}_init`])
    throw new GlowtrainError("OTHER_VERSION", `this is not the module of ${description.name}`);
  return new Model(instance.exports, weights ? asBytes(await bytesOf(weights)).slice() : null);
}
// {{#exports}}

/** Load the model; without addresses, from the files beside this one. */
//{{load}}

export { GlowtrainError, Model, description, load };
// {{/exports}}
