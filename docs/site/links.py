"""Where the links of a Markdown page lead on the site.

Pages are written for the repository: their links are relative to the file, and lead to other pages, to pictures and to
source. On the site those to its pages and pictures stay inside it; others lead to the repository, or are plain text
where no repository is named.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Links:
    """``pages``: addresses in the site of files and folders, by their paths in the repository at ``root``."""

    root: Path
    pages: Mapping[str, str]
    repository: str | None = None

    def rewrite(self, markdown: str, source: str) -> str:
        """The text of the page at the path ``source``; blocks of code are left as they are."""
        result, end = [], 0
        for block in FENCED.finditer(markdown):
            result += [self._prose(markdown[end : block.start()], source), block.group()]
            end = block.end()
        return "".join([*result, self._prose(markdown[end:], source)])

    def _prose(self, text: str, source: str) -> str:
        return LINK.sub(lambda link: self._link(link, source), text)

    def _link(self, link: re.Match[str], source: str) -> str:
        address = urlsplit(link["target"])
        if address.scheme or not address.path:
            return link.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), address.path))
        if path in self.pages:
            fragment = f"#{address.fragment}" if address.fragment else ""
            here = posixpath.dirname(self.pages[source])
            return f"{link['image']}[{link['text']}]({posixpath.relpath(self.pages[path], here)}{fragment})"
        if link["image"] or not (self.root / path).exists():
            return link.group()  # for mkdocs to report
        if self.repository is None:
            return f'<span title="{path}">{link["text"]}</span>'
        kind = "tree" if (self.root / path).is_dir() else "blob"
        return f"[{link['text']}]({self.repository}/{kind}/main/{path})"
