"""Blocks: the code of a document, and the data it takes. Owns how blocks are found between their fences."""

from __future__ import annotations

import gzip
import re
import shutil
import textwrap
from pathlib import Path

DOCUMENTS = Path(__file__).parent / "documents"
IMAGES = Path(__file__).parents[2] / "examples" / "data" / "FashionMNIST" / "raw"

_FENCE = re.compile(r"\s*```\s*(\w*)\s*")


def document(name: str, start: str = "", stop: str = "") -> str:
    """Return a document's text, from the words `start` on and up to the words `stop` after them.

    Raises:
        ValueError: The document does not hold these words.
    """
    text = (DOCUMENTS / name).read_text(encoding="utf-8")
    text = text[text.index(start) :]
    return text[: text.index(stop, len(start))] if stop else text


def code_blocks(text: str, language: str = "python") -> list[str]:
    r"""Return the fenced blocks of one language ("" for fences that name none), each without its indentation.

    >>> code_blocks("so:\n  ``` python\n  if x:\n      y\n  ```\nand\n```bash\nls\n```")
    ['if x:\n    y\n']
    """
    blocks: list[str] = []
    inside: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        fence = _FENCE.fullmatch(line)
        if fence is None:
            lines.append(line)
            continue
        if inside is None:
            inside = fence[1]
        else:
            if inside == language:
                blocks.append(textwrap.dedent("\n".join(lines)) + "\n")
            inside = None
        lines = []
    if inside is not None:
        raise ValueError(f"a fence is not closed; the last block begins {lines[:1]}")
    return blocks


def substitute(code: str, old: str, new: str) -> str:
    """Replace the one place where `old` stands; a document that no longer says it is an error."""
    if code.count(old) != 1:
        raise ValueError(f"{old!r} stands {code.count(old)} times in the code, not once")
    return code.replace(old, new)


def unpack_images(folder: Path) -> None:
    """Lay the committed images where torchvision's FashionMNIST(root=folder) looks for them."""
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in IMAGES.glob("*.gz"):
        with gzip.open(packed) as source, (raw / packed.stem).open("wb") as target:
            shutil.copyfileobj(source, target)
