"""Quantized models as files: QDQ and QOperator encodings."""
