// Trains the bundle of a folder for some steps on made-up batches, as the example does, and prints losses and a checksum.
import { createHash } from "node:crypto";
import { pathToFileURL } from "node:url";

const [, , file, steps] = process.argv;
const { load } = await import(pathToFileURL(file));
const model = await load();
let last = 0;

function batch({ dtype, bytes, size }) {
  return Array.from({ length: bytes / size }, () => {
    last = (Math.imul(last, 1664525) + 1013904223) >>> 0;
    return dtype.startsWith("f") ? ((last >>> 24) - 128) / 64 : (last >>> 24) & 1;
  });
}

const { inputs } = model.description.functions.step;
for (let at = 0; at < steps; at++) {
  const loss = model.train(Object.fromEntries(inputs.map((each) => [each.name, batch(each)])));
  console.log(Buffer.from(Float32Array.of(loss).buffer).toString("hex"));
}
console.log(createHash("sha256").update(model.save()).digest("hex"));
