"""Every error that patevolve raises on purpose, and the exit code each ends with.

::

    PatevolveError                     1
    ├── InputError                     2   what a person supplied cannot be used as it is
    │   ├── ParameterError             2   a number outside its domain (NaN, zero, bool, text, ...)
    │   ├── PlanError                  2   the plan file
    │   └── DataError                  4   the private or public data
    ├── PolicyError                    3   the site's policy is missing or forbids it (a veto)
    ├── BudgetError                    5   the site's budget does not cover the question
    ├── LedgerError                    6   a ledger is damaged, forked, rolled back or in use
    │   └── RollbackError              6   a site's folder is older than what the site itself had signed
    ├── MessageError                   7   a message is malformed, too large, or of another plan
    ├── QuorumError                    8   too few sites answered
    ├── ReleaseError                   9   the release gate did not pass
    └── UnsupportedEventError         10   a ledger event of a kind that this version does not know

Exit code 0 is success; 1 is an unforeseen fault, worth a bug report. Messages say what was found, what was
expected and what to do. Texts of errors stay at the site: only ``code`` may travel.
"""

from __future__ import annotations


class PatevolveError(Exception):
    """Base of every deliberate error; ``exit_code`` ends the process, ``code`` may travel in a message."""

    exit_code = 1
    code = "error"


class InputError(PatevolveError):
    """Something that a person supplied cannot be used as it is."""

    exit_code = 2
    code = "input"


class ParameterError(InputError, ValueError):
    """A number lies outside the domain in which its formula holds."""

    code = "parameter"


class PlanError(InputError):
    """The plan is not well formed or asks for the impossible."""

    code = "plan"


class DataError(InputError):
    """Data cannot be read, or is not what the plan's schema says."""

    exit_code = 4
    code = "data"


class PolicyError(PatevolveError):
    """The site's policy is missing, unreadable, or does not permit what was asked."""

    exit_code = 3
    code = "policy"


class BudgetError(PatevolveError):
    """A charge would exceed what the site's policy allows for the life of its ledger."""

    exit_code = 5
    code = "budget"


class LedgerError(PatevolveError):
    """A ledger is damaged, forked, rolled back, or in use by another process."""

    exit_code = 6
    code = "ledger"


class RollbackError(LedgerError):
    """A site's ledger lacks a row that the site had signed: an older copy was put back."""

    code = "rollback"


class MessageError(PatevolveError):
    """A message is malformed, too large, out of order, or belongs to another plan or version."""

    exit_code = 7
    code = "message"


class QuorumError(PatevolveError):
    """Fewer sites answered than the plan's noise shares assume."""

    exit_code = 8
    code = "quorum"


class ReleaseError(PatevolveError):
    """The release gate did not pass, so nothing was released."""

    exit_code = 9
    code = "release"


class UnsupportedEventError(PatevolveError):
    """A privacy event of unknown kind: its cost cannot be known, so nothing may be composed with it."""

    exit_code = 10
    code = "event"
