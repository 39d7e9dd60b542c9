"""What quantization did to a model, in text and HTML."""
