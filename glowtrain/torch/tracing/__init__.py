"""From modules to functional graphs of ATen operators, and where these come from."""
