# SPDX-License-Identifier: Apache-2.0
"""Errors of the wire layer, for bytes that break the format.

WireError
└── BatchError                  a record batch is refused; has a `code`
    ├── CorruptBatchError       CORRUPT_BATCH: torn, or the checksum does not match
    ├── InvalidBatchError       INVALID_BATCH: breaks a rule of the format
    ├── BatchTooLargeError      MESSAGE_TOO_LARGE: over a size limit, before or after decompression
    └── UnsupportedBatchError   UNSUPPORTED_FORMAT: magic, codec, attribute or field that this version does not support
"""

from __future__ import annotations

from lograft.wire.codes import ErrorCode


class WireError(Exception):
    """Base class of the errors of this package."""


class BatchError(WireError):
    """A record batch is refused.

    Attributes:
        code: the reason, for the peer.
        message: what is wrong, with the numbers, for people.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CorruptBatchError(BatchError):
    """The bytes are torn or damaged. They are not the batch that was encoded."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_BATCH, message)


class InvalidBatchError(BatchError):
    """The batch breaks a rule of the batch format."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_BATCH, message)


class BatchTooLargeError(BatchError):
    """The batch exceeds a size limit, before or after decompression."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


class UnsupportedBatchError(BatchError):
    """The batch has a magic number, codec, attribute or field that this version does not support."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_FORMAT, message)
