// Trains in a worker, so that the tab stays responsive: in slices, between which messages are answered.

const SLICE = 60; // milliseconds of training between two messages
let model, names, data, order, random;
let running = false, rate, steps = 0, epochs = 0, place = 0;

const ANSWERS = {
  async start(given) {
    ({ names, data } = given);
    rate = given.rate;
    model = await instantiate(given.wasm);
    shuffle(true);
    return { memory: model.memoryBytes };
  },
  run() {
    running = true;
    slice();
  },
  pause() {
    running = false;
  },
  rate(value) {
    rate = value;
  },
  reset() {
    model.reset();
    begin();
  },
  predict(image) {
    const batch = new Float32Array(names.batch * 64);
    batch.set(image);
    return model.predict({ [names.x]: batch })[names.scores].slice(0, 10);
  },
  validate: () => accuracy(),
  weights: () => model.getWeights(),
  save: () => model.save(),
  load(file) {
    model.load(file);
    begin();
  },
};

onmessage = async ({ data: { id, method, argument } }) => {
  try {
    postMessage({ id, value: await ANSWERS[method](argument) });
  } catch ({ code, message }) {
    postMessage({ id, error: message, code });
  }
};

function begin() {
  steps = epochs = 0;
  shuffle(true);
}

// The order of an epoch: Fisher and Yates' shuffle, by xorshift (Marsaglia, Xorshift RNGs, 2003).
function shuffle(first) {
  if (first) {
    random = 2463534242;
    order = Array.from(data.train.labels, (_, at) => at);
  }
  place = 0;
  for (let at = order.length - 1; at > 0; at--) {
    random ^= random << 13;
    random ^= random >>> 17;
    random ^= random << 5;
    const other = (random >>> 0) % (at + 1);
    [order[at], order[other]] = [order[other], order[at]];
  }
}

function slice() {
  if (!running) return;
  const [from, before, losses] = [performance.now(), steps, []];
  let stopped;
  try {
    while (performance.now() < from + SLICE) if (step(losses)) break;
  } catch ({ message }) {
    running = false;
    stopped = message;
  }
  const speed = (1000 * (steps - before)) / (performance.now() - from);
  const ended = place === 0 && !stopped;
  if (losses.length)
    postMessage({ steps, epochs, speed, losses, accuracy: ended ? accuracy() : null, memory: model.memoryBytes });
  if (stopped) postMessage({ stopped });
  else setTimeout(slice);
}

// One step; whether an epoch has ended with it.
function step(losses) {
  const chosen = order.slice(place, place + names.batch);
  const loss = model.train(batchOf(data.train, chosen), rate === null ? {} : { [names.rate]: rate });
  losses.push([++steps, loss]);
  place += names.batch;
  if (place + names.batch <= order.length) return false;
  epochs++;
  shuffle(false);
  return true;
}

function batchOf({ images, labels }, chosen) {
  const x = new Float32Array(names.batch * 64);
  const y = new Array(names.batch).fill(0);
  chosen.forEach((number, at) => {
    x.set(images.subarray(64 * number, 64 * (number + 1)), 64 * at);
    y[at] = labels[number];
  });
  return { [names.x]: x, [names.labels]: y };
}

function accuracy() {
  const { labels } = data.valid;
  let right = 0;
  for (let first = 0; first < labels.length; first += names.batch) {
    const chosen = Array.from(labels.subarray(first, first + names.batch), (_, at) => first + at);
    const scores = model.predict({ [names.x]: batchOf(data.valid, chosen)[names.x] })[names.scores];
    chosen.forEach((number, at) => {
      const own = scores.subarray(10 * at, 10 * (at + 1));
      right += own.indexOf(Math.max(...own)) === labels[number];
    });
  }
  return right / labels.length;
}
