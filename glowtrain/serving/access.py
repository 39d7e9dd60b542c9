"""Who may ask: those that know a token, if the server has any."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glowtrain.errors import AccessError, InputError

SCHEME = "bearer "


@dataclass(frozen=True)
class Access:
    """The tokens that are taken; with none, everybody may ask. Health is told without a token: probes have none."""

    tokens: tuple[bytes, ...] = ()

    @staticmethod
    def from_file(path: Path | None) -> Access:
        """The tokens of a file, one a line. Raises :class:`InputError` for a file without, and for what cannot be sent
        as one."""
        if path is None:
            return EVERYBODY
        tokens = tuple(line.strip() for line in path.read_bytes().splitlines() if line.strip())
        if not tokens:
            raise InputError(f"{path}: no token is in it; write one on a line")
        if any(not 0x20 < byte < 0x7F for token in tokens for byte in token):
            raise InputError(
                f"{path}: a token is of letters, digits and signs of ASCII, without spaces: a header's are"
            )
        return Access(tokens)

    def check(self, authorization: Sequence[str]) -> None:
        """Raise :class:`AccessError` unless one of a request's authorizations is ``Bearer`` and a token."""
        if self.tokens and not any(map(self._is_known, authorization)):
            raise AccessError("this server asks for a token: send the header Authorization: Bearer TOKEN")

    def _is_known(self, authorization: str) -> bool:
        if not authorization.lower().startswith(SCHEME):
            return False
        given = authorization[len(SCHEME) :].strip().encode()
        return any(hmac.compare_digest(given, token) for token in self.tokens)


EVERYBODY = Access()
"""For a server without tokens."""
