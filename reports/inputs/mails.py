# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Mails as they were sent, one or a mailbox of them: texts and attachments, without the way in which
they were encoded.

Cannot know: what lay between the parts of a mail that was cut.
"""

import email
import email.message
import re
from collections.abc import Iterator

from mmscope.drgn.text.packed import PackedError

MOST_PARTS = 200
# A line of its own before each mail of a mailbox; one of them is in each mail's head.
_FROM = re.compile(rb"^From \S+ [^\n]*\d\d:\d\d:\d\d[^\n]*\n", re.MULTILINE)
_HEAD = re.compile(
    rb"^(?:Message-I[Dd]: *<|MIME-Version: *\d|Content-Transfer-Encoding: )", re.MULTILINE | re.I
)
_FIELD = re.compile(rb"[A-Za-z][A-Za-z0-9-]{1,60}:")


def is_mail(head: bytes) -> bool:
    """True if a file begins with the head of a mail."""
    head = head[:16384].replace(b"\r\n", b"\n")
    if first := _FROM.match(head):
        head = head[first.end() :]
    return bool(_FIELD.match(head) and _HEAD.search(head.partition(b"\n\n")[0]))


def parts_of(data: bytes) -> Iterator[tuple[str, bytes]]:
    """
    Parts of mails that are something by themselves, and what each is called.

    :raises PackedError: they are too many, or too deep in each other.
    """
    data = data.replace(b"\r\n", b"\n")
    mails = [each for each in _FROM.split(data) if each.strip()]
    count = 0
    for number, each in enumerate(mails, 1):
        try:
            parts = [*email.message_from_bytes(each).walk()]
        except RecursionError as error:
            raise PackedError("a mail whose parts are too deep in each other") from error
        texts = any(part.get_content_type() == "text/plain" for part in parts)
        for part in parts:
            kind = part.get_content_type()
            if part.is_multipart() or (texts and kind == "text/html"):
                continue
            if (count := count + 1) > MOST_PARTS:
                raise PackedError(f"mails of more than {MOST_PARTS} parts: the first are read")
            called = f"mail {number}" if len(mails) > 1 else "its text"
            yield part.get_filename() or called, _content(part)


def _content(part: email.message.Message) -> bytes:
    data = part.get_payload(decode=True)
    assert isinstance(data, bytes)
    if part.get_content_maintype() != "text":
        return data
    try:
        return data.decode(part.get_content_charset("utf-8"), "replace").encode()
    except LookupError:  # no such character set
        return data
