"""The stream: the same batches for any number of hosts, and exactly on after a restore."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers

from muster.errors import BadInput
from muster.training.batch import Batch
from muster.training.data import DataConfig, Stream, open_stream
from muster.training.data.documents import Document, Joined
from muster.training.data.order import VisitOrder
from muster.training.data.reader import Chains, RowReader
from muster.training.data.tokenizer import ByteTokenizer
from tests.training.data.corpora import opened, words, write_jsonl, write_text, write_tokenizer

DOCUMENTS = [words(number) for number in range(60)]
LEAVES = ("tokens", "targets", "positions", "segments", "weights")
END = 256


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path, DOCUMENTS)


def take(stream: Stream, count: int) -> list[Batch]:
    batches = list(islice(stream, count))
    assert len(batches) == count
    return batches


def joined(of_hosts: Sequence[Sequence[Batch]]) -> list[Batch]:
    """The global batches of those of all hosts."""
    return [
        jax.tree.map(lambda *rows: np.concatenate(rows), *batches)
        for batches in zip(*of_hosts, strict=True)
    ]


def same(some: Sequence[Batch], others: Sequence[Batch]) -> bool:
    assert len(some) == len(others)
    return all(
        np.array_equal(getattr(one, leaf), getattr(other, leaf))
        for one, other in zip(some, others, strict=True)
        for leaf in LEAVES
    )


def texts_of(batches: Sequence[Batch]) -> list[str]:
    """The documents in batches of byte tokens, row by row; the end id splits them."""
    texts = []
    for row in range(np.asarray(batches[0].tokens).shape[0]):
        chain = bytearray()
        for batch in batches:
            for token, target, segment in zip(
                *(np.asarray(getattr(batch, leaf))[row] for leaf in LEAVES_OF_TEXT), strict=True
            ):
                if segment:
                    chain.append(token)
                    if target == END:
                        texts.append(chain.decode())
                        chain.clear()
        assert not chain, "a document without an end"
    return texts


LEAVES_OF_TEXT = ("tokens", "targets", "segments")


def test_the_batch_is_of_the_stated_shape(data: Path) -> None:
    with opened(data, processes=2) as stream:
        batch = next(stream)
    assert all(np.asarray(getattr(batch, leaf)).shape == (4, 64) for leaf in LEAVES)
    assert (np.asarray(batch.segments) > 0).all(), "padding though there is more text"


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("documents", [60, 3])
def test_the_global_batches_do_not_depend_on_the_number_of_hosts(
    documents: int, shuffle: bool, packing: bool, tmp_path: Path
) -> None:
    if documents < 8 and not packing:
        return  # fewer documents than rows, which packing alone spreads
    long = ["".join(f"{at} of {number}, " for at in range(200)) for number in range(3)]
    data = write_jsonl(tmp_path, long if documents == 3 else DOCUMENTS)
    of_counts = []
    for processes in (1, 2, 4):
        of_hosts = []
        for process in range(processes):
            with opened(
                data, process=process, processes=processes, shuffle=shuffle, packing=packing
            ) as stream:
                of_hosts.append(take(stream, 25))
        of_counts.append(joined(of_hosts))
    assert same(of_counts[0], of_counts[1])
    assert same(of_counts[0], of_counts[2])
    assert not same(of_counts[0][:1], of_counts[0][1:2])


def hosts(data: Path, processes: int, **settings: Any) -> list[Stream]:
    return [
        opened(data, process=process, processes=processes, **settings)
        for process in range(processes)
    ]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 4), (4, 2), (2, 1)])
@pytest.mark.parametrize("packing", [True, False])
def test_a_resumed_stream_goes_on_exactly_with_any_number_of_hosts(
    before: int, after: int, packing: bool, data: Path
) -> None:
    with opened(data, packing=packing) as straight:
        expected = take(straight, 40)
    streams = hosts(data, before, packing=packing)
    done = 0
    for more in (0, 1, 6, 13):
        part = joined([take(stream, more) for stream in streams])
        assert same(part, expected[done : done + more])
        done += more
        time.sleep(0.02)  # let the background run ahead of what was handed out
        state = np.concatenate([stream.state() for stream in streams])
        assert state.dtype == np.int64
        assert state.shape == (8, 3)
        resumed = hosts(data, after, packing=packing)
        for stream in resumed:
            stream.restore(state)
        assert np.array_equal(np.concatenate([stream.state() for stream in resumed]), state)
        assert same(joined([take(stream, 20) for stream in resumed]), expected[done : done + 20])
        for stream in resumed:
            stream.close()
    for stream in streams:
        stream.close()


def test_a_stream_can_go_back(data: Path) -> None:
    with opened(data) as stream:
        take(stream, 3)
        state = stream.state()
        later = take(stream, 4)
        stream.restore(state)
        assert same(take(stream, 4), later)


def test_the_state_is_that_of_the_batch_handed_out(data: Path) -> None:
    with opened(data) as stream:
        assert not stream.state().any()
        next(stream)
        first = stream.state()
        time.sleep(0.05)
        assert np.array_equal(stream.state(), first)
        next(stream)
        assert not np.array_equal(stream.state(), first)


def test_two_streams_are_the_same_and_another_seed_is_not(data: Path) -> None:
    def batches(**settings: Any) -> list[Batch]:
        with opened(data, **settings) as stream:
            return take(stream, 5)

    assert same(batches(seed=1), batches(seed=1))
    assert not same(batches(seed=1), batches(seed=2))
    assert not same(batches(seed=1), batches(shuffle=False))


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("epochs", [1, 3])
def test_epochs_visit_every_document_exactly_once_each(
    epochs: int, packing: bool, data: Path
) -> None:
    T = 64 if packing else 1024
    with opened(data, epochs=epochs, packing=packing, sequence_length=T) as stream:
        batches = list(stream)
        with pytest.raises(StopIteration):
            next(stream)
    assert Counter(texts_of(batches)) == dict.fromkeys(DOCUMENTS, epochs)


def test_without_packing_a_row_is_the_beginning_of_one_document(data: Path) -> None:
    with opened(data, packing=False, epochs=1) as stream:
        batches = list(stream)
    assert len(batches) == -(-len(DOCUMENTS) // 8)
    by_beginning = {text.encode()[:20]: text.encode() for text in DOCUMENTS}
    beginnings = set()
    for batch in batches:
        for row in range(8):
            tokens, targets, segments, weights = (
                np.asarray(getattr(batch, leaf))[row]
                for leaf in ("tokens", "targets", "segments", "weights")
            )
            used = int(segments.sum())
            if not used:
                continue
            text = by_beginning[bytes(tokens[:20].tolist())[:used].rstrip(b"\0")]
            chain = [*text, END]
            assert used == min(len(text), 64)
            assert tokens.tolist() == list(text[:64]) + [0] * (64 - used)
            assert targets.tolist() == chain[1 : used + 1] + [0] * (64 - used)
            assert weights.tolist() == segments.tolist() == [1] * used + [0] * (64 - used)
            beginnings.add(text)
    assert len(beginnings) == len(DOCUMENTS)
    assert max(map(len, beginnings)) > 64 > min(map(len, beginnings))


def test_an_epoch_of_fewer_documents_than_rows_has_every_token_once(tmp_path: Path) -> None:
    texts = ["a" * 700, "b" * 300, "c" * 3]
    with opened(write_jsonl(tmp_path, texts), epochs=1) as stream:
        batches = list(stream)
    used = np.concatenate([np.asarray(b.tokens)[np.asarray(b.segments) > 0] for b in batches])
    ends = np.concatenate([np.asarray(b.targets)[np.asarray(b.segments) > 0] for b in batches])
    assert Counter(map(chr, used.tolist())) == {"a": 700, "b": 300, "c": 3}
    assert Counter(ends.tolist()) == {
        ord("a"): 699,
        ord("b"): 299,
        ord("c"): 2,
        END: 3,
    }
    rows_used = (np.asarray(batches[0].segments) > 0).any(axis=1)
    assert rows_used.all(), "a row without text"


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_whose_share_is_empty_go_on_to_the_next_epoch(shuffle: bool, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path, ["a" * 700, "", "c"])
    with opened(data, shuffle=shuffle) as stream:
        assert all((np.asarray(batch.segments) > 0).all() for batch in take(stream, 10))


def test_hosts_whose_rows_have_ended_go_on_with_padding(data: Path) -> None:
    with opened(data, epochs=1) as whole:
        count = len(list(whole))
    for stream in hosts(data, 4, epochs=1):
        with stream:
            batches = take(stream, count + 3)
        assert np.asarray(batches[0].weights).any()
        for batch in batches[count:]:
            assert not any(np.asarray(getattr(batch, leaf)).any() for leaf in LEAVES)


def test_the_end_survives_a_restore(data: Path) -> None:
    with opened(data, epochs=1) as stream:
        list(stream)
        end = stream.state()
    with opened(data, epochs=1) as again:
        again.restore(end)
        with pytest.raises(StopIteration):
            next(again)


class Counted:
    """Documents that count how often each one is read."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Document:
        self.reads[index] += 1
        return Document(content=self.texts[index])

    def where(self, index: int) -> str:
        return f"document {index}"


def test_each_host_reads_its_own_documents_alone_and_once() -> None:
    order = VisitOrder(documents=len(DOCUMENTS), rows=8, seed=5)
    everything: Counter[int] = Counter()
    for process in range(4):
        source = Counted(DOCUMENTS)
        tokenizer = ByteTokenizer(vocab_size=300, eos_token_id=None)
        rows = range(2 * process, 2 * process + 2)
        reader = RowReader(
            Chains(source, tokenizer, vocab_size=300),
            order,
            rows=rows,
            sequence_length=32,
            packing=True,
            epochs=1,
        )
        while np.asarray(next(reader).segments).any():
            pass
        visits = (order.visit(row, 0, index) for row in rows for index in range(8))
        assert source.reads == Counter(visit.document for visit in visits if visit is not None)
        everything += source.reads
    assert everything == Counter(range(len(DOCUMENTS)))


def test_a_large_corpus_is_opened_without_reading_it(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a document was read")

    monkeypatch.setattr(Joined, "__getitem__", never)
    opened(data, batch_sequences=1).close()
    with pytest.raises(AssertionError):
        opened(data, batch_sequences=64).close()


def test_tokens_are_made_in_the_background(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    original = ByteTokenizer.encode

    def encode(tokenizer: ByteTokenizer, texts: Sequence[str]) -> list[np.ndarray]:
        threads.add(threading.current_thread())
        return original(tokenizer, texts)

    with opened(data, batch_sequences=1) as stream:
        monkeypatch.setattr(ByteTokenizer, "encode", encode)
        take(stream, 10)
    assert threads
    assert threading.current_thread() not in threads
    assert not any(thread.is_alive() for thread in threads), "close left the thread running"


def test_an_error_in_the_background_reaches_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    good = [f'{{"text": "{words(number)}"}}' for number in range(200)]
    path.write_text("\n".join([*good[:150], '{"text": "cut of', *good[150:]]))
    with (
        opened(path, shuffle=False) as stream,
        pytest.raises(BadInput, match=r"data\.jsonl: line 151 is not valid JSON: column 10: "),
    ):
        take(stream, 1000)


def test_a_tokenizer_file_and_several_formats(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    texts = write_text(tmp_path / "texts", DOCUMENTS[:30])
    more = write_jsonl(tmp_path, DOCUMENTS[30:])
    settings: dict[str, Any] = {
        "paths": (texts, more),
        "tokenizer": str(tmp_path),
        "sequence_length": 32,
    }
    with opened(texts, **settings, epochs=1) as stream:
        batches = list(stream)
        assert stream.description.files == {"text": 30, "JSON lines": 1}
        assert stream.description.documents == 60
    ends = sum(int((np.asarray(batch.targets) == 0).sum()) for batch in batches)
    padding = sum(int((np.asarray(batch.segments) == 0).sum()) for batch in batches)
    assert ends - padding == 60  # <|endoftext|> has the id 0, as padding has


def test_a_template_that_ends_every_text_ends_no_piece_and_no_document_twice(
    tmp_path: Path,
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(write_tokenizer(tmp_path)))
    end = "<|endoftext|>"
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    book = write_text(tmp_path / "book", ["".join(f"Line {n}.\n" for n in range(9000))])
    with opened(book, tokenizer=str(tmp_path), epochs=1) as stream:
        batches = list(stream)
        pieces = stream.description.documents
    assert pieces > 8
    of = {leaf: np.stack([np.asarray(getattr(b, leaf)) for b in batches]) for leaf in LEAVES}
    real = of["segments"] > 0
    assert not (of["tokens"][real] == 0).any()
    assert (of["targets"][real & (of["weights"] == 1)] == 0).sum() == 1
    assert (of["weights"][real] == 0).sum() == pieces - 1


def test_few_large_texts_spread_over_all_rows(tmp_path: Path) -> None:
    text = "".join(f"Paragraph {number} of a long book.\n\n" for number in range(5000))
    with opened(write_text(tmp_path / "book", [text]), epochs=1) as stream:
        batches = list(stream)
        assert stream.description.documents > 8
    starts = {bytes(np.asarray(batches[0].tokens)[row, :20].tolist()) for row in range(8)}
    assert len(starts) == 8
    assert all(start.startswith(b"Paragraph") for start in starts)
    weights = np.concatenate([np.asarray(batch.weights).ravel() for batch in batches])
    tokens = sum(int((np.asarray(batch.segments) > 0).sum()) for batch in batches)
    assert tokens == len(text)
    assert tokens - weights.sum() == stream.description.documents - 1  # no piece but the last ends


def test_synthetic_data_is_random_full_and_the_same_each_time() -> None:
    config = DataConfig(synthetic=True, sequence_length=128, batch_sequences=4, seed=9)
    with open_stream(config, 1000) as one, open_stream(config, 1000) as other:
        batches = take(one, 3)
        assert same(batches, take(other, 3))
    tokens = np.concatenate([np.asarray(batch.tokens) for batch in batches])
    assert 0 <= tokens.min() < 20
    assert 980 < tokens.max() < 1000
    assert len(np.unique(tokens)) > 700
    assert all(np.asarray(batch.weights).all() for batch in batches)
    assert all((np.asarray(batch.segments) == 1).all() for batch in batches)
