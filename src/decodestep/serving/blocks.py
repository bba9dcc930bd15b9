"""An answer in blocks, as APIs have it whose answers are lists: of content, or of output items."""

from __future__ import annotations

from decodestep.chat.answer_reader import Part


class Block:
    """Parts of one kind that follow each other, or those of one call.

    index: among the blocks of the answer. kind, id, name: of its first part. text: so far; of a call, its arguments.
    """

    def __init__(self, index: int, part: Part) -> None:
        self.index, self.kind, self.id, self.name = index, part.kind, part.id, part.name
        self._call = part.index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def takes(self, part: Part) -> bool:
        return (self.kind, self._call) == (part.kind, part.index)

    def add(self, text: str) -> None:
        self._pieces.append(text)


def add_part(blocks: list[Block], part: Part) -> str:
    """Adds a part of an answer to the last of its blocks, or to a new one after it. Returns the text that is added."""
    text = part.text
    if not (blocks and blocks[-1].takes(part)):
        if part.kind != "call" and any(block.kind == part.kind for block in blocks):
            text = text.removeprefix("\n")  # with which the reader joins it to what came before
        blocks.append(Block(len(blocks), part))
    blocks[-1].add(text)
    return text
