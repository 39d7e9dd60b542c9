"""Where batches come from: cut out of arrays, or given by an iterable one after the other, while the step runs."""
