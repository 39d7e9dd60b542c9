"""Bundles for browsers and Node: a module in JavaScript over the module in WebAssembly, and a page that trains."""
