"""A figure that depends on the private votes: it may be shown at the site and nowhere else."""

from __future__ import annotations

from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")

BADGE = "not releasable"


class SiteOnly(Generic[T]):
    """Hold a value that is itself private, so that no log, message, file or copy takes it along.

    A data-dependent privacy bound is a function of the exact votes, so publishing it is a release without a charge.
    This is not a dataclass on purpose: ``dataclasses.asdict`` walks into dataclasses and would unwrap it.

    Guarantee: representation, formatting, pickling, copying, comparison and JSON either fail or show the badge.
    Raises TypeError on every attempt to serialise or compare.
    """

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        """Wrap ``value``."""
        self._value = value

    def open_at_site(self) -> T:
        """Return the private value. Call it only where the output stays on the site's own screen."""
        return self._value

    def __repr__(self) -> str:
        """Show the badge only: representations end up in logs."""
        return f"SiteOnly(<{BADGE}>)"

    def __format__(self, spec: str, /) -> str:
        """Show the badge whatever format is asked for."""
        return repr(self)

    def __eq__(self, other: object) -> NoReturn:
        """Refuse: a comparison is an answer about private data."""
        raise TypeError("a SiteOnly value is private and cannot be compared; open it at the site")

    def __hash__(self) -> NoReturn:
        """Refuse: a hash identifies the value."""
        raise TypeError("a SiteOnly value is private and cannot be hashed")

    def __reduce__(self) -> NoReturn:
        """Refuse pickling and copying: a data-dependent figure leaves only through a sanitised release."""
        raise TypeError("a SiteOnly value cannot be serialised; use the sanitised release, which has its own charge")

    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        """Refuse pickling and copying: a data-dependent figure leaves only through a sanitised release."""
        self.__reduce__()
