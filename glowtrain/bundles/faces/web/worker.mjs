// A worker that keeps a model, so that training does not hold up the page:
//
//   const worker = new Worker(new URL("worker.mjs", import.meta.url), { type: "module" });
//   worker.onmessage = ({ data: { id, value, error } }) => console.log(id, error ?? value);
//   worker.postMessage({ id: 1, method: "{{method}}", args: [{ {{inputs}} }] });
import { load } from "./network.mjs";

//{{methods}}
const model = load();

addEventListener("message", async ({ data: { id, method, args = [] } }) => {
  try {
    const ready = await model;
    if (!METHODS.includes(method)) throw new TypeError(`there is no method ${method}; there are: ${METHODS.join(", ")}`);
    postMessage({ id, value: ready[method](...args) });
  } catch ({ name, code, message }) {
    postMessage({ id, error: { name, code, message } });
  }
});
