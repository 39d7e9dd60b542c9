"""Networks on devices: placed, and run there."""
