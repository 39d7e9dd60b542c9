"""Every operator's gradient, by independent oracles."""
