"""Long texts are cut where the rule says, and nothing is lost."""

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.training.data.documents import Document
from muster.training.data.text_files import TextFile, best_cut


def pieces(path: Path, piece: int) -> list[Document]:
    file = TextFile(path, size=path.stat().st_size, piece=piece)
    return [file[index] for index in range(len(file))]


@settings(max_examples=150, deadline=None)
@given(
    st.text(st.sampled_from("ab \n.éß好🙂"), min_size=1, max_size=400),
    st.integers(min_value=8, max_value=100),
)
def test_pieces_are_the_text_and_one_ends_it(text: str, piece: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.txt"
        path.write_bytes(text.encode())
        cut = pieces(path, piece)
    assert "".join(str(document.content) for document in cut) == text
    assert [document.ends for document in cut] == [False] * (len(cut) - 1) + [True]
    assert all(0 < len(str(document.content).encode()) < 2 * piece for document in cut)


def test_cuts_lie_at_paragraphs_where_there_are_any(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("".join(f"Paragraph {n}.\nIts second line.\n\n" for n in range(100)))
    cut = [str(document.content) for document in pieces(path, 400)]
    assert len(cut) > 5
    assert all(part.startswith("Paragraph") and part.endswith("\n\n") for part in cut)


def test_cuts_lie_at_lines_where_there_are_no_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("".join(f"line {n}\n" for n in range(500)))
    assert all(str(piece.content).endswith("\n") for piece in pieces(path, 300))


def test_a_cut_never_lies_within_a_character(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("🙂" * 100)
    for piece in range(8, 30):
        assert "".join(str(document.content) for document in pieces(path, piece)) == "🙂" * 100


@pytest.mark.parametrize(
    ("ahead", "cut"),
    [
        (b"a\nb\n\nc", 5),
        (b"a\r\nb\r\n\r\nc", 8),
        (b"a\nb c", 2),
        (b"ab c", 2),
        (b"abc", 0),
        (b"", 0),
    ],
)
def test_a_paragraph_goes_before_a_line_before_a_word(ahead: bytes, cut: int) -> None:
    assert best_cut(ahead) == cut


def test_a_text_that_is_not_utf8_is_named_with_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9 au lait")
    with pytest.raises(BadInput, match=r"latin\.txt is not UTF-8 text: byte 3 is 0xe9"):
        pieces(path, 1000)


def test_pieces_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(" ".join(str(n) for n in range(2000)))
    cut = [str(document.content) for document in pieces(path, 500)]
    assert all(after.startswith(" ") for _, after in pairwise(cut))
