"""A bundle as files that linkers and loaders take."""
