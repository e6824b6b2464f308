"""The README as a package index shows it: a page by itself, where relative links lead nowhere."""

from __future__ import annotations

import re
from urllib.parse import urlsplit


def web_address(remote: str) -> str | None:
    """Returns the page of a repository, given git's address of it; None if it has no page.

    Without what may be secret in an address: ``https://user:token@host/owner/name.git`` and
    ``git@host:owner/name.git`` both become ``https://host/owner/name``.
    """
    ssh = re.fullmatch(r"(?:ssh://)?[\w.-]+@([\w.-]+)[:/](?!/)([\w./-]+?)(?:\.git)?/?", remote)
    if ssh:
        return f"https://{ssh[1]}/{ssh[2]}"
    parts = urlsplit(remote)
    if parts.scheme != "https" or not parts.hostname:
        return None
    return f"https://{parts.hostname}{parts.path.rstrip('/').removesuffix('.git')}"


def for_index(text: str, address: str | None, revision: str) -> str:
    """Returns a README whose links and pictures show outside the repository.

    Args:
        text: Markdown with links relative to the root of the repository.
        address: page of the repository, such as ``https://host/owner/name``. None: pictures are
            left out, and of a link its text remains.
        revision: tag or commit that the links lead to.
    """

    def replaced(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        if target.startswith(("#", "http:", "https:", "mailto:")):
            return match[0]
        if address is None:
            return "" if picture else label
        return f"{picture}[{label}]({address}/{'raw' if picture else 'blob'}/{revision}/{target})"

    return re.sub(r"(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^()\s]+)\)", replaced, text)
