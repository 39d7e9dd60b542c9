"""What a bundle for WebAssembly has besides the object file."""

from __future__ import annotations

from glowtrain.bundles.faces.web.javascript import example, javascript, worker
from glowtrain.bundles.faces.web.page import page
from glowtrain.bundles.faces.web.typescript import declarations
from glowtrain.bundles.libraries.wasm import linked
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.weights import Weights


def web_files(module: BundleModule, weights: Weights, *, with_page: bool) -> dict[str, bytes]:
    """The files by name; none for other targets. With the ``weights`` in the object there is an example; ``with_page``:
    a page that trains the model as well.

    Raises :class:`BundleError` where there can be no page.
    """
    pages = {"index.html": page(module).encode()} if with_page else {}
    if module.target.architecture != "wasm":
        return {}
    name = module.name
    texts = {
        f"{name}.mjs": javascript(module, weights),
        f"{name}.d.mts": declarations(module),
        "worker.mjs": worker(module),
    }
    if weights == "object":
        texts["example.mjs"] = example(module)
    return {f"{name}.wasm": linked(module.code)} | {file: text.encode() for file, text in texts.items()} | pages
