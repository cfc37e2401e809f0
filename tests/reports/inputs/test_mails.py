# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mails as they were sent: what is in them is read, however it was encoded."""

import gzip
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import pytest
from given_inputs import LOG, PERF, put

from mmscope.reports.inputs.given import gather
from mmscope.reports.inputs.mails import is_mail


@pytest.mark.parametrize("way", ["7bit", "quoted-printable", "base64"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_log_in_a_mail(tmp_path: Path, way: str, pack: Callable[[bytes], bytes]) -> None:
    mail = EmailMessage()
    mail["Message-ID"] = "<7@example.org>"
    mail.set_content(f"Hello,\n\n{LOG}\nThanks\n", cte=way)
    path = put(tmp_path, "mail", pack(bytes(mail)))
    found = gather([path])
    (text,) = found.texts.values()
    assert (LOG in text.decode(), found.refused) == (True, [])


def test_mails_with_what_is_attached(tmp_path: Path) -> None:
    """Prose and what is quoted twice are nothing to speak of."""
    mail = EmailMessage()
    mail["Message-ID"] = "<7@example.org>"
    mail.set_content("the log is attached\n")
    mail.add_attachment(gzip.compress(LOG.encode()), "application", "gzip", filename="dmesg.gz")
    mail.add_attachment(PERF, filename="script.txt")
    line = b"From a@example.org Thu Jan  1 00:00:00 1970\n"
    reply = b"Message-ID: <8@example.org>\n\n" + b"".join(
        b"> " + line for line in LOG.encode().splitlines(keepends=True)
    )
    path = put(tmp_path, "mbox", line + bytes(mail) + b"\n" + line + reply)
    found = gather([path])
    with found.open_files:
        assert [each.removeprefix(f"{path}: ") for each in found.said] == [
            "dmesg.gz: a kernel log, compressed",
            "script.txt: text of perf script",
            "mail 2: a kernel log",
        ]
    assert found.refused == []


def test_a_mail_without_anything_to_read_is_one_line(tmp_path: Path) -> None:
    path = put(tmp_path, "mail", "MIME-Version: 1.0\nSubject: x\n\nmemory is low\n")
    assert gather([path]).refused == [f"{path}: a mail without anything that mmscope reads"]


@pytest.mark.parametrize(
    "text",
    [b"", b"MemTotal: 1 kB\nMemFree: 1 kB\n", b"Name:\tbash\n", LOG.encode(), b"x: y\n" * 9_000],
)
def test_other_texts_are_no_mails(text: bytes) -> None:
    assert not is_mail(text)
