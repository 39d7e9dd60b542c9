"""The protocol over gRPC: its messages, read from ``open_inference.proto``, and the service that answers them."""
