"""Check every link of a built site without a network: files and anchors must exist, other addresses be well formed.

python .ci/links.py FOLDER
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collect what a page links to and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in the start of an element."""
        for name, value in attrs:
            if name in ("href", "src", "data") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def fault(link: str, page: Path, pages: dict[Path, Page]) -> str:
    """Say what is wrong with a link; nothing, if it leads somewhere."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return "" if "." in parts.netloc and not set(link) & set(' <>"') else "is no address"
    if parts.scheme or parts.netloc:
        return "" if parts.scheme in ("data", "mailto") else "has an unknown scheme"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return "has no file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "has no such anchor"
    return ""


def main(folder: Path) -> int:
    """Name every broken link; return how many there are."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    if not pages:
        sys.exit(f"{folder} has no pages; build them first: make docs")
    links = [(link, path) for path, page in pages.items() for link in dict.fromkeys(page.links)]
    broken = [(link, path, what) for link, path in links if (what := fault(link, path, pages))]
    for link, path, what in broken:
        sys.stderr.write(f"{path.relative_to(folder.resolve())}: {link} {what}\n")
    sys.stdout.write(f"{len(links)} links in {len(pages)} pages, {len(broken)} broken\n")
    return len(broken)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
