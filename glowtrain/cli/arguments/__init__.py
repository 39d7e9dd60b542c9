"""What commands are given: options, models, arrays, files."""
