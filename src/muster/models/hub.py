"""The config.json of a model on a Hugging Face hub: from the local cache, or else over https.

Environment, as Hugging Face's own tools read it: `HF_HUB_CACHE`, `HF_HOME` (where the cache lies),
`HF_HUB_OFFLINE` (never use the network), `HF_ENDPOINT` (another hub).
"""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from muster.errors import BadInput
from muster.models.hf_config import MAX_CONFIG_BYTES, parse_config, read_config

TIMEOUT_SECONDS = 10.0
TOTAL_SECONDS = 20.0
READ_BYTES = 1 << 16
DEFAULT_ENDPOINT = "https://huggingface.co"
OTHERWISE = "give the path of its config.json"

_HUB_ID = re.compile(r"(?P<org>\w[\w.-]{0,95})/(?P<name>\w[\w.-]{0,95})", re.ASCII)
_ON = {"1", "on", "yes", "true"}


def is_hub_id(text: str) -> bool:
    """Say whether a text has the form of a hub id.

    >>> is_hub_id("meta-llama/Llama-3.1-8B"), is_hub_id("llama"), is_hub_id("a/b/c")
    (True, False, False)
    """
    return _HUB_ID.fullmatch(text) is not None


def hub_config(hub_id: str) -> Mapping[str, object]:
    """Read the config.json of `org/name`.

    Raises:
        BadInput: it is in no cache, and the hub cannot be reached, does not have it or guards it.
    """
    cached = cached_config(hub_id, os.environ)
    if cached is not None:
        return read_config(cached)
    if os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in _ON:
        raise BadInput(f"{hub_id} is not in the local cache and HF_HUB_OFFLINE is set; {OTHERWISE}")
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_ENDPOINT
    if not re.fullmatch(r"https?://[^\s/]+.*", endpoint):
        raise BadInput("HF_ENDPOINT is not an http address; unset it or write https://...")
    return parse_config(
        download(f"{endpoint}/{hub_id}/resolve/main/config.json", hub_id), where=hub_id
    )


def cached_config(hub_id: str, environment: Mapping[str, str]) -> Path | None:
    """The config.json of `main`, else of any snapshot, in the local hub cache, if there is one."""
    try:
        home = Path(environment.get("HF_HOME") or "~/.cache/huggingface").expanduser()
        cache = Path(environment.get("HF_HUB_CACHE") or home / "hub").expanduser()
    except RuntimeError:  # a home of a user who does not exist
        return None
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    reference = repository / "refs" / "main"
    try:
        revision = reference.read_text("utf-8").strip() if reference.is_file() else ""
        found = [repository / "snapshots" / revision / "config.json"] if revision else []
    except (OSError, ValueError):
        found = []
    try:
        found += sorted(repository.glob("snapshots/*/config.json"))
        return next((file for file in found if file.is_file()), None)
    except OSError:
        return None


def download(url: str, hub_id: str) -> bytes:
    """Fetch a small file over https, with a short timeout and a cap on its size."""
    import http.client  # noqa: PLC0415  (only this path pays for the import)
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    try:
        request = urllib.request.Request(url, headers={"User-Agent": "muster"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            content = _read_in_time(answer, time.monotonic() + TOTAL_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            raise BadInput(f"{hub_id}: {_refusal(error.code)}; {OTHERWISE}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise BadInput(f"{hub_id}: cannot reach the hub ({reason}); {OTHERWISE}") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise BadInput(f"{hub_id}: its config.json is too large to be one; {OTHERWISE}")
    return content


def _read_in_time(answer: BinaryIO, deadline: float) -> bytes:
    """Read at most one config's bytes, and not for ever: a timeout bounds each read, not all."""
    content = b""
    while len(content) <= MAX_CONFIG_BYTES:
        if time.monotonic() > deadline:
            raise TimeoutError("it sends too slowly")
        piece = answer.read1(READ_BYTES) if hasattr(answer, "read1") else answer.read(READ_BYTES)
        if not piece:
            break
        content += piece
    return content


def _refusal(status: int) -> str:
    if status in {401, 403}:
        return "the hub does not show its config.json (gated, private or misspelt)"
    if status == 404:
        return "the hub has no such model, or it has no config.json"
    return f"the hub answered with status {status}"
