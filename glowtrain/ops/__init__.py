"""Every operator, by family: ``gt.ops.Conv``. Importing this package fills the registry."""

import importlib
import pkgutil

from glowtrain.graph import Operator, registered

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

_CLASSES = {cls.__name__: cls for cls in registered() if cls.__module__.startswith(__name__)}


def __getattr__(name: str) -> type[Operator]:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no operator {name!r}")
    return _CLASSES[name]


def __dir__() -> list[str]:
    return sorted(_CLASSES)
