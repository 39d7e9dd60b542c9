"""Whether an adapter keeps multiplication and addition apart, which WGSL leaves to it: measured."""

from __future__ import annotations

import numpy as np

from glowtrain.backends.webgpu.gpu import Gpu
from glowtrain.backends.webgpu.memory import MEMORIES, KernelMemory

SUM_OF_PRODUCTS = "\n".join(
    [
        *KernelMemory({}, frozenset()).declarations(),
        "@group(1) @binding(0) var<uniform> arguments: array<vec4<u32>, 1>;",
        "",
        "@compute @workgroup_size(1)",
        "fn sum_of_products() {",
        "  let base = arguments[0].x;",
        "  var sum: f32 = bitcast<f32>(work[base]);",
        "  for (var i: i32 = 0; i < 1; i++) {",
        "    let factor: f32 = bitcast<f32>(work[base + 1u + u32(i)]);",
        "    let product: f32 = factor * factor;",
        "    sum = sum + product;",
        "  }",
        "  work[base] = bitcast<u32>(sum);",
        "}",
        "",
    ]
)
"""Written as kernels are."""
FACTOR = 1 + 2.0**-12
ROUNDED_SQUARE = 1 + 2.0**-11
"""What is left of its square in f32: 2**-24 are lost."""


def fuses(gpu: Gpu) -> bool:
    """Whether a product is added unrounded."""
    with gpu.lock, gpu.errors("measuring its arithmetic"):
        work = gpu.buffer(0, "numbers", np.array([-ROUNDED_SQUARE, FACTOR], np.float32))
        empty = [gpu.buffer(0, name) for name in MEMORIES[1:]]
        table = gpu.buffer(0, "arguments", np.zeros(64, np.uint32), uniform=True)
        encoder = gpu.device.create_command_encoder()
        commands = encoder.begin_compute_pass()
        commands.set_pipeline(gpu.pipeline("sum_of_products", SUM_OF_PRODUCTS))
        commands.set_bind_group(0, gpu.bind(gpu.memories, [work, *empty]))
        commands.set_bind_group(1, gpu.bind(gpu.arguments, [table]), [0])
        commands.dispatch_workgroups(1)
        commands.end()
        gpu.device.queue.submit([encoder.finish()])
        return bool(gpu.read(work, 0, 4).view(np.float32)[0])
