"""Better accuracy without training: equalization, bias correction, AdaRound, sensitivity."""
