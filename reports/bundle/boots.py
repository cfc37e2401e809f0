# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Times of a bundle's reading and of its machine's boot, by which boots differ.

Cannot know: that a clock was set in between; it makes one boot look like two.
"""

import datetime

from mmscope.reports.bundle.bundle import Bundle

# captured_at and the uptime are rounded, or read one after the other. NTP slews both clocks alike.
SAME_BOOT_SECONDS = 3.0


def boot_time(bundle: Bundle) -> float | None:
    """Time of the machine's boot, in seconds since 1970; None if the bundle does not say."""
    uptime = bundle.target.get("uptime_seconds")
    taken = captured(bundle)
    if taken is None or isinstance(uptime, (bool, str)) or not uptime:
        return None
    return taken - uptime


def captured(bundle: Bundle) -> float | None:
    """Time of a bundle's reading, in seconds since 1970."""
    return moment(str(bundle.target.get("captured_at")))


def moment(text: str) -> float | None:
    """A date as bundles have it, UTC where it does not say, in seconds since 1970."""
    try:
        at = datetime.datetime.fromisoformat(text)
        return at.replace(tzinfo=at.tzinfo or datetime.UTC).timestamp()
    except (ValueError, OverflowError):
        return None
