"""The loop over epochs and batches: its settings, what callbacks are told, how it is interrupted and paced."""
