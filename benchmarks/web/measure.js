// Training steps in a browser's tab, in turns: bundles, C by hand, TensorFlow.js. Python calls `measure`.

const BATCH = 64;
const random = (count) => Float32Array.from({ length: count }, () => Math.random());
const classes = BigInt64Array.from({ length: BATCH }, (_, at) => BigInt(at % 10));
const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

async function bundled({ library, wasm }, count) {
  const { load } = await import(URL.createObjectURL(new Blob([library], { type: "text/javascript" })));
  const model = await load(bytes(wasm));
  const batch = { x: random(BATCH * count), labels: classes };
  return () => model.train(batch);
}

async function byHand(wasm) {
  const { instance } = await WebAssembly.instantiate(bytes(wasm));
  instance.exports.start();
  return () => instance.exports.step(0.01, 0.9);
}

function labels() {
  return tf.oneHot(tf.tensor1d(Array.from(classes, Number), "int32"), 10).toFloat();
}

// 784-512-512-10 with ReLU, SGD with momentum.
function mlp() {
  const variable = (...shape) => tf.variable(tf.randomNormal(shape, 0, 0.05));
  const layers = [[784, 512], [512, 512], [512, 10]].map(([rows, columns]) => [variable(rows, columns), variable(columns)]);
  const x = tf.tensor2d(random(BATCH * 784), [BATCH, 784]);
  const y = labels();
  const rule = tf.train.momentum(0.01, 0.9);
  const product = (value, [weight, bias]) => value.matMul(weight).add(bias);
  const scores = () => product(product(product(x, layers[0]).relu(), layers[1]).relu(), layers[2]);
  return () => tf.tidy(() => rule.minimize(() => tf.losses.softmaxCrossEntropy(y, scores()), true).dataSync()[0]);
}

// The model `cnn` that comes with Glowtrain, on 8×8 pixels, with Adam.
function cnn() {
  const { conv2d, batchNormalization, activation, maxPooling2d, flatten, dense, dropout } = tf.layers;
  const stage = (filters, given) => [
    conv2d({ filters, kernelSize: 3, padding: "same", useBias: false, ...given }),
    batchNormalization(), activation({ activation: "relu" }), maxPooling2d({ poolSize: 2 }),
  ];
  const layers = [...stage(32, { inputShape: [8, 8, 1] }), ...stage(64), flatten(), dense({ units: 128, activation: "relu" }),
    dropout({ rate: 0.25 }), dense({ units: 10 })];
  const model = tf.sequential({ layers });
  model.compile({ optimizer: tf.train.adam(1e-3), loss: (y, scores) => tf.losses.softmaxCrossEntropy(y, scores) });
  const x = tf.tensor4d(random(BATCH * 64), [BATCH, 8, 8, 1]);
  const y = labels();
  return () => model.trainOnBatch(x, y);
}

async function withTensorFlow(backend, made) {
  await tf.setBackend(backend);
  const step = made();
  return async () => {
    await tf.setBackend(backend);
    return step();
  };
}

/** Milliseconds of each step, by the names of rows. */
async function measure({ models, hand, turns, slow, tensorflow }) {
  const steps = {
    "mlp: bundle": await bundled(models.mlp, 784),
    ...(hand ? { "mlp: C by hand": await byHand(hand) } : {}),
    "cnn: bundle": await bundled(models.cnn, 64),
  };
  if (tensorflow) {
    const { simd, plain } = tensorflow;
    const at = (base64) => URL.createObjectURL(new Blob([bytes(base64)], { type: "application/wasm" }));
    const [one, threads] = ["tfjs-backend-wasm-simd.wasm", "tfjs-backend-wasm-threaded-simd.wasm"]; // a tab has no threads
    tf.wasm.setWasmPaths({ "tfjs-backend-wasm.wasm": at(plain), [one]: at(simd), [threads]: at(simd) });
    steps["mlp: TensorFlow.js wasm"] = await withTensorFlow("wasm", mlp);
    steps["mlp: TensorFlow.js cpu"] = await withTensorFlow("cpu", mlp);
    steps["cnn: TensorFlow.js cpu"] = await withTensorFlow("cpu", cnn);
  }
  const taken = Object.fromEntries(Object.keys(steps).map((name) => [name, []]));
  for (let turn = 0; turn < turns; turn++)
    for (const [name, step] of Object.entries(steps)) {
      if (name.includes("TensorFlow") && turn >= slow) continue;
      const from = performance.now();
      await step();
      taken[name].push(performance.now() - from);
    }
  return taken;
}
