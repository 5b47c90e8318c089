"""An answer as it comes together at the router: tokens of two clusters, in order, none lost and none twice."""

from __future__ import annotations

from pddbench.deploy.emulator.messages import Finish

Piece = tuple[str, int, int]  # stage, index, token


class Reply:
    """Puts tokens in order. The clusters' connections are independent, so MD's first may overtake RLD's last."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.finish: Finish | None = None
        self.tokens_by_stage: dict[str, int] = {}
        self._next = 0
        self._early: dict[int, Piece] = {}

    @property
    def complete(self) -> bool:
        """All tokens are out and the closing figures are there."""
        return self.finish is not None and self._next == self.max_tokens

    def accept(self, stage: str, index: int, token: int) -> list[Piece]:
        """A token arrives; returns what can go out now. Raises `ValueError` when it was there already."""
        if index < self._next or index in self._early:
            raise ValueError(f"token {index} came twice")
        self._early[index] = (stage, index, token)
        out = []
        while self._next in self._early:
            piece = self._early.pop(self._next)
            self.tokens_by_stage[piece[0]] = self.tokens_by_stage.get(piece[0], 0) + 1
            out.append(piece)
            self._next += 1
        return out
