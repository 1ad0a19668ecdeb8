"""Open pages in a real browser: at every width, light and dark, nothing is off the screen."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from muster.report.html import html_of
from tests.planner.plans import plan_of
from tests.report.test_html import page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
WIDTHS = (320, 390, 768, 1024, 1280, 1600)
SCHEMES = {"dark": 0, "light": 1}
OPENED = ("dense on a pod", "experts on GPUs", "does not fit", "tiny")
LONGEST = "a-model-with-a-very-long-name-that-has-no-space-in-it-" * 3

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

# The page forbids scripts, so a page around it measures it in frames of each width.
MEASURE = """<!doctype html><body style="margin:0"><script>
const widths = [%s];
let open = widths.length;
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `border:0;width:${width}px;height:900px`;
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    page.querySelectorAll("details").forEach((each) => (each.open = %s));
    const beyond = [...page.querySelectorAll("main *")].filter((each) =>
      !each.closest("svg, thead") && each.getBoundingClientRect().right > width + 0.5);
    const style = frame.contentWindow.getComputedStyle(page.body);
    const line = document.createElement("p");
    line.textContent = `width=${width} scroll=${root.scrollWidth} beyond=${beyond.length}` +
      ` first=${beyond[0] ? beyond[0].className || beyond[0].tagName : "-"}` +
      ` background=${style.backgroundColor} height=${root.scrollHeight};`;
    document.body.append(line);
    if (--open === 0) document.title = "done";
  };
  frame.src = "page.html";
  document.body.append(frame);
}
</script></body>"""


def chromium(*arguments: str, folder: Path, scheme: str) -> str:
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--allow-file-access-from-files",
            f"--user-data-dir={folder / 'profile'}",
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
            "--virtual-time-budget=5000",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def measured(folder: Path, scheme: str, *, details: bool) -> list[dict[str, str]]:
    """What the browser says of page.html in `folder`, one for each width."""
    code = MEASURE % (", ".join(map(str, WIDTHS)), str(details).lower())
    (folder / "measure.html").write_text(code, "utf-8")
    dom = chromium("--dump-dom", (folder / "measure.html").as_uri(), folder=folder, scheme=scheme)
    lines = re.findall(r"<p>(width=.*?);</p>", dom)
    assert len(lines) == len(WIDTHS), dom[-2000:]
    return [dict(re.findall(r"(\w+)=(rgb\([^)]*\)|\S+)", line)) for line in lines]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", OPENED)
def test_no_page_scrolls_sideways(name: str, scheme: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page_of(name), "utf-8")
    for found in measured(tmp_path, scheme, details=True):
        assert int(found["scroll"]) <= int(found["width"]), found
        assert found["beyond"] == "0", found
        assert (
            found["background"]
            == {
                "light": "rgb(245, 246, 248)",
                "dark": "rgb(15, 19, 24)",
            }[scheme]
        )


def test_a_long_name_breaks(tmp_path: Path) -> None:
    plan = plan_of("llama-3-8b", "v5p:4x4x4", "1M")
    html = html_of(plan).replace(plan.architecture.name, LONGEST)
    (tmp_path / "page.html").write_text(html, "utf-8")
    for found in measured(tmp_path, "light", details=False):
        assert int(found["scroll"]) <= int(found["width"]), found


def test_it_is_printed(tmp_path: Path) -> None:
    page, pdf = tmp_path / "page.html", tmp_path / "page.pdf"
    page.write_text(page_of("tiny"), "utf-8")
    chromium(f"--print-to-pdf={pdf}", page.as_uri(), folder=tmp_path, scheme="dark")
    assert pdf.read_bytes().startswith(b"%PDF")
