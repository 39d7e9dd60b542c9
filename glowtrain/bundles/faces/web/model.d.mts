// The types of network.mjs.

//{{interfaces}}

export declare class Model {
  private constructor();
  //{{methods}}
  /** The variables of the model, with `state` those of the optimizer as well. */
  getWeights(options?: { state?: boolean }): Weights;
  /** Set some variables. All are checked before the first is set. */
  setWeights(weights: Weights): void;
  /** All variables, those of the optimizer among them, as a file of safetensors. */
  save(): Uint8Array;
  /** Take all variables from such a file. Throws OTHER_WEIGHTS, and changes nothing, for another model's. */
  load(file: Uint8Array | ArrayBuffer): void;
  /** All variables as they were when the model was loaded. */
  reset(): void;
  /** Bytes of the module's memory, which does not grow after loading. */
  readonly memoryBytes: number;
  readonly description: typeof description;
}

//{{codes}}

export declare class GlowtrainError extends Error {
  readonly code: ErrorCode;
}

export interface Tensor {
  name: string;
  type: string;
  dtype: string;
  shape: number[];
  bytes: number;
}

/** What is inside. */
export declare const description: {
  name: string;
  functions: Record<string, { inputs: Tensor[]; hyper: (Tensor & { default: number })[]; outputs: Tensor[] }>;
  variables: (Tensor & { role: "parameter" | "statistic" | "state" })[];
};

export type Source = ArrayBuffer | ArrayBufferView | URL | string;

/** Load the model from the bytes or the address of its module, by default network.wasm beside this file; likewise its
 * weights (safetensors), which need not be given where the module holds them or network.safetensors was written. */
export declare function load(source?: Source, weights?: Source | null): Promise<Model>;
