"""ArrayRecord files (records of UTF-8 text), and datasets that Hugging Face saved on disk."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from array_record.python import array_record_module

from muster.errors import BadInput, UnknownName
from muster.models.hf_config import printable, read_config
from muster.training.data.documents import Document, as_document, decode, no_such_key, reason

TRAIN_SPLIT = "train"


class ArrayRecords:
    """The records of one ArrayRecord file."""

    def __init__(self, path: Path) -> None:
        """Open the file at `path`.

        Raises:
            BadInput: not an ArrayRecord file, or without records.
        """
        self._path = path
        try:
            self._reader = array_record_module.ArrayRecordReader(str(path), READ_AT_RANDOM)
            usable = self._reader.ok()
        except (OSError, RuntimeError) as error:
            raise BadInput(
                f"cannot read {printable(path)} as ArrayRecord: {reason(error)}"
            ) from None
        if not usable:
            raise BadInput(f"{printable(path)} is not an ArrayRecord file, or is cut off")
        if not len(self):
            raise BadInput(f"{printable(path)} is empty; it has no records")

    def __len__(self) -> int:
        return int(self._reader.num_records())

    def __getitem__(self, index: int) -> Document:
        try:
            (content,) = self._reader.read([index])
        except (OSError, RuntimeError, IndexError) as error:
            raise BadInput(
                f"cannot read record {index} of {printable(self._path)}: {reason(error)}"
            ) from None
        return Document(content=decode(content, where=self.where(index)))

    def where(self, index: int) -> str:
        """The file and the record of a document."""
        return f"{printable(self._path)}: record {index}"


READ_AT_RANDOM = "readahead_buffer_size:0"


class SavedDataset:
    """A folder that `Dataset.save_to_disk` wrote, its Arrow files mapped into memory."""

    def __init__(self, folder: Path, *, text_key: str) -> None:
        """Map the files that the folder's `state.json` names.

        Raises:
            BadInput: a file is missing or not Arrow, there are no rows, or no column `text_key`.
        """
        self._folder = folder
        self._text_key = text_key
        files = arrow_files(folder)
        chunks: list[pa.Array] = []
        for file in files:
            table = _mapped_table(file)
            if text_key not in table.column_names:
                raise no_such_key(text_key, table.column_names, where=printable(folder))
            chunks += table.column(text_key).chunks
        self._chunks = chunks
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self.size = sum(file.stat().st_size for file in files)
        if not len(self):
            raise BadInput(f"{printable(folder)} is empty; the saved dataset has no rows")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Document:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        where = self.where(index)
        try:
            value = self._chunks[number][index - int(self._starts[number])].as_py()
        except UnicodeDecodeError:
            raise BadInput(f"{where} is not UTF-8 text") from None
        return as_document(value, text_key=self._text_key, where=where)

    def where(self, index: int) -> str:
        """The folder and the row of a document."""
        return f"{printable(self._folder)}: row {index}"


def saved_dataset_folder(folder: Path) -> Path | None:
    """The folder of one saved dataset that `folder` is, or the train split of several.

    Raises:
        BadInput: there are splits, and none is called train.
    """
    if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        return folder
    if not (folder / "dataset_dict.json").is_file():
        return None
    splits = read_config(folder / "dataset_dict.json").get("splits")
    names = [str(name) for name in splits] if isinstance(splits, list) else []
    if TRAIN_SPLIT not in names:
        raise UnknownName(
            f"split of {printable(folder)}", TRAIN_SPLIT, names, note=_splits_note(folder, names)
        )
    return folder / TRAIN_SPLIT


def _splits_note(folder: Path, names: list[str]) -> str:
    """What to give instead of a folder of splits without one to train on."""
    if not names:
        return "its dataset_dict.json names no splits"
    return f"give the folder of one: {', '.join(printable(folder / name) for name in names[:4])}"


def arrow_files(folder: Path) -> list[Path]:
    """The Arrow files of a saved dataset, in the order of its `state.json`."""
    entries = read_config(folder / "state.json").get("_data_files")
    named = isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("filename"), str) for entry in entries
    )
    if not named:
        raise BadInput(f"{printable(folder / 'state.json')} names no data files")
    assert isinstance(entries, list)
    files = [folder / Path(entry["filename"]).name for entry in entries]
    for file in files:
        if not file.is_file():
            raise BadInput(f"{printable(folder)} lacks {file.name}, which its state.json names")
    return files


def _mapped_table(file: Path) -> pa.Table:
    """The table of an Arrow stream; its columns stay on disk until they are touched."""
    try:
        return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInput(f"cannot read {printable(file)} as Arrow: {reason(error)}") from None
