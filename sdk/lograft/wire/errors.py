# SPDX-License-Identifier: Apache-2.0
"""Errors of the wire layer: bytes that are not what they should be.

WireError
└── BatchError                  a record batch is refused; has a `code`
    ├── CorruptBatchError       CORRUPT_BATCH: torn, or the checksum does not match
    ├── InvalidBatchError       INVALID_BATCH: breaks a rule of the format
    ├── BatchTooLargeError      MESSAGE_TOO_LARGE: over a size limit, as it stands or once inflated
    └── UnsupportedBatchError   UNSUPPORTED_FORMAT: magic, codec, attribute or field that this version does not speak
"""

from __future__ import annotations

from lograft.wire.codes import ErrorCode


class WireError(Exception):
    """Base of the errors of this package."""


class BatchError(WireError):
    """A record batch is refused.

    Attributes:
        code: the reason that goes to the peer.
        message: text for people: what is wrong, with the numbers.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CorruptBatchError(BatchError):
    """The bytes are torn or damaged: they are not the batch that somebody encoded."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_BATCH, message)


class InvalidBatchError(BatchError):
    """The batch breaks a rule of the batch format."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_BATCH, message)


class BatchTooLargeError(BatchError):
    """The batch is over a size limit, as it stands or once inflated."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


class UnsupportedBatchError(BatchError):
    """The batch has a magic number, codec, attribute or field that this version does not speak."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_FORMAT, message)
