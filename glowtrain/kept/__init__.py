"""What an earlier process found out about a model, kept with its code: a process that finds both reads no ONNX, builds
no graph and forms no gradient before its first step, and does so when somebody looks at them (docs/adr/0030)."""
