"""Read a page as a browser does: its elements, text and where it points to."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}
POINTERS = {"src", "href", "data", "action", "poster", "srcset", "xlink:href"}


@dataclass
class Page:
    tags: list[str] = field(default_factory=list)
    pointers: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    labelled_by: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    text: str = ""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        page = self.page
        page.tags.append(tag)
        page.pointers += [value for name, value in values.items() if name in POINTERS]
        page.handlers += [name for name in values if name.startswith("on")]
        page.ids += [values["id"]] if "id" in values else []
        page.labelled_by += [values["aria-labelledby"]] if "aria-labelledby" in values else []
        page.pictures += [values.get("aria-label", "")] if values.get("role") == "img" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.page.text += data
        if self.open and self.open[-1] in {"h1", "h2", "h3"}:
            self.page.headings.append(data.strip())


def read_page(html: str) -> Page:
    """Read a page; fails where elements are not closed in order."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader.page
