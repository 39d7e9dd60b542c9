"use strict";
const $ = (id) => document.getElementById(id);
const given = JSON.parse($("data").textContent);
const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

// --- the worker ------------------------------------------------------------------------------------------------------

const worker = new Worker(URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" })));
const waiting = new Map();
let running = false;

function ask(method, argument) {
  return new Promise((resolve, reject) => {
    const id = ask.last = (ask.last ?? 0) + 1;
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, method, argument });
  });
}

worker.onmessage = ({ data }) => {
  if (data.id === undefined) return data.stopped ? stopped(data.stopped) : progress(data);
  const { resolve, reject } = waiting.get(data.id);
  waiting.delete(data.id);
  if (data.error === undefined) resolve(data.value);
  else reject(Object.assign(new Error(data.error), { code: data.code }));
};
worker.onerror = ({ message }) => problem(message);

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

// What a button does; errors are shown.
function on(id, event, action) {
  $(id).addEventListener(event, async (...all) => {
    problem("");
    try {
      await action(...all);
    } catch ({ message }) {
      problem(message);
    }
  });
}

// --- training --------------------------------------------------------------------------------------------------------

let losses, accuracies;

function show(isRunning) {
  running = isRunning;
  $("status").ariaLive = running ? "off" : "polite"; // readers of screens hear of epochs when training pauses
  $("run").textContent = running ? "Pause" : losses.points.length ? "Go on" : "Train";
}

function stopped(message) {
  show(false);
  problem(`Training stopped: ${message}. A smaller learning rate may help; start again.`);
}

function progress({ steps, epochs, speed, losses: fresh, accuracy, memory }) {
  for (const [step, loss] of fresh) losses.add(step, loss);
  numbers(steps, epochs, speed, memory);
  $("loss").textContent = mean(fresh.map(([, loss]) => loss)).toPrecision(3);
  if (accuracy !== null) {
    accuracies.add(steps, accuracy);
    told(epochs, accuracy);
  }
  draw();
  predict();
}

function numbers(steps, epochs, speed, memory) {
  $("steps").textContent = steps.toLocaleString("en");
  $("epochs").textContent = epochs.toLocaleString("en");
  if (speed) $("speed").textContent = Math.round(speed).toLocaleString("en");
  $("memory").textContent = `${(memory / 2 ** 20).toFixed(1)} MiB`;
}

function told(epochs, accuracy) {
  $("accuracy").textContent = percent(accuracy);
  $("status").textContent = `Epoch ${epochs}: ${percent(accuracy)} of the validation digits are recognised.`;
}

function counted(steps) {
  return `${steps.toLocaleString("en")} step${steps === 1 ? "" : "s"}`;
}

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

function forget() {
  losses = new Curve();
  accuracies = new Curve();
  for (const id of ["loss", "accuracy", "speed"]) $(id).textContent = "–";
  $("steps").textContent = $("epochs").textContent = "0";
  draw();
}

async function begun(text) {
  forget();
  show(running);
  const accuracy = await ask("validate");
  accuracies.add(0, accuracy);
  $("accuracy").textContent = percent(accuracy);
  $("status").textContent = text;
  draw();
  predict();
}

function checkRate() {
  if (!$("rate").parentElement.hidden && !$("rate").checkValidity())
    throw new Error("The learning rate is a number from 0 on.");
}

on("run", "click", async () => {
  if (!running) checkRate();
  show(!running);
  await ask(running ? "run" : "pause");
  if (!running) $("status").textContent = `Paused after ${counted(Number($("steps").textContent.replaceAll(",", "")))}.`;
});
on("reset", "click", async () => {
  await ask("reset");
  await begun("Back at the beginning: the weights are untrained again.");
});
on("rate", "change", async () => {
  checkRate();
  await ask("rate", Number($("rate").value));
});

// --- charts ----------------------------------------------------------------------------------------------------------

const HIGH = 150, LEFT = 44, RIGHT = 450, TOP = 12, BOTTOM = 124, POINTS = 240; // of the view box

// A curve of as many points as can be told apart, however long it goes on: means of neighbours.
class Curve {
  points = [];
  #each = 1;
  #group = [];

  add(step, value) {
    this.#group.push(value);
    if (this.#group.length < this.#each) return;
    this.points.push([step, mean(this.#group)]);
    this.#group = [];
    if (this.points.length === 2 * POINTS) this.#halve();
  }

  #halve() {
    this.#each *= 2;
    this.points = this.points.flatMap(([step, value], at, all) => (at % 2 ? [[step, mean([all[at - 1][1], value])]] : []));
  }
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function draw() {
  const most = Math.max(...losses.points.map(([, loss]) => loss), 0.1);
  chart("losses", losses.points, most, (value) => value.toPrecision(2));
  chart("accuracies", accuracies.points, 1, (value) => `${Math.round(100 * value)} %`);
}

function chart(id, points, high, written) {
  const last = Math.max(points.at(-1)?.[0] ?? 0, 1);
  const x = (step) => LEFT + ((RIGHT - LEFT) * step) / last;
  const y = (value) => BOTTOM - ((BOTTOM - TOP) * value) / high;
  const lines = [0, high / 2, high].map(
    (value) => `<line x1="${LEFT}" x2="${RIGHT}" y1="${y(value)}" y2="${y(value)}"/>` +
      `<text x="${LEFT - 5}" y="${y(value) + 4}" text-anchor="end">${written(value)}</text>`,
  );
  const path = points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const steps = `<text x="${RIGHT}" y="${HIGH - 6}" text-anchor="end">${counted(last)}</text>`;
  $(id).innerHTML = `${lines.join("")}${steps}<path d="${path}"/>`;
  const name = id === "losses" ? "Loss" : "Validation accuracy";
  const latest = points.length ? `, now ${written(points.at(-1)[1])}` : "";
  $(id).setAttribute("aria-label", `${name} by step${latest}`);
}

// --- drawing ---------------------------------------------------------------------------------------------------------

const pad = $("pad"), ink = pad.getContext("2d"), SIZE = pad.width;
let strokes = [], pen = [0.5, 0.5], down = false, byKeys = false, shown = null;

function paint() {
  ink.clearRect(0, 0, SIZE, SIZE);
  ink.lineCap = ink.lineJoin = "round";
  ink.lineWidth = SIZE / 12;
  ink.strokeStyle = "#1b2330";
  trace(ink, strokes, ([x, y]) => [x * SIZE, y * SIZE]);
  if (byKeys) {
    ink.fillStyle = down ? "#b3202a" : "#0b62c4";
    ink.beginPath();
    ink.arc(pen[0] * SIZE, pen[1] * SIZE, SIZE / 40, 0, 7);
    ink.fill();
  }
}

function trace(context, lines, placed) {
  for (const line of lines) {
    context.beginPath();
    context.moveTo(...placed(line[0]));
    for (const point of line.length > 1 ? line : [line[0], line[0]]) context.lineTo(...placed(point));
    context.stroke();
  }
}

// The strokes as the data set has digits: fitted into 32×32 points of ink or none, and counted in squares of 4×4.
function image() {
  const points = strokes.flat();
  const [left, right] = [Math.min(...points.map(([x]) => x)), Math.max(...points.map(([x]) => x))];
  const [top, bottom] = [Math.min(...points.map(([, y]) => y)), Math.max(...points.map(([, y]) => y))];
  const scale = 27 / Math.max(right - left, bottom - top, 0.05);
  const [midX, midY] = [(left + right) / 2, (top + bottom) / 2];
  const context = Object.assign(document.createElement("canvas"), { width: 32, height: 32 }).getContext("2d");
  context.lineCap = context.lineJoin = "round";
  context.lineWidth = 5;
  trace(context, strokes, ([x, y]) => [16 + (x - midX) * scale, 16 + (y - midY) * scale]);
  const { data } = context.getImageData(0, 0, 32, 32);
  const found = new Float32Array(64);
  for (let y = 0; y < 32; y++)
    for (let x = 0; x < 32; x++) if (data[4 * (32 * y + x) + 3] > 127) found[8 * (y >> 2) + (x >> 2)] += 1 / 16;
  return found;
}

function changed() {
  shown = null;
  paint();
  predict();
}

function point({ clientX, clientY }) {
  const box = pad.getBoundingClientRect();
  return [(clientX - box.left) / box.width, (clientY - box.top) / box.height];
}

pad.addEventListener("pointerdown", (event) => {
  pad.setPointerCapture(event.pointerId);
  byKeys = down = false;
  strokes.push([point(event)]);
  changed();
});
pad.addEventListener("pointermove", (event) => {
  if (!pad.hasPointerCapture(event.pointerId) || !strokes.length) return;
  strokes.at(-1).push(point(event));
  changed();
});

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

pad.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (!move && ![" ", "Delete", "Backspace"].includes(event.key)) return;
  event.preventDefault();
  byKeys = true;
  if (move) {
    pen = pen.map((at, axis) => Math.min(Math.max(at + move[axis] / 16, 0), 1));
    if (down) strokes.at(-1).push(pen);
  } else if (event.key === " ") {
    down = !down;
    if (down) strokes.push([pen]);
  } else {
    strokes = [];
    down = false;
  }
  if (down || event.key !== " ") changed();
  else paint();
});
pad.addEventListener("blur", () => {
  byKeys = down = false;
  paint();
});

on("clear", "click", () => {
  strokes = [];
  changed();
});

// --- predictions -----------------------------------------------------------------------------------------------------

const data = { train: part(given.train), valid: part(given.valid) };
let example = -1, asked = false;

function part({ images, labels }) {
  return { images: Float32Array.from(bytes(images), (pixel) => pixel / 16), labels: bytes(labels) };
}

on("example", "click", () => {
  strokes = [];
  paint();
  example = (example + 1) % data.valid.labels.length;
  shown = { image: data.valid.images.slice(64 * example, 64 * (example + 1)), label: data.valid.labels[example] };
  return predict(true);
});

for (let digit = 0; digit < 10; digit++) {
  const row = document.createElement("li");
  row.innerHTML = `<span>${digit}</span><span class="bar"><i></i></span><span class="percent">–</span>`;
  $("bars").append(row);
}

async function predict() {
  if (asked) return void (predict.again = true);
  asked = true;
  predict.again = false;
  const pixels = shown?.image ?? (strokes.length ? image() : null);
  picture(pixels);
  if (pixels) answer(softmax(await ask("predict", pixels)));
  else noAnswer();
  asked = false;
  if (predict.again) await predict();
}

function picture(pixels) {
  const context = $("seen").getContext("2d");
  const found = context.createImageData(8, 8);
  for (let at = 0; at < 64; at++) {
    const grey = 255 * (1 - (pixels?.[at] ?? 0));
    found.data.set([grey, grey, grey, 255], 4 * at);
  }
  context.putImageData(found, 0, 0);
}

function softmax(scores) {
  const most = Math.max(...scores);
  const powers = Array.from(scores, (score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

function bars(shares, best) {
  [...$("bars").children].forEach((row, digit) => {
    row.classList.toggle("best", digit === best);
    row.querySelector("i").style.width = shares ? `${100 * shares[digit]}%` : "0";
    row.querySelector(".percent").textContent = shares ? percent(shares[digit]) : "–";
  });
}

function answer(shares) {
  const best = shares.indexOf(Math.max(...shares));
  bars(shares, best);
  const truth = shown ? ` It is a ${shown.label}.` : "";
  say(`The model sees a ${best}.${truth}`);
}

function noAnswer() {
  bars(null, -1);
  say("Draw, or show an example.");
}

function say(text) {
  if ($("answer").textContent !== text) $("answer").textContent = text;
}

// --- files -----------------------------------------------------------------------------------------------------------

function download(content, name, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// The model's file holds every variable's bytes at an offset of its own; these are replaced.
async function trainedModel() {
  const file = bytes(given.onnx);
  const weights = await ask("weights");
  for (const [name, offset] of Object.entries(given.offsets)) {
    const { buffer, byteOffset, byteLength } = weights[name];
    file.set(new Uint8Array(buffer, byteOffset, byteLength), offset);
  }
  return file;
}

on("onnx", "click", async () => download(await trainedModel(), `${given.name}.onnx`, "application/octet-stream"));
on("weights", "click", async () => download(await ask("save"), `${given.name}.safetensors`, "application/octet-stream"));
on("choose", "click", () => $("file").click());
on("file", "change", async () => {
  const [file] = $("file").files;
  $("file").value = "";
  if (!file) return;
  await ask("load", await file.arrayBuffer());
  await begun(`The weights of ${file.name} are in place.`);
});

// --- start -----------------------------------------------------------------------------------------------------------

async function start() {
  paint();
  picture(null);
  bars(null, -1);
  const { names, rate } = given;
  $("rate").value = rate ?? "";
  $("rate").parentElement.hidden = rate === null;
  const { memory } = await ask("start", { wasm: bytes(given.wasm), names, rate, data });
  numbers(0, 0, 0, memory);
  await begun("Ready. Press Train.");
  for (const id of ["run", "reset", "onnx", "weights", "choose"]) $(id).disabled = false;
}

start().catch(({ message }) => problem(message));
