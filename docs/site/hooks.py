"""What mkdocs is told besides mkdocs.yml: pages that lie outside docs/, and those that are made of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from links import Links
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import tutorials

import glowtrain

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = (
    "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md",
    "benchmarks/results/*.md", "benchmarks/results/*.png", "examples/README.md",
)  # fmt: skip
"""Pages and pictures outside docs/ that are pages of the site, at their paths in the repository."""
MODULES = (
    "callbacks", "data", "errors", "fleet", "flower", "grad", "gradcheck", "losses", "metrics", "nn", "onnx_io",
    "optim", "quantization", "runtime", "sklearn", "torch",
)  # fmt: skip
"""Modules whose public names the reference describes, beside those of ``glowtrain`` itself."""
OPTION = re.compile(r"^(\* `[^`]+`: )(.*)$", re.MULTILINE)
"""An option and what its help says."""
ROLE = re.compile(r":[a-z]+:<code>(?:~[\w.]*\.)?")
"""What docstrings have before a name in code: ``:class:`` and the like, and the path that ``~`` hides."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation's item ``FOLDER/*`` becomes all pages of the folder."""
    config.nav = _expanded(config.nav)
    return config


def _expanded(item: Any) -> Any:
    if isinstance(item, list):
        return [_expanded(each) for each in item]
    if isinstance(item, dict):
        return {title: _expanded(each) for title, each in item.items()}
    if not item.endswith("/*"):
        return item
    if item == "api/*":
        return [f"api/{name}.md" for name in ("glowtrain", *MODULES)]
    return sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob(item))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/ does not have."""
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    files.append(File.generated(config, "about.md", abs_src_path=str(ROOT / "README.md")))  # docs/ has a README.md
    files.append(File.generated(config, "commands.md", content=_commands()))
    files.append(File.generated(config, "api/glowtrain.md", content="\n\n".join(_top_level())))
    for tutorial in tutorials():
        files.append(File.generated(config, f"tutorials/{tutorial.name}.md", content=tutorial.page))
        for name, picture in tutorial.pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=picture))
    for name in MODULES:
        content = f"# glowtrain.{name}\n\n::: glowtrain.{name}\n"
        files.append(File.generated(config, f"api/{name}.md", content=content))
    return files


def _commands() -> str:
    """The command line by its own help."""
    command = [sys.executable, "-m", "typer", "--app", "app", "glowtrain.cli", "utils", "docs", "--name", "glowtrain"]
    page = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    page = OPTION.sub(lambda option: option[1] + option[2].replace("*", "&#42;"), page)  # not emphasis
    return page.replace("# `glowtrain`", "# Command line", 1)


def _top_level() -> Iterator[str]:
    """The page of the names of ``glowtrain``, each where it is defined."""
    yield "# glowtrain"
    for name in sorted({*glowtrain.__all__, *glowtrain._HOMES} - {*glowtrain._MODULES}):
        yield f"::: {glowtrain._HOMES[name]}.{name}\n    options:\n      show_root_heading: true"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead where they do in the repository."""
    pages = {_source(file): file.src_uri for file in files}
    decisions = min(uri for uri in pages.values() if uri.startswith("adr/"))
    return Links(ROOT, {**pages, "docs/adr": decisions}, config.repo_url).rewrite(markdown, _source(page.file))


def _source(file: File) -> str:
    """Where a page stands in the repository."""
    if file.abs_src_path is None:
        notebook = re.fullmatch(r"tutorials/(\w+)\.md", file.src_uri)
        return f"examples/notebooks/{notebook[1]}.ipynb" if notebook else f"build/{file.src_uri}"
    return Path(file.abs_src_path).relative_to(ROOT).as_posix()


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Docstrings are read as Markdown, which has no roles."""
    return ROLE.sub("<code>", html) if page.file.src_uri.startswith("api/") else html
