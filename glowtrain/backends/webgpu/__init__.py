"""The webgpu backend: planned programs as WGSL, for any GPU that WebGPU reaches."""
