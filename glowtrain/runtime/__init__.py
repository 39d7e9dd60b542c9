"""The runtime: networks on devices, and requests as they come."""
