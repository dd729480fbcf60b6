"""``Closing``: what ends with its ``with`` block by its own ``close``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

Closes = TypeVar("Closes", bound="Closing")


class Closing(ABC):
    """A context manager that gives itself and is closed at the end, whatever was raised."""

    @abstractmethod
    def close(self) -> None:
        """Ends it; harmless if it has ended."""

    def __enter__(self: Closes) -> Closes:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
